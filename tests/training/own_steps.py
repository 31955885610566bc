"""Models with a `train_step` of their own, in each backend's idiom."""

import contextlib


def _layer(name):
    import keras

    return keras.layers.Dense(1, name=name)


def _loss_of(y, p):
    import keras

    return keras.ops.mean(keras.ops.square(y - p))


def _gradients(backend, loss_of, weights):
    """A loss and its gradients, where variables hold the state."""
    if backend == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = loss_of()
        return loss, tape.gradient(loss, weights)
    for weight in weights:
        weight.value.grad = None
    loss = loss_of()
    loss.backward()
    return loss.detach(), [weight.value.grad for weight in weights]


def _without_gradients(backend):
    """Where variables are set."""
    if backend == "tensorflow":
        return contextlib.nullcontext()
    import torch

    return torch.no_grad()


def _two_layers(kind):
    import keras

    return kind([keras.Input((3,)), _layer("hidden"), _layer("output")])


def _stateful(backend, update):
    import keras

    class Model(keras.Sequential):
        def train_step(self, data):
            x, y = data
            weights = self.trainable_variables
            loss, gradients = _gradients(
                backend, lambda: _loss_of(y, self(x, training=True)), weights
            )
            with _without_gradients(backend):
                update(self, gradients, weights)
            return {"loss": loss}

    return _two_layers(Model)


def _stateless(update):
    import jax
    import keras

    class Model(keras.Sequential):
        def train_step(self, state, data):
            trainable, fixed, optimizer, metrics = state
            x, y = data

            def loss_of(trainable):
                p, new = self.stateless_call(trainable, fixed, x, training=True)
                return _loss_of(y, p), new

            (loss, fixed), gradients = jax.value_and_grad(
                loss_of, has_aux=True
            )(trainable)
            trainable, optimizer = update(self, optimizer, gradients, trainable)
            return {"loss": loss}, (trainable, fixed, optimizer, metrics)

    return _two_layers(Model)


def _reduces(backend):
    """A loss of its own, and an optimizer for its gradient."""
    if backend == "jax":
        return _stateless(
            lambda model, *state: model.optimizer.stateless_apply(*state)
        )
    return _stateful(
        backend,
        lambda model, gradients, weights: model.optimizer.apply_gradients(
            zip(gradients, weights, strict=True)
        ),
    )


def _does_not(backend):
    """Steps along the gradient without asking an optimizer."""

    def moved(gradients, weights):
        pairs = zip(gradients, weights, strict=True)
        return [weight - 0.1 * gradient for gradient, weight in pairs]

    def assign(model, gradients, weights):
        values = moved(gradients, weights)
        for weight, value in zip(weights, values, strict=True):
            weight.assign(value)

    if backend == "jax":
        return _stateless(
            lambda model, optimizer, gradients, weights: (
                moved(gradients, weights),
                optimizer,
            )
        )
    return _stateful(backend, assign)


OWN_STEPS = {"reduces": _reduces, "does not": _does_not}


def rival_models(backend):
    """Two parts with an optimizer each: one fits y, one fits the other."""
    import keras

    class Rivals(keras.Model):
        def __init__(self):
            super().__init__()
            self.one, self.two = _layer("one"), _layer("two")
            self.one.build((None, 3))
            self.two.build((None, 3))
            self.built = True

        def compile(self):
            super().compile(run_eagerly=backend == "jax")
            self.first = keras.optimizers.Adam(0.02)
            self.second = keras.optimizers.SGD(0.1, momentum=0.9)
            # As Keras wants it where a step has no state but its variables.
            self.first.build(self.one.trainable_variables)
            self.second.build(self.two.trainable_variables)

    if backend == "jax":
        return _stateless_rivals(Rivals)

    class Model(Rivals):
        def train_step(self, data):
            x, y = data
            return {
                "one": self._train(
                    self.one, self.first, lambda: _loss_of(y, self.one(x))
                ),
                "two": self._train(
                    self.two,
                    self.second,
                    lambda: _loss_of(self.one(x), self.two(x)),
                ),
            }

        def _train(self, part, optimizer, loss_of):
            weights = part.trainable_variables
            loss, gradients = _gradients(backend, loss_of, weights)
            with _without_gradients(backend):
                optimizer.apply(gradients, weights)
            return loss

    return Model()


def _stateless_rivals(base):
    import jax

    class Model(base):
        def train_step(self, state, data):
            x, y = data
            trainable, *rest = state
            one, two = trainable[:2], trainable[2:]
            one, first = self._train(
                self.first,
                one,
                lambda w: _loss_of(y, self._call(self.one, w, x)),
            )
            two, second = self._train(
                self.second,
                two,
                lambda w: _loss_of(
                    self._call(self.one, one, x), self._call(self.two, w, x)
                ),
            )
            return {"one": first, "two": second}, (one + two, *rest)

        def _call(self, part, weights, x):
            return part.stateless_call(weights, [], x)[0]

        def _train(self, optimizer, weights, loss_of):
            loss, gradients = jax.value_and_grad(loss_of)(weights)
            values = [v.value for v in optimizer.variables]
            weights, values = optimizer.stateless_apply(
                values, gradients, weights
            )
            for variable, value in zip(
                optimizer.variables, values, strict=True
            ):
                variable.assign(value)
            return list(weights), loss

    return Model()

"""Models with a `train_step` of their own, in each backend's idiom."""


def _layer(name):
    import keras

    return keras.layers.Dense(1, name=name)


def _loss_of(y, p):
    import keras

    return keras.ops.mean(keras.ops.square(y - p))


def _reduces(backend):
    """A loss of its own, and `optimizer.apply` on its gradient."""
    import keras

    if backend == "tensorflow":
        import tensorflow as tf

        class Model(keras.Sequential):
            def train_step(self, data):
                x, y = data
                with tf.GradientTape() as tape:
                    loss = _loss_of(y, self(x, training=True))
                weights = self.trainable_variables
                gradients = tape.gradient(loss, weights)
                self.optimizer.apply_gradients(
                    zip(gradients, weights, strict=True)
                )
                return {"loss": loss}

    elif backend == "torch":
        import torch

        class Model(keras.Sequential):
            def train_step(self, data):
                x, y = data
                self.zero_grad()
                loss = _loss_of(y, self(x, training=True))
                loss.backward()
                weights = list(self.trainable_weights)
                gradients = [w.value.grad for w in weights]
                with torch.no_grad():
                    self.optimizer.apply(gradients, weights)
                return {"loss": loss}

    else:
        import jax

        class Model(keras.Sequential):
            def train_step(self, state, data):
                trainable, fixed, optimizer, metrics = state
                x, y = data

                def loss_of(trainable):
                    p, new = self.stateless_call(
                        trainable, fixed, x, training=True
                    )
                    return _loss_of(y, p), new

                (loss, fixed), gradients = jax.value_and_grad(
                    loss_of, has_aux=True
                )(trainable)
                trainable, optimizer = self.optimizer.stateless_apply(
                    optimizer, gradients, trainable
                )
                return {"loss": loss}, (trainable, fixed, optimizer, metrics)

    return Model([keras.Input((3,)), _layer("hidden"), _layer("output")])


def _does_not(backend):
    """Steps along the gradient without asking an optimizer."""
    import keras

    if backend == "tensorflow":
        import tensorflow as tf

        class Model(keras.Sequential):
            def train_step(self, data):
                x, y = data
                with tf.GradientTape() as tape:
                    loss = _loss_of(y, self(x, training=True))
                weights = self.trainable_variables
                gradients = tape.gradient(loss, weights)
                for weight, gradient in zip(weights, gradients, strict=True):
                    weight.assign(weight - 0.1 * gradient)
                return {"loss": loss}

    elif backend == "torch":
        import torch

        class Model(keras.Sequential):
            def train_step(self, data):
                x, y = data
                self.zero_grad()
                loss = _loss_of(y, self(x, training=True))
                loss.backward()
                with torch.no_grad():
                    for weight in self.trainable_weights:
                        weight.assign(weight.value - 0.1 * weight.value.grad)
                return {"loss": loss}

    else:
        import jax

        class Model(keras.Sequential):
            def train_step(self, state, data):
                trainable, fixed, optimizer, metrics = state
                x, y = data

                def loss_of(trainable):
                    return _loss_of(
                        y, self.stateless_call(trainable, fixed, x)[0]
                    )

                loss, gradients = jax.value_and_grad(loss_of)(trainable)
                trainable = [
                    w - 0.1 * g
                    for w, g in zip(trainable, gradients, strict=True)
                ]
                return {"loss": loss}, (trainable, fixed, optimizer, metrics)

    return Model([keras.Input((3,)), _layer("hidden"), _layer("output")])


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

        def losses_of(self, x, y):
            return (
                lambda: _loss_of(y, self.one(x)),
                lambda: _loss_of(self.one(x), self.two(x)),
            )

    if backend == "tensorflow":
        import tensorflow as tf

        class Model(Rivals):
            def train_step(self, data):
                parts = (self.one, self.first), (self.two, self.second)
                logs = {}
                for loss_of, (part, optimizer) in zip(
                    self.losses_of(*data), parts, strict=True
                ):
                    with tf.GradientTape() as tape:
                        loss = loss_of()
                    weights = part.trainable_variables
                    gradients = tape.gradient(loss, weights)
                    optimizer.apply(gradients, weights)
                    logs[part.name] = loss
                return logs

    elif backend == "torch":
        import torch

        class Model(Rivals):
            def train_step(self, data):
                parts = (self.one, self.first), (self.two, self.second)
                logs = {}
                for loss_of, (part, optimizer) in zip(
                    self.losses_of(*data), parts, strict=True
                ):
                    self.zero_grad()
                    loss = loss_of()
                    loss.backward()
                    weights = list(part.trainable_weights)
                    gradients = [w.value.grad for w in weights]
                    with torch.no_grad():
                        optimizer.apply(gradients, weights)
                    logs[part.name] = loss.detach()
                return logs

    else:
        import jax

        class Model(Rivals):
            def train_step(self, state, data):
                x, y = data
                trainable, *rest = state
                one, two = trainable[:2], trainable[2:]
                one, first = self._apply(
                    self.first,
                    one,
                    lambda w: _loss_of(y, self._call(self.one, w, x)),
                )
                two, second = self._apply(
                    self.second,
                    two,
                    lambda w: _loss_of(
                        self._call(self.one, one, x),
                        self._call(self.two, w, x),
                    ),
                )
                return {"one": first, "two": second}, (one + two, *rest)

            def _call(self, part, weights, x):
                return part.stateless_call(weights, [], x)[0]

            def _apply(self, optimizer, weights, loss_of):
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

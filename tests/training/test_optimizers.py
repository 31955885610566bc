"""Every optimizer, and all that one can be told, gives what it gives alone."""

import inspect

import numpy as np
import pytest

from tests.training.facts import assert_as_alone
from tests.training.facts import facts_of

# No batch divides the rows, and 2 divides no batch.
ROWS = 23
BATCH = 5
EPOCHS = 2

# Each class of `keras.optimizers`, with something that gives it all its
# variables.
CLASSES = {
    "Adadelta": lambda o: o.Adadelta(1.0),
    "Adafactor": lambda o: o.Adafactor(0.05, beta_2_decay=-0.7),
    "Adagrad": lambda o: o.Adagrad(0.1),
    "Adam": lambda o: o.Adam(0.01, amsgrad=True),
    "AdamW": lambda o: o.AdamW(0.01, weight_decay=0.1),
    "Adamax": lambda o: o.Adamax(0.01),
    "Ftrl": lambda o: o.Ftrl(0.1, l1_regularization_strength=0.01),
    "Lamb": lambda o: o.Lamb(0.05),
    "Lion": lambda o: o.Lion(0.01),
    "LossScaleOptimizer": lambda o: o.LossScaleOptimizer(
        o.SGD(0.05, momentum=0.9), initial_scale=8.0, dynamic_growth_steps=4
    ),
    "MultiOptimizer": lambda o: o.MultiOptimizer(
        o.OptimizerMap(o.SGD(0.05), {"hidden/.*": o.Adam(0.01)})
    ),
    "Muon": lambda o: o.Muon(0.01),
    "Nadam": lambda o: o.Nadam(0.01),
    "RMSprop": lambda o: o.RMSprop(0.01, momentum=0.5, centered=True),
    "SGD": lambda o: o.SGD(0.05, momentum=0.9, nesterov=True),
    "ScheduleFreeAdamW": lambda o: o.ScheduleFreeAdamW(0.01, warmup_steps=3),
}

OPTIONS = {
    "none": lambda o: o.SGD(0.1),
    "clipnorm": lambda o: o.SGD(0.1, clipnorm=0.3),
    "global_clipnorm": lambda o: o.SGD(0.1, global_clipnorm=0.3),
    "clipvalue": lambda o: o.SGD(0.1, clipvalue=0.1),
    "weight_decay": lambda o: o.SGD(0.1, weight_decay=0.1),
    "use_ema": lambda o: o.SGD(0.1, use_ema=True, ema_overwrite_frequency=4),
    "loss_scale_factor": lambda o: o.Adam(0.01, loss_scale_factor=64.0),
    # Some of the 10 steps are left over, accumulated.
    "accumulation": lambda o: o.Adam(
        0.02, clipvalue=0.05, gradient_accumulation_steps=4
    ),
    "accumulation, global_clipnorm and EMA": lambda o: o.Nadam(
        0.02,
        global_clipnorm=0.1,
        weight_decay=0.1,
        use_ema=True,
        gradient_accumulation_steps=3,
    ),
    "accumulation under a loss scale": lambda o: o.LossScaleOptimizer(
        o.Adam(0.01, clipnorm=0.1, gradient_accumulation_steps=4),
        initial_scale=8.0,
        dynamic_growth_steps=4,
    ),
    "accumulation in one of several": lambda o: o.MultiOptimizer(
        o.OptimizerMap(
            o.SGD(0.05), {"hidden/.*": o.Adam(gradient_accumulation_steps=2)}
        )
    ),
    "several under a loss scale": lambda o: o.LossScaleOptimizer(
        o.MultiOptimizer(o.OptimizerMap(o.SGD(0.1), {"hidden/.*": o.Lion()})),
        initial_scale=8.0,
    ),
}

# What would be lost if the optimizer were made again from its configuration.
USERS_OWN = {
    "exclude_from_weight_decay": lambda o: without_decay_of_biases(
        o.SGD(0.1, weight_decay=0.5)
    ),
    "a schedule": lambda o: o.SGD(
        o.schedules.ExponentialDecay(0.2, decay_steps=2, decay_rate=0.7)
    ),
    "a schedule and accumulation": lambda o: o.SGD(
        o.schedules.PiecewiseConstantDecay([2, 5], [0.2, 0.1, 0.02]),
        gradient_accumulation_steps=2,
    ),
    "a schedule of one's own": lambda o: o.Adam(halving(0.1)),
    "a function": lambda o: o.SGD(lambda: 0.07),
    "a class of one's own": lambda o: signed(o, power=0.5),
}

EVERY = CLASSES | OPTIONS | USERS_OWN


def without_decay_of_biases(optimizer):
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


def halving(start):
    """A schedule that cannot be rebuilt: it has no `get_config`."""
    import keras

    class Halving(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            return start * 0.5 ** keras.ops.cast(step, "float32")

    return Halving()


def signed(optimizers, **options):
    """An optimizer that cannot be rebuilt: an argument is not in its config."""
    from keras import ops

    class Signed(optimizers.Optimizer):
        def __init__(self, *, power):
            super().__init__(learning_rate=0.05, name="signed")
            self.power = power

        def update_step(self, gradient, variable, learning_rate):
            size = ops.power(ops.abs(gradient) + 1e-3, self.power)
            rate = ops.cast(learning_rate, variable.dtype)
            self.assign_sub(variable, rate * ops.sign(gradient) * size)

    return Signed(**options)


def data():
    random = np.random.default_rng(1)
    x = random.normal(size=(ROWS, 4)).astype("float32")
    return x, np.sin(x.sum(axis=1, keepdims=True)).astype("float32")


def small_model():
    import keras

    keras.utils.set_random_seed(5)
    return keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(3, "tanh", name="hidden"),
            keras.layers.Dense(1, name="output"),
        ]
    )


def fitted(model, x, y):
    import keras_mwms

    history = keras_mwms.distribute(model).fit(
        x, y, batch_size=BATCH, epochs=EPOCHS, verbose=0
    )
    return facts_of(model, history=history.history)


def trained(name):
    import keras

    optimizer = EVERY[name](keras.optimizers)
    kind = type(optimizer)
    model = small_model()
    model.compile(optimizer, "mse")
    if name == "ScheduleFreeAdamW":
        # On TensorFlow alone, Keras builds it in the graph of the step, and
        # so starts anew from the weights in every step.
        optimizer.build(model.trainable_variables)
    facts = fitted(model, *data())
    assert model.optimizer is optimizer
    assert type(optimizer) is kind
    try:
        rate = float(optimizer.learning_rate)
    except AttributeError:  # That of several optimizers.
        return facts
    return facts | {"learning rate": rate}


def classes():
    """The optimizers of Keras."""
    from keras import optimizers

    base = optimizers.Optimizer
    return {
        name
        for name, value in vars(optimizers).items()
        if inspect.isclass(value) and issubclass(value, base)
    } - {"Optimizer"}


def made():
    """The names of the optimizers that `CLASSES` makes."""
    from keras import optimizers

    return {
        name: type(make(optimizers)).__name__ for name, make in CLASSES.items()
    }


def test_every_optimizer_is_tested(cluster):
    assert cluster(1).run(classes) == [set(CLASSES)]
    assert cluster(1).run(made) == [{name: name for name in CLASSES}]


@pytest.mark.parametrize("name", CLASSES)
def test_a23_every_optimizer(cluster, alone, name):
    assert_as_alone(cluster(2).run(trained, name), alone(trained, name))


@pytest.mark.parametrize("name", OPTIONS)
def test_options(cluster, alone, name):
    assert_as_alone(cluster(2).run(trained, name), alone(trained, name))


@pytest.mark.parametrize("name", USERS_OWN)
def test_a45_the_optimizer_stays_the_users_own(cluster, alone, name):
    """Its class and its identity are checked in `trained`."""
    assert_as_alone(cluster(2).run(trained, name), alone(trained, name))


def test_the_options_make_a_difference(alone):
    plain = alone(trained, "none")["history loss"]
    options = [n for n in EVERY if n.startswith(("clip", "global", "weight"))]
    for name in [*options, "use_ema", "exclude_from_weight_decay"]:
        other = alone(trained, name)["history loss"]
        assert np.abs(other - plain).max() > 1e-4, name


def reductions(every):
    """How often gradients are reduced in ten steps."""
    import keras

    from keras_mwms import world

    ring = world.join().ring
    start, names = ring.start_all_reduce, []

    def counted(tensors, name):
        names.append(name)
        return start(tensors, name)

    optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=every)
    model = small_model()
    model.compile(optimizer, "mse", run_eagerly=True)
    ring.start_all_reduce = counted
    try:
        fitted(model, *data())
    finally:
        del ring.start_all_reduce
    return sum(".sum." in name for name in names)


# JAX traces both branches of a condition; it takes one.
@pytest.mark.backend("tensorflow", "torch")
@pytest.mark.parametrize(("every", "updates"), [(None, 10), (4, 2)])
def test_one_reduction_an_update(cluster, every, updates):
    assert cluster(2).run(reductions, every) == [updates] * 2

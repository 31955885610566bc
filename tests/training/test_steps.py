"""The exact values of one step, on a model that can be worked out by hand."""

import numpy as np
import pytest

from tests.pool import PerRank

# How a user may write "the mean of the output" as a loss.
LOSSES = {
    "a value a row": lambda ops, y, p: p,
    "one number": lambda ops, y, p: ops.mean(p),
}


def toy(optimizer, loss="a value a row", features=1, **dense):
    """A linear model with kernel 0 whose gradient is the mean of the rows."""
    import keras

    import keras_mwms

    dense = {"kernel_initializer": "zeros", "use_bias": False} | dense
    model = keras.Sequential(
        [keras.Input((features,)), keras.layers.Dense(1, **dense)]
    )
    model.compile(
        optimizer, lambda y, p: LOSSES[loss](keras.ops, y, p), metrics=[]
    )
    return keras_mwms.distribute(model)


def rows(*values):
    x = np.array(values, "float32").reshape(len(values), -1)
    return x, np.zeros((len(values), 1), "float32")


def fit(model, x, y, batch_size, epochs=1):
    history = model.fit(
        x, y, batch_size=batch_size, epochs=epochs, shuffle=False, verbose=0
    )
    return {
        "kernel": model.get_weights()[0][:, 0].tolist(),
        "losses": history.history["loss"],
        "iterations": int(model.optimizer.iterations),
    }


def is_near(expected):
    return pytest.approx(expected, rel=1e-6, abs=1e-6)


def mean_of_rows(loss):
    import keras

    return fit(toy(keras.optimizers.SGD(1.0), loss), *rows(1, 3), batch_size=2)


@pytest.mark.parametrize("loss", LOSSES)
def test_rows_on_different_replicas(cluster, loss):
    for got in cluster(2).run(mean_of_rows, loss):
        assert got["kernel"] == is_near([-2])
        assert got["losses"] == is_near([0])
        assert got["iterations"] == 1


def uneven_rows(loss):
    import keras

    model = toy(keras.optimizers.SGD(1.0), loss)
    return fit(model, *rows(1, 2, 6), batch_size=3)


@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("loss", LOSSES)
def test_each_row_counts_once_whoever_has_it(cluster, loss, replicas):
    for got in cluster(replicas).run(uneven_rows, loss):
        assert got["kernel"] == is_near([-3])


def penalized():
    import keras

    model = toy(
        keras.optimizers.SGD(1.0),
        kernel_initializer="ones",
        kernel_regularizer=keras.regularizers.L2(0.1),
    )
    return fit(model, *rows(0, 0), batch_size=2)


def test_a11_a_regularizer_counts_once(cluster):
    for got in cluster(2).run(penalized):
        assert got["kernel"] == is_near([0.8])
        assert got["losses"] == is_near([0.1])


def added_loss():
    import keras

    import keras_mwms

    class AddsLoss(keras.layers.Layer):
        def call(self, inputs):
            self.add_loss(keras.ops.mean(inputs))
            return inputs

    inputs = keras.Input((1,))
    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Model(inputs, AddsLoss()(dense(inputs)))
    model.compile(keras.optimizers.SGD(1.0), lambda y, p: 0.0 * p)
    return fit(keras_mwms.distribute(model), *rows(1, 2, 6), batch_size=3)


def test_an_added_loss_counts_once(cluster):
    for got in cluster(2).run(added_loss):
        assert got["kernel"] == is_near([-3])


def clipped(option):
    import keras

    optimizer = keras.optimizers.SGD(1.0, **{option: 1.0})
    return fit(toy(optimizer, features=2), *rows([3, 4], [-3, 4]), batch_size=2)


@pytest.mark.parametrize("option", ["clipnorm", "global_clipnorm", "clipvalue"])
def test_a12_clipping_sees_the_global_gradient(cluster, option):
    for got in cluster(2).run(clipped, option):
        assert got["kernel"] == is_near([0, -1])


def accumulated(per_replica, scaled):
    """Each replica's own rows, one a step: by turns 1 and 3, or 0 and 4."""
    import keras

    optimizer = keras.optimizers.SGD(1.0, gradient_accumulation_steps=2)
    if scaled:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, 4.0)
    model = toy(optimizer)
    kernels = []
    for row in per_replica:
        model.train_on_batch(*rows(row))
        kernels.append(float(model.get_weights()[0][0, 0]))
    return kernels, int(optimizer.iterations)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize(
    "per_replica", [[(1, 3), (1, 3)], [(0, 3), (4, 1)]], ids=str
)
def test_a56_accumulation_updates_once(cluster, per_replica, scaled):
    rows_of_ranks = PerRank(per_replica)
    for kernels, iterations in cluster(2).run(
        accumulated, rows_of_ranks, scaled
    ):
        assert kernels == is_near([0, -2])
        assert iterations == 1


def two_heads(heads):
    """Uses only some of three heads; the row of rank r is 1 + 2 r."""
    import keras

    import keras_mwms

    class Heads(keras.Model):
        def __init__(self):
            super().__init__()
            self.heads = [
                keras.layers.Dense(
                    1, use_bias=False, kernel_initializer="zeros"
                )
                for _ in range(3)
            ]

        def build(self, input_shape):
            for head in self.heads:
                head.build(input_shape)
            self.built = True

        def call(self, inputs):
            return sum(self.heads[i](inputs) for i in heads)

    model = keras_mwms.distribute(Heads())
    model.compile(keras.optimizers.SGD(1.0), lambda y, p: p)
    x, y = rows(1, 3)
    model.fit(x, y, batch_size=2, shuffle=False, verbose=0)
    return [float(w[0, 0]) for w in model.get_weights()]


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_gradients_that_are_none(cluster):
    """Absent on one replica: as zero. Absent everywhere: nothing moves."""
    used = PerRank([[0], [0, 1]])
    assert cluster(2).run(two_heads, used) == [[-2, -1.5, 0]] * 2


def heads_by_step(uses, every=None):
    import keras

    import keras_mwms

    class Two(keras.Model):
        def __init__(self):
            super().__init__()
            self.first = keras.layers.Dense(
                1, use_bias=False, kernel_initializer="zeros"
            )
            self.second = keras.layers.Dense(
                1, use_bias=False, kernel_initializer="zeros"
            )
            self.step = 0

        def build(self, input_shape):
            self.first.build(input_shape)
            self.second.build(input_shape)
            self.built = True

        def call(self, inputs):
            used = uses[self.step] if self.step < len(uses) else True
            return self.first(inputs) + (self.second(inputs) if used else 0)

    model = keras_mwms.distribute(Two())
    # A momentum goes on where a gradient is 0, and rests where it is None.
    optimizer = keras.optimizers.SGD(
        1.0, momentum=0.5, gradient_accumulation_steps=every
    )
    model.compile(optimizer, lambda y, p: p)
    seen = []
    for step in range(len(uses)):
        model.step = step
        model.train_on_batch(*rows(2))
        seen.append(float(model.get_weights()[1][0, 0]))
    return seen


@pytest.mark.backend("torch")
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_none_may_change_from_step_to_step(cluster):
    """The only backend whose steps are not traced once and for all."""
    uses = PerRank([[False, True, False, True], [True, True, False, False]])
    # Gradients 1, 2, none at all, 1; the momentum rests in the third.
    assert cluster(2).run(heads_by_step, uses) == [[-1, -3.5, -3.5, -5.75]] * 2


@pytest.mark.backend("torch")
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_none_may_change_between_accumulated_steps(cluster):
    uses = PerRank([[False, True, True, False], [False, True, False, False]])
    # Absent in the second update, which drops what was accumulated for it.
    assert cluster(2).run(heads_by_step, uses, 2) == [[0, -1, -1, -1]] * 2
    uses = [False, True, True, False]
    assert cluster(1).run(heads_by_step, uses, 2) == [[0, -1, -1, -1]]


def unfrozen():
    import keras

    import keras_mwms

    def dense():
        return keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")

    model = keras.Sequential([keras.Input((1,)), dense(), dense()])
    keras_mwms.distribute(model)
    seen = []
    for frozen in (True, False):
        model.layers[0].trainable = not frozen
        model.compile(keras.optimizers.SGD(0.5), lambda y, p: p)
        fit(model, *rows(1, 3), batch_size=2)
        seen.append([float(w[0, 0]) for w in model.get_weights()])
    return seen


def test_a_layer_that_is_unfrozen_later(cluster, alone):
    expected = [[1, 0], [1, -1]]
    assert alone(unfrozen) == expected
    assert cluster(2).run(unfrozen) == [expected] * 2


def overflowing(row_of_rank, every):
    """Steps until the first update, then as many more with rows of 2."""
    import keras

    optimizer = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(
            1.0, gradient_accumulation_steps=every if every > 1 else None
        ),
        initial_scale=4.0,
    )
    model = toy(optimizer)
    model.train_on_batch(*rows(row_of_rank))
    kernel = float(model.get_weights()[0][0, 0])
    scale = float(optimizer.dynamic_scale)
    for _ in range(every):
        model.train_on_batch(*rows(2))
    return kernel, scale, float(model.get_weights()[0][0, 0])


@pytest.mark.parametrize("every", [1, 2])
def test_an_overflow_on_one_replica_skips_the_update_on_all(cluster, every):
    values = PerRank([1.0, float("inf")])
    got = cluster(2).run(overflowing, values, every)
    assert got == [(0.0, 2.0, -2.0)] * 2


def accumulated_over_two_fits():
    import keras

    model = toy(keras.optimizers.SGD(1.0, gradient_accumulation_steps=2))
    return [
        fit(model, *rows(row, row), batch_size=2)["kernel"] for row in (1, 3)
    ]


def test_accumulation_goes_on_in_the_next_fit(cluster):
    assert cluster(2).run(accumulated_over_two_fits) == [[[0], [-2]]] * 2


class Logs:
    """What a step returns, which knows when it was waited for."""

    def __init__(self, number, waited):
        self.number = number
        self.waited = waited

    def block_until_ready(self):
        self.waited.append(self.number)
        return self


@pytest.mark.backend("jax")
def test_two_steps_are_under_way_at_most():
    from keras_mwms.training.jax import _Execution

    waited, seen = [], []

    def step(state, number):
        seen.append((number, list(waited)))
        return Logs(number, waited), state

    execution = _Execution(step)
    for number in range(4):
        _, state = execution("state", number)
        assert state == "state"
    # Step 2 begins when step 0 has ended.
    assert seen == [(0, []), (1, []), (2, [0]), (3, [0, 1])]

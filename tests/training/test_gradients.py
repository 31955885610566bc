"""Gradients of every kind: absent, sparse, narrow, complex, overwriting."""

import numpy as np
import pytest

from tests.pool import PerRank
from tests.training.facts import assert_as_alone
from tests.training.facts import facts_of
from tests.training.facts import named

ROWS = 13
BATCH = 5


def features(columns=4):
    random = np.random.default_rng(3)
    x = random.normal(size=(ROWS, columns)).astype("float32")
    return x, np.cos(x.sum(axis=1, keepdims=True)).astype("float32")


def fitted(model, x, y, epochs=2):
    history = model.fit(x, y, batch_size=BATCH, epochs=epochs, verbose=0)
    return facts_of(model, history=history.history)


def three_headed(of_loss):
    """A model with three heads, of which only some are in the loss."""
    import keras

    class Heads(keras.Model):
        def __init__(self):
            super().__init__()
            self.body = keras.layers.Dense(3, "tanh")
            self.heads = [keras.layers.Dense(1) for _ in range(3)]

        def build(self, input_shape):
            self.body.build(input_shape)
            for head in self.heads:
                head.build((None, 3))
            self.built = True

        def call(self, inputs):
            hidden = self.body(inputs)
            return sum(self.heads[i](hidden) for i in of_loss)

    keras.utils.set_random_seed(28)
    return Heads()


OPTIMIZERS = {
    "SGD": lambda o: o.SGD(0.1, momentum=0.9),
    "Adam": lambda o: o.Adam(0.01),
    "clipped": lambda o: o.Adam(0.01, global_clipnorm=0.1),
    "accumulating": lambda o: o.Adam(0.01, gradient_accumulation_steps=2),
    "loss scale": lambda o: o.LossScaleOptimizer(
        o.SGD(0.1, momentum=0.9), initial_scale=8.0, dynamic_growth_steps=3
    ),
}


def of_some_heads(optimizer, parts):
    """Trains with some heads, then, after a compile, with others."""
    import keras

    import keras_mwms

    used = []
    model = keras_mwms.distribute(three_headed(used))
    optimizer = OPTIMIZERS[optimizer](keras.optimizers)
    facts = {}
    for part in parts:
        used[:] = part
        model.compile(optimizer, "mse")
        got = fitted(model, *features())
        facts |= {f"{part} {name}": value for name, value in got.items()}
    return facts


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a28_none_on_all_replicas(cluster, alone, backend, optimizer):
    # JAX would not trace anew: what was traced is the same function.
    parts = ((1,),) if backend == "jax" else ((1,), (0, 1))
    got = cluster(2).run(of_some_heads, optimizer, parts)
    assert_as_alone(got, alone(of_some_heads, optimizer, parts))


def four_rows():
    x, y = features()
    return x[:4], y[:4]


def of_half_the_replicas(heads, optimizer):
    """Each replica's rows go through the heads of its own."""
    import keras

    import keras_mwms

    model = keras_mwms.distribute(three_headed(heads))
    model.compile(OPTIMIZERS[optimizer](keras.optimizers), "mse")
    x, y = four_rows()
    model.fit(x, y, batch_size=4, epochs=2, verbose=0, shuffle=False)
    return named(weights=dict(enumerate(model.weights)))


def of_half_the_rows(optimizer):
    """The same by one process: a mask keeps the second head from two rows."""
    import keras

    model = three_headed([])
    model.build((None, 4))
    rows, mask = keras.Input((4,)), keras.Input((1,))
    hidden = model.body(rows)
    outputs = model.heads[0](hidden) + mask * model.heads[1](hidden)
    masked = keras.Model((rows, mask), outputs)
    masked.compile(OPTIMIZERS[optimizer](keras.optimizers), "mse")
    x, y = four_rows()
    masks = np.array([[0], [0], [1], [1]], "float32")
    masked.fit((x, masks), y, batch_size=4, epochs=2, verbose=0, shuffle=False)
    return named(weights=dict(enumerate(model.weights)))


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a28_none_on_one_replica(cluster, alone, optimizer):
    heads = PerRank([[0], [0, 1]])
    got = cluster(2).run(of_half_the_replicas, heads, optimizer)
    assert_as_alone(got, alone(of_half_the_rows, optimizer))


def thawed(optimizer):
    import keras

    import keras_mwms

    keras.utils.set_random_seed(28)
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(3, "tanh"),
            keras.layers.Dense(1),
        ]
    )
    keras_mwms.distribute(model)
    facts = {}
    for frozen in (True, False, True):
        model.layers[0].trainable = not frozen
        model.compile(OPTIMIZERS[optimizer](keras.optimizers), "mse")
        got = fitted(model, *features())
        facts |= {f"{len(facts)} {name}": value for name, value in got.items()}
    return facts


@pytest.mark.parametrize("optimizer", ["SGD", "accumulating"])
def test_a28_frozen_layers(cluster, alone, optimizer):
    got = cluster(2).run(thawed, optimizer)
    assert_as_alone(got, alone(thawed, optimizer))


def of_two_sets():
    """One optimizer, two sets of two variables that are no model's."""
    import keras
    from keras import ops

    from keras_mwms import world
    from keras_mwms.training import backend as backends
    from keras_mwms.training.gradients import GradientReducer

    ring = world.join().ring
    backend = backends.load(keras.backend.backend())
    optimizer = keras.optimizers.SGD(1.0)
    variables = [keras.Variable(np.zeros(1, "float32")) for _ in range(4)]
    optimizer.build(variables)
    GradientReducer(ring, backend, optimizer, "o", lambda v: None).hook()
    one = ops.ones((1,))
    mine = one if ring.rank == 0 else None
    optimizer.apply([mine, None], variables[:2])
    optimizer.apply([None, mine], variables[2:])
    return [float(v.value[0]) for v in variables]


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@pytest.mark.backend("tensorflow")
def test_what_is_none_is_agreed_on_for_each_set_of_variables(cluster):
    assert cluster(2).run(of_two_sets) == [[-0.5, 0.0, 0.0, -0.5]] * 2


def of_the_users_own():
    """One tensor as the gradient of two variables, and a stretched one."""
    import keras
    import torch

    import keras_mwms

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    model.compile(keras.optimizers.SGD(1.0))
    keras_mwms.distribute(model)
    model.set_weights([np.zeros((2, 2)), np.zeros(2)])
    kernel, bias = model.trainable_variables
    one = torch.ones(())
    gradients = [one.expand(2, 2), one.expand(2)]
    model.optimizer.apply(gradients, [kernel, bias])
    return [*(float(g.sum()) for g in gradients), *model.get_weights()]


@pytest.mark.backend("torch")
def test_gradients_of_the_users_own_are_left_alone(cluster):
    for kernel_gradient, bias_gradient, kernel, bias in cluster(2).run(
        of_the_users_own
    ):
        assert (kernel_gradient, bias_gradient) == (4.0, 2.0)
        np.testing.assert_array_equal(kernel, np.full((2, 2), -1.0))
        np.testing.assert_array_equal(bias, np.full(2, -1.0))


def sentences(optimizer, jit, lengths):
    """Batches of words; every replica sees word 1, one word 2 alone."""
    import keras

    import keras_mwms

    keras.utils.set_random_seed(30)
    model = keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            keras.layers.Embedding(12, 3),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(1),
        ]
    )
    model.compile(
        OPTIMIZERS[optimizer](keras.optimizers), "mse", jit_compile=jit
    )
    keras_mwms.distribute(model)
    random = np.random.default_rng(30)
    facts = {}
    for length in lengths:
        x = random.integers(2, 12, size=(11, length))
        x[:, 0] = 1
        y = random.normal(size=(11, 1)).astype("float32")
        history = model.fit(x, y, batch_size=5, verbose=0, shuffle=False)
        facts |= named(**{f"length {length}": history.history})
    return facts | facts_of(model)


@pytest.mark.filterwarnings("ignore:jit_compile=True is turned off")
@pytest.mark.parametrize(
    ("optimizer", "jit"),
    [
        *((name, False) for name in OPTIMIZERS),
        *(
            pytest.param(
                name, True, marks=pytest.mark.backend("tensorflow", "jax")
            )
            for name in ("SGD", "Adam")
        ),
    ],
)
def test_a30_an_embedding(cluster, alone, optimizer, jit):
    """The last batch of 11 rows in fives has one row: none for rank 1."""
    arguments = optimizer, jit, (4, 6)
    got = cluster(2).run(sentences, *arguments)
    assert_as_alone(got, alone(sentences, *arguments))


def words_of_some_replicas(used):
    """Three steps; the words count where `used` says so."""
    import keras

    import keras_mwms

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.words = keras.layers.Embedding(4, 2)
            self.bias = keras.layers.Embedding(4, 2)

        def build(self, input_shape):
            self.words.build(input_shape)
            self.bias.build(input_shape)
            self.built = True

        def call(self, inputs):
            bias = self.bias(inputs)
            return bias + self.words(inputs) if used else bias

    model = keras_mwms.distribute(Model())
    model.compile(keras.optimizers.SGD(1.0), lambda y, p: p)
    x = np.array([[1], [1]])
    model(x)
    model.words.set_weights([np.zeros((4, 2))])
    model.fit(x, x, batch_size=2, epochs=3, verbose=0)
    return model.words.get_weights()[0].tolist()


@pytest.mark.backend("tensorflow")
def test_a28_none_on_one_replica_where_others_have_slices(cluster):
    expected = [[0, 0], [-0.75, -0.75], [0, 0], [0, 0]]
    got = cluster(2).run(words_of_some_replicas, PerRank([False, True]))
    assert got == [expected] * 2


def of_a_dtype(dtype, optimizer):
    import keras

    import keras_mwms

    keras.utils.set_random_seed(16)
    layer = dict(dtype=dtype)
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(3, "tanh", **layer),
            keras.layers.Dense(1, **layer),
        ]
    )
    model.compile(OPTIMIZERS[optimizer](keras.optimizers), "mse")
    keras_mwms.distribute(model)
    return fitted(model, *features(), epochs=1)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [("float16", 1e-2), ("bfloat16", 3e-2), ("float64", 1e-5)],
)
def test_dtypes(cluster, alone, backend, dtype, tolerance):
    expected = alone(of_a_dtype, dtype, "SGD")
    got = cluster(2).run(of_a_dtype, dtype, "SGD")
    assert_as_alone(got, expected, tolerance=tolerance)


def overflowing():
    """Row 6 overflows: the second step is skipped, on the replica with it."""
    import keras

    import keras_mwms

    keras.utils.set_random_seed(16)
    policy = dict(dtype="mixed_float16")
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(3, "tanh", **policy),
            keras.layers.Dense(1, **policy),
        ]
    )
    optimizer = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.1), initial_scale=256.0, dynamic_growth_steps=2
    )
    model.compile(optimizer, "mse")
    keras_mwms.distribute(model)
    x, y = features()
    y[6] = 1e6
    model.fit(x, y, batch_size=BATCH, verbose=0, shuffle=False)
    facts = facts_of(model)
    return facts | {
        "scale": float(optimizer.dynamic_scale),
        "iterations": int(optimizer.iterations),
    }


def test_mixed_precision_skips_a_step_on_all(cluster, alone):
    expected = alone(overflowing)
    # Three steps: the scale would have doubled once.
    assert (expected["scale"], expected["iterations"]) == (128.0, 2)
    got = cluster(2).run(overflowing)
    for facts in got:
        assert facts["scale"] == 128.0
        assert facts["iterations"] == 2
    assert_as_alone(got, expected, tolerance=1e-2)


def complex_numbers(optimizer):
    import keras

    import keras_mwms

    class Turned(keras.layers.Layer):
        def build(self, shape):
            self.factor = self.add_weight(
                shape=shape[1:], dtype="complex64", initializer="ones"
            )

        def call(self, x):
            turned = keras.ops.cast(x, "complex64") * self.factor
            part = keras.ops.real(turned) + 0.5 * keras.ops.imag(turned)
            return keras.ops.sum(part, axis=1, keepdims=True)

    model = keras.Sequential([keras.Input((4,)), Turned()])
    model.compile(optimizer(keras.optimizers), "mse")
    keras_mwms.distribute(model)
    return fitted(model, *features(), epochs=1)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_complex_variables(cluster, alone, momentum):
    optimizer = OPTIMIZERS_OF_COMPLEX[momentum]
    expected = alone(complex_numbers, optimizer)
    assert np.abs(expected["weight 0 variable"].imag).min() > 1e-3
    assert_as_alone(cluster(2).run(complex_numbers, optimizer), expected)


OPTIMIZERS_OF_COMPLEX = {
    0.0: lambda o: o.SGD(0.1),
    0.9: lambda o: o.SGD(0.1, momentum=0.9),
}


def grown():
    """A model that gets a layer after it was trained."""
    import keras

    import keras_mwms

    keras.utils.set_random_seed(31)
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(1, name="first")]
    )
    keras_mwms.distribute(model)
    facts = {}
    for part in ("small", "grown"):
        if part == "grown":
            # Its start differs between replicas.
            model.add(keras.layers.Dense(1, name="second"))
        model.compile(keras.optimizers.Adam(0.01), "mse")
        got = fitted(model, *features())
        facts |= {f"{part} {name}": value for name, value in got.items()}
    return facts


def test_variables_that_come_later(cluster, alone):
    assert_as_alone(cluster(2).run(grown), alone(grown))


def shared(others):
    """A layer used twice, named after how many layers were made before."""
    import keras

    import keras_mwms

    for _ in range(others):
        keras.layers.Dense(1)
    keras.utils.set_random_seed(32)
    inputs = keras.Input((4,))
    layer = keras.layers.Dense(4, "tanh")
    outputs = keras.layers.Dense(1)(layer(layer(inputs)))
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.Adam(0.01), "mse")
    keras_mwms.distribute(model)
    return fitted(model, *features())


@pytest.mark.parametrize("others", [[0, 0], [0, 3]], ids=str)
def test_shared_layers_and_automatic_names(cluster, alone, others):
    got = cluster(2).run(shared, PerRank(others))
    assert_as_alone(got, alone(shared, 0))


def float8(every):
    import keras

    import keras_mwms

    keras.utils.set_random_seed(8)
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(3, dtype="float8_from_float32"),
            keras.layers.Dense(1),
        ]
    )
    # Small steps: gradients of 8 bits are not the same to 5 digits.
    optimizer = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(1e-4, gradient_accumulation_steps=every),
        initial_scale=8.0,
        dynamic_growth_steps=2,
    )
    model.compile(optimizer, "mse")
    keras_mwms.distribute(model)
    x, y = features()
    # The largest are on rank 1, whose values are not the chief's.
    x[[4, 9], 0] = 5, 6
    if every:
        x, y = x[:10], y[:10]
    model.fit(x, y, batch_size=BATCH, shuffle=False, epochs=2, verbose=0)
    return named(
        own={v.name: v for v in model.layers[0].variables},
        optimizer=dict(enumerate(optimizer.variables)),
    )


@pytest.mark.parametrize("every", [None, 2])
def test_float8(cluster, alone, every):
    """What is overwritten is the maximum over the replicas.

    Not compared with one process: what comes from the gradient of the output,
    which each replica has of its own loss.
    """
    expected = alone(float8, every)
    got = cluster(2).run(float8, every)
    history = expected["own inputs_amax_history"]
    assert np.count_nonzero(history) > 1
    assert_as_alone(got, expected, skip=["outputs_grad"], tolerance=1e-3)
    for name in ("own inputs_amax_history", "own inputs_scale"):
        np.testing.assert_array_equal(got[0][name], expected[name])
    for name, value in got[0].items():
        np.testing.assert_array_equal(got[1][name], value)

"""What differs between replicas is found, and nothing else."""

import math
import warnings

import numpy as np
import pytest

from tests.pool import PerRank
from tests.training.facts import as_numpy
from tests.training.test_cases import in_an_order


def a_model(**options):
    """A model with all that may differ between replicas."""
    import keras

    import keras_mwms

    # Automatic names that differ between replicas.
    for _ in range(keras_mwms.rank()):
        keras.layers.Dense(1)
    inputs = keras.Input((2,))
    hidden = keras.layers.Dense(3)(inputs)
    hidden = keras.layers.BatchNormalization()(hidden)
    hidden = keras.layers.Dropout(0.5)(hidden)
    model = keras.Model(inputs, keras.layers.Dense(1, name="last")(hidden))
    optimizer = keras.optimizers.Adam(gradient_accumulation_steps=2)
    model.compile(optimizer, "mse", metrics=["mae"])
    return keras_mwms.distribute(model, **options)


def fit(model, callbacks=None):
    """Three steps of one row a replica."""
    import keras_mwms

    size = keras_mwms.world_size()
    random = np.random.default_rng(2)
    x = random.normal(size=(3 * size, 2)).astype("float32")
    model.fit(
        x,
        x[:, :1],
        batch_size=size,
        epochs=2,
        shuffle=False,
        callbacks=callbacks,
        verbose=0,
    )


def change(variable, difference):
    value = as_numpy(variable)
    value.flat[0] += difference
    variable.assign(value)


def found_by(model):
    import keras_mwms

    return [
        (each.groups, each.difference, str(each).replace(each.path, "PATH"))
        for each in keras_mwms.check_in_sync(model)
    ]


def in_sync():
    """What is found in each hook; and a seed, which differs by design."""
    import keras

    import keras_mwms

    def look(*args, logs=None):
        found.append(keras_mwms.check_in_sync(model))

    found, model = [], a_model()
    hooks = ("train_batch_begin", "train_batch_end", "epoch_end", "test_end")
    callback = keras.callbacks.Callback()
    for hook in hooks:
        setattr(callback, f"on_{hook}", look)
    fit(model, [callback])
    found.append(keras_mwms.check_in_sync(model))
    return found, as_numpy(model.layers[-2].seed_generator.state).tolist()


def test_nothing_is_found_in_sync(cluster):
    for replicas in (2, 3):
        results = cluster(replicas).run(in_sync)
        for found, _ in results:
            assert found == [()] * (2 * (3 + 3 + 1) + 1)
        assert len({str(seed) for _, seed in results}) == replicas
    # Alone, distributed or not.
    assert cluster(1).run(in_sync)[0][0] == [()] * 15


def changed():
    """Changes one variable, looks, and puts it back, for some variables."""
    import keras_mwms

    model = a_model()
    fit(model)
    rank = keras_mwms.rank()
    kernel = model.get_layer("last").kernel
    momentum = next(
        v for v in model.optimizer.variables if "last_kernel_mom" in v.path
    )
    mean = next(v for v in model.weights if v.name == "moving_mean")
    kept = [as_numpy(v) for v in (kernel, momentum, mean)]
    found = {}
    if rank == 1:
        change(kernel, 0.5)
    found["weight"] = found_by(model)
    if rank == 2:
        change(kernel, -0.25)
    found["three values"] = found_by(model)
    kernel.assign(kept[0])
    if rank == 0:
        change(momentum, 0.125)
    found["optimizer"] = found_by(model)
    paths = [each.path for each in keras_mwms.check_in_sync(model)]
    assert paths == [f"optimizer/{momentum.path}"]
    momentum.assign(kept[1])
    if rank == 1:
        change(kernel, math.nan)
    found["nan"] = found_by(model)
    kernel.assign(kept[0])
    if rank == 1:
        change(mean, 1.0)
    found["moving statistics"] = found_by(model)
    mean.assign(kept[2])
    found["nothing"] = found_by(model)
    return found


@pytest.mark.parametrize("replicas", [2, 3])
def test_what_differs_is_found(cluster, replicas):
    others = (0, 2) if replicas == 3 else (0,)
    some = ", ".join(map(str, others))
    near = pytest.approx
    for got in cluster(replicas).run(changed):
        ((groups, difference, text),) = got["weight"]
        assert groups == (others, (1,))
        assert difference == near(0.5, abs=1e-6)
        assert text.startswith(f"'PATH' differs between the ranks {some} | 1 ")
        assert text.endswith(" by up to 0.5")
        ((groups, difference, _),) = got["three values"]
        assert groups == tuple((rank,) for rank in range(replicas))
        assert difference == near(0.5, abs=1e-6)
        ((groups, difference, _),) = got["optimizer"]
        assert groups == ((0,), tuple(range(1, replicas)))
        assert difference == near(0.125, abs=1e-6)
        ((groups, difference, _),) = got["nan"]
        assert (groups, difference) == ((others, (1,)), math.inf)
        assert got["moving statistics"] == []
        assert got["nothing"] == []


def in_another_order(*args):
    """Trains variables that were created in another order a replica."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*the replicas differed")
        return len(in_an_order(*args))


@pytest.mark.parametrize(
    "wrapped",
    [False, pytest.param(True, marks=pytest.mark.backend("torch"))],
)
def test_variables_are_compared_with_their_partners(cluster, wrapped):
    orders = PerRank(["abc", "cab"])
    assert cluster(2).run(in_another_order, orders, wrapped) == [6, 6]


def not_distributed():
    import keras

    import keras_mwms

    return keras_mwms.check_in_sync(keras.Sequential())


def test_a_model_that_is_not_distributed(cluster):
    assert cluster(1).run(not_distributed) == [()]
    for outcome in cluster(2).run_outcomes(not_distributed):
        assert outcome.error_type == "RuntimeError"
        assert "keras_mwms.distribute(model)" in outcome.error_text


def drifting(every, drifts):
    """Rank 1 changes its weights after the second step of the first epoch."""
    import keras

    import keras_mwms

    class Drift(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            steps.append(batch)
            if len(steps) == 2 and drifts:
                if keras.backend.backend() == "jax":
                    model.jax_state_sync()
                change(model.get_layer("last").kernel, 0.5)

    steps = []
    model = a_model(check_in_sync_every=every)
    callbacks = [Drift()] if keras_mwms.rank() == 1 else None
    try:
        fit(model, callbacks)
    except keras_mwms.OutOfSyncError as error:
        return len(steps), str(error)
    return len(steps), None


def test_fit_checks_every_so_many_steps(cluster):
    assert cluster(2).run(drifting, 1, False) == [(0, None), (6, None)]
    # A check after the second step comes after the callbacks of the user.
    for every, stopped in ((1, 2), (2, 2), (3, 3), (5, 5)):
        got = cluster(2).run(drifting, every, True)
        assert [steps for steps, _ in got] == [0, stopped]
        for _, message in got:
            assert f"after step {stopped} of fit" in message
            assert "last/kernel' differs between the ranks 0 | 1" in message
            assert "by up to 0.5" in message
    for outcome in cluster(2).run_outcomes(drifting, PerRank([2, 3]), False):
        assert outcome.error_type == "ValueError"
        assert "Received, in rank order: [2, 3]" in outcome.error_text


@pytest.mark.parametrize("every", [0, -1, True, 2.0, "2"])
def test_every_is_a_positive_number_of_steps(every):
    import keras

    import keras_mwms

    with pytest.raises(ValueError, match=f"Received: {every!r}"):
        keras_mwms.distribute(keras.Sequential(), check_in_sync_every=every)


@pytest.mark.parametrize("function", ["distribute", "check_in_sync"])
def test_models_only(function):
    import keras_mwms

    with pytest.raises(TypeError, match=rf"{function}\(\) takes a Keras model"):
        getattr(keras_mwms, function)([1])

"""Training, evaluating and predicting on every kind is as in one process."""

import warnings

import pytest

from tests.data import kinds
from tests.training.facts import assert_as_alone

ROWS, BATCH = 10, 4
FEW = (7, 1)
FIT = {
    "generator": {"steps_per_epoch": 3, "shuffle": False},
    "grain": {"epochs": 2, "shuffle": False},
    "unknown": {"epochs": 2, "shuffle": False},
}


def compiled():
    import keras

    import keras_mwms

    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.1), "mse", metrics=["mae"])
    return keras_mwms.distribute(model)


def used(kind):
    """What `fit`, `evaluate` and `predict` make of a kind of data."""
    from tests.training.facts import facts_of

    def data(rows=ROWS, size=BATCH):
        return getattr(kinds, kind)(rows, size)

    model = compiled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        history = model.fit(
            data(),
            verbose=0,
            validation_data=data(1),
            **FIT.get(kind, {"epochs": 2}),
        )
        steps = {"steps": 3} if kind == "generator" else {}
        scores = model.evaluate(data(), verbose=0, **steps)
        predicted = model.predict(data(), verbose=0, **steps)
        in_steps = model.fit(
            data(),
            steps_per_epoch=2,
            shuffle=False,
            validation_data=data(7, 3),
            validation_steps=2,
            verbose=0,
        )
        few = {}
        for rows in FEW:
            steps = {"steps": -(-rows // 3)} if kind == "generator" else {}
            score = model.evaluate(data(rows, 3), verbose=0, **steps)
            few[f"scores {rows}"] = score
            few[f"predicted {rows}"] = model.predict(
                data(rows, 3), verbose=0, **steps
            )
    return facts_of(
        model,
        history=history.history,
        in_steps=in_steps.history,
        scores=scores,
        predicted=predicted,
        few=few,
    )


def evaluated_with_other_axes(is_measure):
    """Targets of shape `(rows,)`, then of shape `(rows, 1)`.

    Plain Keras on TensorFlow takes only one of them with one model.
    """
    import keras

    class Data(keras.utils.PyDataset):
        num_batches = 1

        def __init__(self, *batch):
            super().__init__()
            self.batch = batch

        def __getitem__(self, index):
            return self.batch

    model = compiled()
    x, y = kinds.rows_xy(4)
    losses = []
    for targets in (y, y[:, None], y):
        if is_measure:
            model = compiled()
        result = model.evaluate(Data(x, targets), verbose=0, return_dict=True)
        losses.append(result["loss"])
    return losses


def test_targets_with_another_axis(cluster, alone):
    expected = alone(evaluated_with_other_axes, True)
    for losses in cluster(3).run(evaluated_with_other_axes, False):
        assert losses == pytest.approx(expected)


@pytest.mark.parametrize("kind", kinds.ALL)
def test_a_kind_is_used_as_in_one_process(cluster, alone, backend, kind):
    replicas = cluster(3).run(used, kind)
    # Where TensorFlow does not know the end of the data, Keras counts a step
    # that it has no batch for.
    is_measured = backend == "tensorflow" and kind in ("grain", "unknown")
    measure = "tf_data" if is_measured else kind
    expected = alone(used, measure)
    assert expected["predicted"].shape == (ROWS, 1)
    # Case A39: the last batch does not divide.
    for rows in FEW:
        assert expected[f"few predicted {rows}"].shape == (rows, 1)
    assert_as_alone(replicas, expected)

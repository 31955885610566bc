"""What the package relies on in private names of Keras: one test a name.

A new version of Keras that fails here has changed what `_keras.py` touches.
"""

import inspect
import sys
import threading

import numpy as np
import pytest


def public_names():
    from keras_mwms import _keras

    return [
        name
        for name, value in vars(_keras).items()
        if not name.startswith("_")
        and not inspect.ismodule(value)
        and getattr(value, "__module__", None) not in ("typing", "contextlib")
        and name not in ("Callable", "Iterator", "DataAdapter", "Adapt")
    ]


def test_every_name_has_a_test():
    source = inspect.getsource(sys.modules[__name__])
    assert [n for n in public_names() if f"_keras.{n}" not in source] == []


def a_model(**layer):
    import keras

    model = keras.Sequential(
        [keras.Input((2,)), keras.layers.Dense(1, **layer)]
    )
    model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    return model


def data(rows=6):
    x = np.arange(2.0 * rows, dtype="float32").reshape(rows, 2)
    return x / rows, x[:, :1]


def numpy_of(value):
    import keras

    return keras.ops.convert_to_numpy(value)


@pytest.mark.parametrize(
    ("arrays", "can"),
    [
        ((np.zeros(3), None, None), True),
        (({"a": np.zeros(3)}, [np.zeros(3)], None), True),
        ((iter([]), None, None), False),
        ((object(), None, None), False),
    ],
)
def test_which_data_are_arrays(arrays, can):
    from keras_mwms import _keras

    assert _keras.can_convert_arrays(arrays) is can


def test_the_last_rows_are_held_out():
    from keras_mwms import _keras

    (x, y, w), (val_x, val_y, val_w) = _keras.train_validation_split(
        (np.arange(10), {"a": np.arange(10)}, None), validation_split=0.3
    )
    assert numpy_of(x).tolist() == numpy_of(y["a"]).tolist() == [*range(7)]
    assert numpy_of(val_x).tolist() == [7, 8, 9]
    assert numpy_of(val_y["a"]).tolist() == [7, 8, 9]
    assert w is None
    assert val_w is None


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [
        ("sum_over_batch_size", [[4.0, 0.0], [8.0, 0.0]]),
        ("mean", [[4.0, 0.0], [8.0, 0.0]]),
        ("sum", [[2.0, 0.0], [4.0, 0.0]]),
        ("mean_with_sample_weight", [[2.0, 0.0], [4.0, 0.0]]),
    ],
)
def test_how_masks_join_weights(reduction, expected):
    """Means are taken over what the mask leaves, whatever the weights."""
    import keras

    from keras_mwms import _keras

    weights = keras.ops.array([[2.0, 3.0], [4.0, 5.0]])
    mask = keras.ops.array([[True, False], [True, False]])
    got = _keras.apply_mask(weights, mask, "float32", reduction)
    assert numpy_of(got).tolist() == expected


@pytest.mark.parametrize(
    ("values", "weights", "expected"),
    [
        ((3,), (3, 1), [(3, 1), (3, 1)]),
        ((3, 1), (3,), [(3, 1), (3, 1)]),
        ((3, 2), (3, 2, 1), [(3, 2), (3, 2)]),
        ((3, 2), (3,), [(3, 2), (3,)]),
    ],
)
def test_how_weights_and_values_get_one_rank(values, weights, expected):
    import keras

    from keras_mwms import _keras

    got = _keras.squeeze_or_expand_to_same_rank(
        keras.ops.ones(values), keras.ops.ones(weights)
    )
    assert [tuple(each.shape) for each in got] == expected


def test_logs_of_an_epoch_come_from_one_place():
    from keras_mwms import _keras

    model = a_model()
    seen = []

    def logs_of_mine(logs):
        seen.append(sorted(logs))
        return {"loss": float(len(seen))}

    setattr(model, _keras.finish_logs_name, logs_of_mine)
    history = model.fit(
        *data(), validation_data=data(), epochs=2, verbose=0
    ).history
    assert history == {"loss": [1.0, 3.0], "val_loss": [2.0, 4.0]}
    assert model.evaluate(*data(), return_dict=True, verbose=0) == {"loss": 5}
    assert seen == [["loss", "mae"]] * 5


def test_array_adapter_packs_and_chooses_a_batch_size():
    from keras_mwms import _keras

    x, y = data(33)
    adapter = _keras.array_adapter(x, y)
    assert isinstance(adapter, _keras.DataAdapter)
    assert _keras.batch_size_of(adapter) == 32
    assert _keras.batch_size_of(_keras.array_adapter(x, batch_size=7)) == 7
    assert _keras.batch_size_of(_keras.array_adapter(x, steps=3)) == 11
    assert _keras.inputs_of(adapter)[0] is x
    assert len(_keras.inputs_of(adapter)) == 2
    weighted = _keras.array_adapter(x, y > 30, class_weight={0: 2.0, 1: 3.0})
    _, _, weights = _keras.inputs_of(weighted)
    assert set(np.ravel(weights).tolist()) == {2.0, 3.0}
    with pytest.raises(ValueError, match="cardinality"):
        _keras.array_adapter(x, y[1:])


def test_adapters_of_other_data(backend):
    from keras_mwms import _keras

    x, y = data(33)
    adapter = _keras.data_adapter(x, y, steps=3, shuffle=True)
    assert _keras.batch_size_of(adapter) == 11
    with pytest.raises(ValueError, match="Unrecognized data type"):
        _keras.data_adapter(object())
    assert not _keras.is_tf_dataset(x)
    if backend != "tensorflow":
        return
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
    assert _keras.is_tf_dataset(dataset)
    assert _keras.data_adapter(dataset).num_batches == 9


def test_sliceables_take_rows_and_convert(backend):
    from keras_mwms import _keras

    target = "numpy" if backend == "tensorflow" else backend
    wrapped = _keras.sliceables((np.arange(6.0), None), target)[0]
    for rows in (slice(1, 3), np.array([1, 2])):
        part = wrapped[rows]
        for name in ("numpy", "jax_compatible", "torch_compatible"):
            convert = getattr(wrapped, f"convert_to_{name}")
            if name != "torch_compatible" or backend == "torch":
                assert np.asarray(convert(part)).tolist() == [1.0, 2.0]
    # Keras makes float64 what it computes in.
    part = wrapped.convert_to_numpy(wrapped[slice(0, 1)])
    assert str(part.dtype) == "float32"
    assert _keras.all_rows_of(wrapped).tolist() == [*range(6)]


@pytest.mark.parametrize("shuffle", [False, True, "batch"])
def test_the_order_of_rows_is_the_one_of_fit(shuffle):
    import keras

    from keras_mwms import _keras

    class Recorder(keras.Sequential):
        def train_step(self, *args):
            fed.append(numpy_of(args[-1][0]).ravel().astype(int).tolist())
            return super().train_step(*args)

    fed = []
    model = Recorder([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    rows = np.arange(10.0)[:, None]
    # While something is not built, fit begins an epoch to see a batch.
    model.fit(rows, rows, shuffle=False, verbose=0)
    fed.clear()
    keras.utils.set_random_seed(1)
    model.fit(rows, rows, batch_size=4, shuffle=shuffle, verbose=0)

    keras.utils.set_random_seed(1)
    size = 4 if shuffle == "batch" else 10
    start = _keras.index_pipeline(10, size, shuffle)
    drawn = np.concatenate(list(start())).tolist()
    assert drawn == np.concatenate(fed).tolist()
    assert sorted(drawn) == list(range(10))


def test_what_is_built():
    import keras

    from keras_mwms import _keras

    class Parts(keras.Model):
        def __init__(self):
            super().__init__()
            self.part = keras.layers.Dense(1)

        def call(self, inputs):
            return self.part(inputs)

    model = Parts()
    assert not _keras.parts_are_built(model)
    model.part.build((None, 2))
    assert _keras.parts_are_built(model)
    assert not _keras.layers_are_built(model)
    model.compile("sgd", "mse", metrics=["mae"])
    model(np.ones((1, 2)))
    assert _keras.layers_are_built(model)
    assert not _keras.is_built(model)
    _keras.symbolic_build(model, data())
    assert _keras.is_built(model)


def test_a_symbolic_build_creates_all_variables():
    import keras

    from keras_mwms import _keras

    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(), "mse", metrics=["mae"])
    assert not model.variables
    _keras.symbolic_build(model, data())
    # Kernel and bias; then the mean and its count for loss and metric.
    assert len(model.variables) == 2
    assert len(model.metrics_variables) == 4
    assert _keras.trainable_variables_of(model.optimizer) == list(
        model.trainable_variables
    )
    # Steps, learning rate and two moments of each weight.
    assert len(model.optimizer.variables) == 2 + 4


def test_fit_says_when_its_evaluation_is_cached():
    import keras

    from keras_mwms import _keras

    class Recorder(keras.Sequential):
        def evaluate(self, *args, **kwargs):
            cached.append(_keras.is_cached_evaluation(kwargs))
            return super().evaluate(*args, **kwargs)

    cached = []
    model = Recorder([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(*data(), validation_data=data(), verbose=0)
    model.evaluate(*data(), verbose=0)
    assert cached == [True, False]


@pytest.fixture
def adaptable(monkeypatch):
    """Puts back at the end what `adapt_...` changes for good."""
    from keras.src.losses import loss
    from keras.src.metrics import reduction_metrics as means

    for owner, name in [
        (loss.Loss, "__call__"),
        (loss, "reduce_weighted_values"),
        (means.MeanMetricWrapper, "update_state"),
        (means, "reduce_to_samplewise_values"),
    ]:
        monkeypatch.setattr(owner, name, getattr(owner, name))


def unchanged(original):
    return original


@pytest.mark.usefixtures("adaptable")
def test_losses_are_reduced_in_one_place():
    import keras

    from keras_mwms import _keras

    loss = keras.losses.MeanSquaredError(reduction="sum")
    y, p = keras.ops.zeros((3, 1)), keras.ops.ones((3, 1))
    seen = []

    def make(original):
        def reduce(values, sample_weight=None, mask=None, **options):
            seen.append((tuple(values.shape), options["reduction"]))
            return 2 * original(values, sample_weight, mask, **options)

        return reduce

    first = keras.ops.array([1.0, 0.0, 0.0])
    assert float(loss(y, p)) == 3
    _keras.adapt_losses(unchanged, make)
    assert float(loss(y, p)) == 6
    assert float(loss(y, p, sample_weight=first)) == 2
    assert seen == [((3,), "sum")] * 2


@pytest.mark.usefixtures("adaptable")
def test_losses_are_called_in_one_place():
    from keras_mwms import _keras

    def make(original):
        def call(self, y_true, y_pred, sample_weight=None):
            assert self.name == "mse"
            return 10 * original(self, y_true, y_pred, sample_weight)

        return call

    x, y = data()
    model = a_model(kernel_initializer="zeros")
    before = model.evaluate(x, y, return_dict=True, verbose=0)["loss"]
    _keras.adapt_losses(make, unchanged)
    model.compile("sgd", "mse")
    after = model.evaluate(x, y, return_dict=True, verbose=0)["loss"]
    assert after == pytest.approx(10 * before)


@pytest.mark.usefixtures("adaptable")
def test_means_of_numbers_go_through_one_reduction():
    import keras

    from keras_mwms import _keras

    def make(original):
        def reduce(values, sample_weight, reduce_fn, dtype):
            assert sample_weight is None
            assert reduce_fn is keras.ops.mean
            return original(values, 0.25, reduce_fn, dtype)

        return reduce

    mean = keras.metrics.Mean()
    mean.update_state(keras.ops.array(3.0))
    _keras.adapt_means(unchanged, make)
    mean.update_state(keras.ops.array(8.0))
    assert float(mean.result()) == (8 * 0.25 + 3) / 1.25


@pytest.mark.usefixtures("adaptable")
def test_metric_functions_are_called_in_one_place():
    import keras

    from keras_mwms import _keras

    def make(original):
        def update_state(self, y_true, y_pred, sample_weight=None):
            return original(self, y_true, y_pred + 1, sample_weight)

        return update_state

    _keras.adapt_means(make, unchanged)
    for metric in (
        keras.metrics.MeanAbsoluteError(),
        keras.metrics.MeanMetricWrapper(lambda y, p: keras.ops.mean(p - y)),
    ):
        metric.update_state(keras.ops.zeros((3, 1)), keras.ops.ones((3, 1)))
        assert float(metric.result()) == 2


def test_values_of_losses_and_metrics_before_they_are_reduced():
    import keras

    from keras_mwms import _keras

    y, p = keras.ops.zeros((3, 2)), keras.ops.ones((3, 2))

    def in_one(y_true, y_pred, times=1.0):
        return keras.ops.sum(y_pred - y_true) * times

    for of, shape, total in [
        (keras.losses.MeanSquaredError(), (3,), 3),
        (keras.losses.Dice(), (), 1),
        (keras.metrics.MeanSquaredError(), (3,), 3),
        (keras.metrics.MeanMetricWrapper(in_one, times=2.0), (), 12),
    ]:
        values = numpy_of(_keras.values_of(of, y, p))
        assert values.shape == shape
        assert values.sum() == pytest.approx(total)


def test_masks_are_attached_to_tensors():
    import keras

    from keras_mwms import _keras

    tensor = keras.ops.zeros((2, 3))
    assert _keras.mask_of(tensor) is None
    assert _keras.mask_of(None) is None
    _keras.set_mask(tensor, keras.ops.ones((2, 3), "bool"))
    assert numpy_of(_keras.mask_of(tensor)).all()
    masked = keras.layers.Masking()(keras.ops.zeros((2, 3, 1)))
    assert numpy_of(_keras.mask_of(masked)).tolist() == [[False] * 3] * 2


def test_layers_at_every_depth():
    import keras

    from keras_mwms import _keras

    inner = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model = keras.Sequential([inner, keras.layers.BatchNormalization()])
    names = [type(layer).__name__ for layer in _keras.layers_of(model)]
    assert names.count("Sequential") == 2
    assert {"Dense", "BatchNormalization"} <= set(names)


@pytest.mark.backend("torch")
def test_where_variables_stand_on_torch():
    import keras
    import torch

    from keras_mwms import _keras

    layer = keras.layers.TorchModuleWrapper(torch.nn.Linear(2, 1))
    paths = [name for name, _ in layer.named_parameters(remove_duplicate=False)]
    own = [p for p in paths if _keras.TORCH_VARIABLES not in p]
    assert own == ["module.weight", "module.bias"]
    assert len(paths) == 4


def test_seeds_are_known_by_their_name():
    import keras

    from keras_mwms import _keras

    model = keras.Sequential(
        [
            keras.Input((2,)),
            keras.layers.Dropout(0.5, seed=4),
            keras.layers.BatchNormalization(),
            keras.layers.GaussianNoise(0.1),
        ]
    )
    seeds = [v for v in model.non_trainable_variables if _keras.is_seed(v)]
    assert len(seeds) == 2
    assert [v.shape for v in seeds] == [(2,)] * 2
    assert int(numpy_of(seeds[0].value)[0]) == 4
    assert not any(map(_keras.is_seed, model.weights))


@pytest.mark.parametrize("scaled", [False, True])
def test_accumulated_gradients(scaled):
    import keras

    from keras_mwms import _keras

    model = a_model(kernel_initializer="zeros")
    plain = keras.optimizers.SGD(0.1)
    assert _keras.accumulators_of(plain) == []
    inner = keras.optimizers.SGD(0.1, gradient_accumulation_steps=3)
    optimizer = keras.optimizers.LossScaleOptimizer(inner) if scaled else inner
    assert _keras.accumulators_of(optimizer) == []
    model.compile(optimizer, "mse")
    x, y = data(4)
    for steps in (1, 2, 3):
        model.train_on_batch(x, y)
        sums = [numpy_of(v.value) for v in _keras.accumulators_of(optimizer)]
        assert [s.shape for s in sums] == [(2, 1), (1,)]
        assert all(np.any(s) for s in sums) == (steps < 3)
        # Counted are the small steps, while `iterations` counts updates.
        assert int(_keras.micro_steps_of(inner)) == steps
        assert int(optimizer.iterations) == steps // 3


def test_accumulators_of_what_is_overwritten_are_left_out():
    import keras

    from keras_mwms import _keras

    dense = keras.layers.Dense(1, dtype="float8_from_float32")
    model = keras.Sequential([keras.Input((2,)), dense])
    optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=3)
    optimizer.build(model.trainable_variables)
    shapes = [v.shape for v in _keras.accumulators_of(optimizer)]
    assert shapes == [dense.kernel.shape, dense.bias.shape]
    assert len(model.trainable_variables) == 8


@pytest.mark.parametrize("scaled", [False, True])
def test_gradients_are_clipped_once_an_update(backend, scaled):
    """After they are accumulated and unscaled; in all steps on JAX."""
    import keras

    from keras_mwms import _keras

    inner = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
    optimizer = (
        keras.optimizers.LossScaleOptimizer(inner, initial_scale=8.0)
        if scaled
        else inner
    )
    model = a_model(kernel_initializer="zeros")
    model.compile(optimizer, "mse", run_eagerly=True)
    clipped = []

    def around(original):
        def clip(grads):
            clipped.append(len(list(grads)))
            return original(grads)

        return clip

    _keras.wrap_clipping(inner, around)
    for _ in range(4):
        model.train_on_batch(*data(4))
    assert clipped == [2] * (4 if backend == "jax" else 2)


def test_defaults_of_callbacks():
    import keras

    from keras_mwms import _keras

    class Own(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            pass

    plain = keras.callbacks.LambdaCallback(on_epoch_end=print)
    given = keras.callbacks.LambdaCallback(on_train_batch_end=print)
    assert _keras.is_default(plain.on_train_batch_end)
    assert not _keras.is_default(given.on_train_batch_end)
    assert not _keras.is_default(Own().on_train_batch_end)
    assert _keras.is_default(Own().on_train_batch_begin)
    assert not _keras.is_default(keras.callbacks.TerminateOnNaN().on_batch_end)


def test_callbacks_are_called_on_the_thread_that_trains():
    import keras

    from keras_mwms import _keras

    class Own(keras.callbacks.Callback):
        async_safe = True
        threads = ()

        def on_train_batch_end(self, batch, logs=None):
            self.threads += (threading.get_ident(),)

    own = Own()
    model = a_model()
    callbacks = keras.callbacks.CallbackList(
        [own], add_history=True, model=model
    )
    is_async = callbacks._async_train
    with _keras.called_synchronously(callbacks):
        model.fit(*data(), callbacks=callbacks, verbose=0)
    assert own.threads == (threading.get_ident(),)
    assert callbacks._async_train == is_async
    model.fit(*data(), callbacks=callbacks, verbose=0)
    in_pool = own.threads[1] != own.threads[0]
    assert in_pool == is_async == (keras.backend.backend() != "tensorflow")


def test_where_batch_normalization_takes_its_statistics():
    import keras

    from keras_mwms import _keras

    layer = keras.layers.BatchNormalization(axis=1, momentum=0.0)
    x = np.arange(12.0, dtype="float32").reshape(2, 3, 2)
    layer.build(x.shape)
    assert _keras.reduction_axes_of(layer) == [0, 2]
    seen = []

    def around(original):
        def moments(layer, inputs, mask):
            mean, variance = original(layer, inputs, mask)
            for mine, theirs in zip(
                _keras.local_moments(layer, inputs, mask),
                (mean, variance),
                strict=True,
            ):
                np.testing.assert_allclose(
                    numpy_of(mine), numpy_of(theirs), rtol=1e-6
                )
            seen.append(mask is not None)
            return mean + 1.0, variance

        return moments

    kept = keras.layers.BatchNormalization._moments
    try:
        _keras.wrap_moments(around)
        layer(x, training=True)
        np.testing.assert_allclose(
            numpy_of(layer.moving_mean), x.mean((0, 2)) + 1.0
        )
        layer(x, training=True, mask=np.ones((2, 3), bool))
        layer(x, training=False)
    finally:
        keras.layers.BatchNormalization._moments = kept
    assert seen == [False, True]


def test_symbolic_calls_are_known():
    import keras

    from keras_mwms import _keras

    assert not _keras.in_symbolic_scope()
    with keras.SymbolicScope():
        assert _keras.in_symbolic_scope()
    assert not _keras.in_symbolic_scope()


def in_batches(rows=6, size=2):
    x, y = data(rows)
    return [(x[i : i + size], y[i : i + size]) for i in range(0, rows, size)]


def a_generator(batches):
    yield from batches


def a_py_dataset(batches, **options):
    import keras

    class Data(keras.utils.PyDataset):
        def __len__(self):
            return len(batches)

        def __getitem__(self, index):
            return batches[index]

    return Data(**options)


def test_which_adapter_takes_which_data():
    from keras_mwms import _keras

    for of, adapter in [
        (np.zeros((2, 1)), _keras.ArrayAdapter),
        (a_generator(in_batches()), _keras.GeneratorAdapter),
        (a_py_dataset(in_batches()), _keras.PyDatasetAdapter),
    ]:
        assert type(_keras.data_adapter(of)) is adapter


@pytest.mark.needs("tensorflow", "torch", "grain")
def test_which_adapter_takes_data_of_which_library():
    import grain
    import tensorflow as tf
    import torch

    from keras_mwms import _keras

    x, _ = data()
    maps = grain.MapDataset.source(x).batch(2)
    loader = grain.DataLoader(
        data_source=x,
        sampler=grain.samplers.SequentialSampler(6),
        operations=[grain.transforms.Batch(2)],
    )
    for of, adapter in [
        (tf.data.Dataset.from_tensors(x), _keras.TensorFlowAdapter),
        (torch.utils.data.DataLoader(x), _keras.LoaderAdapter),
        (maps, _keras.GrainAdapter),
        (maps.to_iter_dataset(), _keras.GrainAdapter),
        (loader, _keras.GrainAdapter),
    ]:
        assert type(_keras.data_adapter(of)) is adapter


def test_a_generator_goes_on_behind_the_batches_it_was_peeked_at():
    from keras_mwms import _keras

    batches = in_batches(8)
    adapter = _keras.data_adapter(a_generator(batches))
    peeked = _keras.peeked_batches(adapter)
    assert all(a is b for a, b in zip(peeked, batches[:2], strict=True))
    taken = list(_keras.raw_batches(adapter))
    assert all(a is b for a, b in zip(taken, batches, strict=True))
    # Keras begins each pass with the two batches it has looked at.
    again = list(_keras.raw_batches(adapter))
    assert [batch[0] is batches[i][0] for i, batch in enumerate(again)] == [
        True,
        True,
    ]


@pytest.mark.parametrize("workers", [1, 2])
def test_batches_of_a_py_dataset(workers):
    from keras_mwms import _keras

    batches = in_batches()
    dataset = a_py_dataset(batches, workers=workers)
    adapter = _keras.PyDatasetAdapter(dataset)
    assert (adapter.enqueuer is not None) == (workers > 1)
    adapter.on_epoch_begin()
    taken = list(_keras.raw_batches(adapter))
    adapter.on_epoch_end()
    assert all(a[0] is b[0] for a, b in zip(taken, batches, strict=True))


def test_items_of_a_py_dataset_get_their_form():
    from keras_mwms import _keras

    x, y = data(2)
    adapter = _keras.PyDatasetAdapter(
        a_py_dataset([]), class_weight={0: 2.0, 1: 3.0}
    )
    assert _keras.standardized(adapter, x) == (x,)
    whole = _keras.standardized(adapter, [x, y > 1])
    assert numpy_of(whole[2]).ravel().tolist() == [2.0, 3.0]
    assert _keras.standardized(adapter, {"a": x})["a"] is x


@pytest.mark.needs("tensorflow", "torch", "scipy")
def test_arrays_are_known_by_their_library():
    import scipy.sparse
    import tensorflow as tf
    import torch

    from keras_mwms import _keras

    arrays = {
        "tf": tf.ones(2),
        "tf sparse": tf.sparse.eye(2),
        "tf ragged": tf.ragged.constant([[1.0, 1.0], []]),
        "torch": torch.ones(2),
        "scipy": scipy.sparse.eye(2),
        "numpy": np.ones(2),
        "none": None,
    }
    for is_kind, expected in [
        (_keras.is_tf_tensor, ["tf", "tf sparse", "tf ragged"]),
        (_keras.is_tf_sparse, ["tf sparse"]),
        (_keras.is_tf_composite, ["tf sparse", "tf ragged"]),
        (_keras.is_torch_tensor, ["torch"]),
        (_keras.is_scipy_sparse, ["scipy"]),
        (_keras.is_jax_sparse, []),
    ]:
        assert [k for k, v in arrays.items() if is_kind(v)] == expected
    for name, dense in [
        ("tf", [1, 1]),
        ("tf sparse", [[1, 0], [0, 1]]),
        ("tf ragged", [[1, 1], [0, 0]]),
    ]:
        array = _keras.tf_to_numpy(arrays[name])
        assert isinstance(array, np.ndarray)
        assert array.tolist() == dense


@pytest.mark.needs("tensorflow", "scipy")
def test_sparse_arrays_become_tensorflows():
    import scipy.sparse

    from keras_mwms import _keras

    tensor = _keras.scipy_to_tf(scipy.sparse.csr_array(np.eye(2)))
    assert _keras.is_tf_sparse(tensor)
    assert _keras.tf_to_numpy(tensor).tolist() == [[1, 0], [0, 1]]


@pytest.mark.backend("jax")
@pytest.mark.needs("tensorflow", "scipy")
def test_sparse_arrays_become_those_of_jax():
    import scipy.sparse
    import tensorflow as tf
    from jax.experimental.sparse import JAXSparse

    from keras_mwms import _keras

    eye = [[1, 0], [0, 1]]
    for array in (
        _keras.scipy_to_jax(scipy.sparse.csr_array(np.eye(2))),
        _keras.tf_sparse_to_jax(tf.sparse.eye(2)),
    ):
        assert isinstance(array, JAXSparse)
        assert _keras.is_jax_sparse(array)
        assert array.todense().tolist() == eye
        tensor = _keras.jax_sparse_to_tf(array)
        assert _keras.tf_to_numpy(tensor).tolist() == eye

"""Every private name of Keras that this package touches, and no other.

`tests/test_keras_private.py` says what is relied on. Written against Keras
3.15.
"""

from collections.abc import Callable
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
from keras.src import utils as _utils
from keras.src.backend.common import masking as _masking
from keras.src.backend.common import symbolic_scope as _symbolic
from keras.src.losses import loss as _loss
from keras.src.metrics import reduction_metrics as _means
from keras.src.trainers import data_adapters as _adapters
from keras.src.trainers.data_adapters import array_data_adapter as _arrays
from keras.src.trainers.data_adapters import array_slicing as _slicing
from keras.src.trainers.data_adapters import data_adapter_utils as _data
from keras.src.trainers.data_adapters import generator_data_adapter as _gen
from keras.src.trainers.data_adapters import grain_dataset_adapter as _grain
from keras.src.trainers.data_adapters import py_dataset_adapter as _py
from keras.src.trainers.data_adapters import tf_dataset_adapter as _tf
from keras.src.trainers.data_adapters import torch_data_loader_adapter as _torch
from keras.src.trainers.data_adapters.data_adapter import (
    DataAdapter as DataAdapter,
)

ArrayAdapter = _arrays.ArrayDataAdapter
GeneratorAdapter = _gen.GeneratorDataAdapter
GrainAdapter = _grain.GrainDatasetAdapter
LoaderAdapter = _torch.TorchDataLoaderAdapter
PyDatasetAdapter = _py.PyDatasetAdapter
TensorFlowAdapter = _tf.TFDatasetAdapter

is_jax_sparse = _data.is_jax_sparse
is_scipy_sparse = _data.is_scipy_sparse
is_tf_sparse = _data.is_tensorflow_sparse
is_tf_tensor = _data.is_tensorflow_tensor
is_torch_tensor = _data.is_torch_tensor
jax_sparse_to_tf = _data.jax_sparse_to_tf_sparse
scipy_to_jax = _data.scipy_sparse_to_jax_sparse
scipy_to_tf = _data.scipy_sparse_to_tf_sparse
tf_sparse_to_jax = _data.tf_sparse_to_jax_sparse

can_convert_arrays = _arrays.can_convert_arrays
train_validation_split = _slicing.train_validation_split
apply_mask = _loss.apply_mask
squeeze_or_expand_to_same_rank = _loss.squeeze_or_expand_to_same_rank
in_symbolic_scope = _symbolic.in_symbolic_scope

_moments = keras.layers.BatchNormalization._moments

# `Trainer._get_metrics_result_or_logs(logs)`: the one place from which fit
# and evaluate take the logs of a finished epoch, on every backend.
finish_logs_name = "_get_metrics_result_or_logs"


# Where a layer on PyTorch keeps its variables for `named_parameters`. What
# stands elsewhere belongs to a module that the layer wraps.
TORCH_VARIABLES = "_torch_params"


def array_adapter(*args: Any, **kwargs: Any) -> DataAdapter:
    """Keras's own adapter for arrays: it checks and packs what users pass."""
    return _arrays.ArrayDataAdapter(*args, **kwargs)


def is_tf_dataset(x: Any) -> bool:
    """Whether `x` is a `tf.data.Dataset`, without importing TensorFlow."""
    return bool(_adapters.is_tf_dataset(x))


def data_adapter(
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    steps: int | None = None,
    **options: Any,
) -> DataAdapter:
    """The adapter that `fit` would make of the data: it checks it."""
    return _adapters.get_data_adapter(
        x, y, sample_weight, steps_per_epoch=steps, **options
    )


def raw_batches(adapter: DataAdapter) -> Iterator[Any]:
    """Starts a pass of a `GeneratorAdapter` or `PyDatasetAdapter`.

    Args:
        adapter: the adapter.

    Returns:
        An iterator over the batches as the user's code makes them, in the
        form `(x,)`, `(x, y)` or `(x, y, sample_weight)`.
    """
    if isinstance(adapter, GeneratorAdapter):
        return iter(adapter.generator())
    return iter(adapter._get_iterator())


def peeked_batches(adapter: DataAdapter) -> list[Any]:
    """The batches that a `GeneratorAdapter` has looked at.

    Its passes begin with them.
    """
    batches: list[Any] = adapter._first_batches
    return batches


def standardized(adapter: DataAdapter, batch: Any) -> Any:
    """What a `PyDatasetAdapter` makes of an item of its dataset."""
    return adapter._standardize_batch(batch)


def is_tf_composite(leaf: Any) -> bool:
    """Whether a leaf is a sparse or a ragged tensor of TensorFlow."""
    return bool(_data.is_tensorflow_sparse(leaf)) or bool(
        _data.is_tensorflow_ragged(leaf)
    )


def tf_to_numpy(tensor: Any) -> np.ndarray:
    """A tensor of TensorFlow, of any kind, as a dense NumPy array."""
    from keras.src.backend.tensorflow.core import convert_to_numpy

    return np.asarray(convert_to_numpy(tensor))


def inputs_of(adapter: DataAdapter) -> Any:
    """The packed `(x, y, sample_weight)` of an array adapter."""
    return adapter._inputs


def batch_size_of(adapter: DataAdapter) -> int:
    """The batch size that an array adapter settled on."""
    return int(adapter._batch_size)


def sliceables(inputs: Any, target: str) -> Any:
    """Wraps arrays so that `wrapped[rows]` and `convert_to_...` work.

    Args:
        inputs: arrays. Floats are cast to `floatx`, all of them at once.
        target: "numpy", "jax" or "torch": for which of them.

    Returns:
        The wrapped arrays.
    """
    return _slicing.convert_to_sliceable(inputs, target_backend=target)


def all_rows_of(sliceable: Any) -> Any:
    """The array in a wrapper of a dense one, cast if need be."""
    return sliceable.array


def index_pipeline(
    rows: int, batch_size: int, shuffle: bool | str
) -> Callable[[], Iterator[np.ndarray]]:
    """Keras's own order of rows, drawn as one process would draw it.

    Keras shuffles with the random generator of each backend in its own way.
    Its array adapter, given the row numbers as data, tells the order.

    Args:
        rows: number of rows.
        batch_size: rows a batch.
        shuffle: as `fit` takes it.

    Returns:
        A function that starts a new epoch: an iterator over arrays of row
        numbers.
    """
    adapter = _arrays.ArrayDataAdapter(
        np.arange(rows), batch_size=batch_size, shuffle=shuffle
    )
    start: Callable[[], Any] = {
        "jax": lambda: adapter.get_jax_iterator,
        "tensorflow": lambda: adapter.get_tf_dataset().__iter__,
        "torch": lambda: adapter.get_torch_dataloader().__iter__,
    }[keras.backend.backend()]()
    return lambda: map(keras.ops.convert_to_numpy, start())


def layers_are_built(model: keras.Model) -> bool:
    """Whether the model and its layers at every depth are built."""
    return all(layer.built for layer in model._flatten_layers())


def parts_are_built(model: keras.Model) -> bool:
    """Whether the layers of a model are built, itself left aside."""
    return all(
        layer.built for layer in model._flatten_layers(include_self=False)
    )


def is_built(model: keras.Model) -> bool:
    """Whether the model, its metrics and its loss have their variables."""
    parts = [model._compile_metrics, model._compile_loss]
    return layers_are_built(model) and all(
        part is None or part.built for part in parts
    )


def symbolic_build(model: keras.Model, batch: Any) -> None:
    """Creates the variables of the model, its metrics and its optimizer.

    Args:
        model: a compiled model.
        batch: a batch as `train_step` gets it.
    """
    model._symbolic_build(data_batch=batch)


def is_cached_evaluation(kwargs: dict[str, Any]) -> bool:
    """Whether `evaluate` is called by `fit` on the data it holds already."""
    return bool(kwargs.get("_use_cached_eval_dataset"))


Adapt = Callable[[Callable[..., Any]], Callable[..., Any]]


def adapt_losses(of_call: Adapt, of_reduction: Adapt) -> None:
    """Changes, for good, how losses are computed.

    Args:
        of_call: gets `Loss.__call__(self, y_true, y_pred, sample_weight)` and
            returns what stands in for it.
        of_reduction: likewise `reduce_weighted_values(values, sample_weight,
            mask, reduction, dtype)`, through which `Loss.__call__` goes.
    """
    _loss.Loss.__call__ = of_call(_loss.Loss.__call__)
    _loss.reduce_weighted_values = of_reduction(_loss.reduce_weighted_values)


def adapt_means(of_update: Adapt, of_reduction: Adapt) -> None:
    """Changes, for good, how metrics take means.

    Args:
        of_update: gets `MeanMetricWrapper.update_state(self, y_true, y_pred,
            sample_weight)` and returns what stands in for it.
        of_reduction: likewise `reduce_to_samplewise_values(values,
            sample_weight, reduce_fn, dtype)`, through which
            `Mean.update_state` goes.
    """
    wrapper = _means.MeanMetricWrapper
    wrapper.update_state = of_update(wrapper.update_state)
    _means.reduce_to_samplewise_values = of_reduction(
        _means.reduce_to_samplewise_values
    )


def values_of(of: Any, y_true: Any, y_pred: Any) -> Any:
    """What a loss or a wrapped metric computes before it is reduced.

    Args:
        of: a `Loss` or a `MeanMetricWrapper`.
        y_true: targets.
        y_pred: predictions.

    Returns:
        A tensor; of shape `(rows, ...)` if the rows are not reduced yet.
    """
    if isinstance(of, _means.MeanMetricWrapper):
        return of._fn(y_true, y_pred, **of._fn_kwargs)
    y_true, y_pred = keras.tree.map_structure(
        lambda x: keras.ops.convert_to_tensor(x, dtype=of.dtype),
        (y_true, y_pred),
    )
    return of.call(y_true, y_pred)


mask_of = _masking.get_keras_mask
set_mask = _masking.set_keras_mask


def trainable_variables_of(optimizer: keras.optimizers.Optimizer) -> list[Any]:
    """The variables that an optimizer was built with."""
    return list(optimizer._trainable_variables)


def layers_of(model: keras.Model) -> list[keras.layers.Layer]:
    """The model's layers at every depth."""
    return list(model._flatten_layers())


def is_seed(variable: Any) -> bool:
    """Whether a variable is the state of a `keras.random.SeedGenerator`."""
    return str(variable.name).startswith("seed_generator_state")


def accumulators_of(optimizer: keras.optimizers.Optimizer) -> list[Any]:
    """The variables in which an optimizer sums gradients up for an update.

    Not those of variables that are overwritten: they hold a maximum.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if not inner.gradient_accumulation_steps or not inner.built:
        return []
    return [
        accumulator
        for variable, accumulator in zip(
            inner._trainable_variables,
            inner._accumulated_gradients,
            strict=True,
        )
        if not getattr(variable, "overwrite_with_gradient", False)
    ]


def is_default(method: Callable[..., Any]) -> bool:
    """Whether a callback's method is Keras's own, which does nothing."""
    return bool(_utils.is_default(method))


@contextmanager
def called_synchronously(
    callbacks: keras.callbacks.CallbackList,
) -> Iterator[None]:
    """Calls the batch hooks of training on the thread that trains.

    On PyTorch and JAX Keras settles when a list is made whether it calls
    them on a thread pool.

    Args:
        callbacks: a list that does not train now.
    """
    before = callbacks._async_train
    callbacks._async_train = False
    try:
        yield
    finally:
        callbacks._async_train = before


def wrap_clipping(
    optimizer: keras.optimizers.Optimizer,
    around: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> None:
    """Puts something around the clipping of accumulated gradients.

    It is the first thing that an optimizer does with them: on TensorFlow and
    PyTorch in the micro-steps that update alone, on JAX in all.

    Args:
        optimizer: the optimizer.
        around: gets its `clip(grads)` and returns what stands in for it.
    """
    optimizer._clip_gradients = around(optimizer._clip_gradients)


def micro_steps_of(optimizer: keras.optimizers.Optimizer) -> Any:
    """How often an optimizer was applied, updates or not: a variable.

    `optimizer.iterations` counts updates alone.
    """
    return optimizer._iterations


def wrap_moments(
    around: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> None:
    """Puts something around the statistics that batch normalization takes.

    They are taken in training alone; the moving ones and `renorm` build on
    them.

    Args:
        around: gets Keras's `moments(layer, inputs, mask)`, which returns
            mean and variance, and returns what stands in for it.
    """
    keras.layers.BatchNormalization._moments = around(_moments)


def local_moments(layer: Any, inputs: Any, mask: Any) -> tuple[Any, Any]:
    """Keras's statistics of an unsynchronized batch normalization.

    Args:
        layer: a built `BatchNormalization`, synchronized or not.
        inputs: its inputs, not of a small floating dtype.
        mask: as the layer takes it.

    Returns:
        `(mean, variance)`, each of one number a channel.
    """
    if mask is None:
        mean, variance = keras.ops.moments(inputs, axes=layer._reduction_axes)
    else:
        # Keras synchronizes nothing here.
        mean, variance = _moments(layer, inputs, mask)
    return mean, variance


def reduction_axes_of(layer: Any) -> list[int]:
    """The axes over which a batch normalization takes its statistics."""
    return list(layer._reduction_axes)

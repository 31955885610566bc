"""The training hooks on TensorFlow."""

import warnings
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_mwms import _keras
from keras_mwms.collectives import Collectives
from keras_mwms.training import losses
from keras_mwms.training import metrics
from keras_mwms.training import state
from keras_mwms.training import step as steps
from keras_mwms.training.backend import DENSE
from keras_mwms.training.backend import NONE
from keras_mwms.training.backend import SPARSE
from keras_mwms.training.backend import Backend
from keras_mwms.training.backend import Backward
from keras_mwms.training.backend import Forward
from keras_mwms.training.backend import check_reduced


class TensorFlowBackend(Backend):
    """TensorFlow traces a step into a graph."""

    # Keras lets the first step create the variables on this backend.
    peeks_to_build = False

    def kind(self, grad: Any) -> int:
        """`NONE`, `SPARSE` or `DENSE`."""
        if grad is None:
            return NONE
        return SPARSE if isinstance(grad, tf.IndexedSlices) else DENSE

    def as_kind(self, grad: Any, variable: Any, kind: int) -> Any:
        """Turns a gradient into a kind that outweighs its own."""
        if self.kind(grad) == kind:
            return grad
        value = tf.convert_to_tensor(variable)
        if kind == DENSE:
            return (
                _hidden_zeros(value)
                if grad is None
                else tf.convert_to_tensor(grad)
            )
        # Another graph than the one in which all agreed may have a dense
        # gradient: as slices it has all rows.
        none = _hidden_zeros(value[:1])
        rows = none if grad is None else grad
        first = tf.cast(tf.reshape(none, [-1])[0] > 0, tf.int32)
        return tf.IndexedSlices(
            rows, first + tf.range(tf.shape(rows)[0]), tf.shape(value)
        )

    def scale(
        self,
        grads: Sequence[Any],
        variables: Sequence[Any],
        share: Any,
        may_be_empty: bool,
    ) -> list[Any]:
        """Multiplies gradients by the share."""

        def scaled(grad: Any) -> Any:
            if grad is None:
                return None
            if isinstance(grad, tf.IndexedSlices):
                return tf.IndexedSlices(
                    scaled(grad.values), grad.indices, grad.dense_shape
                )
            factor = tf.cast(share, grad.dtype)
            if may_be_empty:
                grad = tf.where(tf.cast(share, tf.float32) > 0, grad, 0)
            return grad * factor

        return [scaled(g) for g in grads]

    def differentiable(
        self,
        step: Any,
        name: str,
        forward: Forward,
        backward: Backward,
        tensor: Any,
    ) -> Any:
        """Calls a function that has a gradient of its own."""

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def call(tensor: Any) -> Any:
            result, _ = forward(tensor, None)

            def of_result(gradient: Any) -> Any:
                # Horovod's operations have derivatives, which would be wrong
                # here.
                return tf.raw_ops.PreventGradient(
                    input=backward(tensor, result, gradient),
                    message="The gradient of synchronized statistics has no "
                    "derivative. Use BatchNormalization(synchronized=False).",
                )

            return result, of_result

        return call(tensor)

    def has_strategy(self) -> bool:
        """Whether a strategy of `tf.distribute` is at work."""
        return bool(tf.distribute.has_strategy())

    def outside_graph(self, fn: Callable[[], Any]) -> Any:
        """Runs `fn` eagerly, also while a graph is being traced."""
        with tf.init_scope():
            return fn()

    def train_step(
        self, model: Any, ring: Collectives, original: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Makes a `train_step` that knows its share."""

        def train_step(data: Any) -> Any:
            logs, step = _run(model, ring, original, data)
            check_reduced(step, bool(model.trainable_variables))
            return logs

        return train_step

    def test_step(
        self, model: Any, ring: Collectives, original: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Makes a `test_step` that knows its share."""

        def test_step(data: Any) -> Any:
            return _run(model, ring, original, data)[0]

        return test_step

    def build(self, model: Any, batch: Any) -> None:
        """Creates the variables of a model, its metrics and its optimizer."""
        batch = keras.tree.map_structure(_as_text, batch)
        try:
            super().build(model, batch)
        except RuntimeError:
            # A model without a call of its own (a GAN, say) trains here all
            # the same, if its parts are there.
            if not _keras.parts_are_built(model):
                raise

    def prepare_compiled(self, model: Any) -> None:
        """Turns XLA off, for which Horovod has no operations."""
        if model.jit_compile:
            model.jit_compile = False
            warnings.warn(
                "jit_compile=True is turned off: Horovod's operations cannot "
                "be compiled by XLA in TensorFlow. Pass jit_compile=False to "
                "compile() to silence this.",
                stacklevel=2,
            )


def _hidden_zeros(like: Any) -> Any:
    """Zeros that TensorFlow does not know for constants.

    Its graph optimizer runs operations on constants once, while it folds
    them, and never again; other replicas would wait from the next step on.
    """
    zeros = tf.zeros_like(like)
    return tf.where(tf.equal(like, like), zeros, like)


def _as_text(leaf: Any) -> Any:
    """A tensor of an array of texts, for which Keras has no dtype."""
    is_text = isinstance(leaf, np.ndarray) and leaf.dtype.kind in "OSU"
    return tf.convert_to_tensor(leaf) if is_text else leaf


def _run(
    model: Any, ring: Collectives, original: Callable[..., Any], data: Any
) -> tuple[Any, steps.Step]:
    data, step = steps.opened(ring, data)
    variables = state.that_depend_on_rows(model) if step.may_be_empty else []
    before = [tf.identity(v.value) for v in variables]
    with losses.entered(step):
        logs = metrics.of_all_rows(step, model, original(data))
    # A step without rows leaves no trace in them.
    for variable, value in zip(variables, before, strict=True):
        variable.assign(tf.where(step.share > 0, variable.value, value))
    return logs, step


BACKEND = TensorFlowBackend()

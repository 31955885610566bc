"""What differs between backends in a training step."""

import abc
import importlib
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

from keras_mwms import _keras
from keras_mwms.collectives import Collectives

# Kinds of gradients, in the order in which one outweighs another.
NONE, SPARSE, DENSE = range(3)

Reduce = Callable[[list[Any]], list[Any]]
Forward = Callable[[Any, Any], tuple[Any, Any]]
Backward = Callable[[Any, Any, Any], Any]


class Backend(abc.ABC):
    """One backend's part of the training hooks.

    Attributes:
        never_none: the backend has no None gradients.
        none_varies: which gradients are None may change from step to step.
        peeks_to_build: Keras takes a batch from the data to build a model.
    """

    never_none = False
    none_varies = False
    peeks_to_build = True

    @abc.abstractmethod
    def kind(self, grad: Any) -> int:
        """`NONE`, `SPARSE` or `DENSE`."""

    @abc.abstractmethod
    def as_kind(self, grad: Any, variable: Any, kind: int) -> Any:
        """Turns a gradient into a kind that outweighs its own.

        Args:
            grad: a gradient of this replica, or None.
            variable: the variable it belongs to.
            kind: the kind wanted.

        Returns:
            The gradient; zeros where it was None.
        """

    @abc.abstractmethod
    def scale(
        self,
        grads: Sequence[Any],
        variables: Sequence[Any],
        share: Any,
        may_be_empty: bool,
    ) -> list[Any]:
        """Multiplies gradients by the share.

        Args:
            grads: gradients or None.
            variables: the variables they belong to.
            share: a scalar in 0..1.
            may_be_empty: whether it can be 0; then 0 comes out whatever the
                gradient of a filler row was, nan too.

        Returns:
            The scaled gradients, whose memory may be overwritten.
        """

    def on_update(
        self, optimizer: Any, grads: list[Any], reduce: Reduce
    ) -> list[Any]:
        """Reduces accumulated gradients in the steps that update.

        Args:
            optimizer: the optimizer that accumulates.
            grads: its accumulated gradients.
            reduce: sums them over the replicas.

        Returns:
            The sums, or `grads` in other micro-steps.
        """
        # Keras gets here in update steps only.
        return reduce(grads)

    @abc.abstractmethod
    def differentiable(
        self,
        step: Any,
        name: str,
        forward: Forward,
        backward: Backward,
        tensor: Any,
    ) -> Any:
        """Calls a function that has a gradient of its own.

        Args:
            step: the `Step` in which both exchange values.
            name: that of the exchange in `forward`.
            forward: from the tensor and a link to a result and a link, see
                `Step.all_gather`. It leaves the step as it is.
            backward: from the tensor, the result and the gradient with
                respect to the result to that with respect to the tensor.
            tensor: the argument.

        Returns:
            The result. A derivative of its derivative is refused.
        """

    def has_strategy(self) -> bool:
        """Whether a strategy of the backend's own is at work."""
        return False

    def outside_graph(self, fn: Callable[[], Any]) -> Any:
        """Runs `fn` eagerly, also while a graph is being traced."""
        return fn()

    def paths_of(self, model: Any) -> dict[int, str]:
        """Paths of variables whose own name says nothing.

        Args:
            model: a built model.

        Returns:
            From the identity of a variable to its path in the model.
        """
        return {}

    def spread_random_state(self, rank: int) -> None:  # noqa: B027
        """Moves the backend's own random generator to a stream of `rank`.

        Called on all but the chief. Most backends draw from Keras's seeds
        alone.
        """

    def limit_steps_ahead(self, model: Any) -> None:  # noqa: B027
        """Keeps `fit` from running far ahead of its steps.

        Args:
            model: a model whose functions are not made yet. Most backends
                have ended a step when they return.
        """

    def sync_state(self, model: Any) -> None:  # noqa: B027
        """Puts into the variables what the steps of `fit` made so far.

        Args:
            model: a model. Most backends train in the variables.
        """

    @abc.abstractmethod
    def train_step(
        self, model: Any, ring: Collectives, original: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Makes a `train_step` that knows its share.

        Args:
            model: the model.
            ring: the collectives.
            original: the model's own `train_step`.

        Returns:
            A function with the same arguments and results.
        """

    @abc.abstractmethod
    def test_step(
        self, model: Any, ring: Collectives, original: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Makes a `test_step` that knows its share, see `train_step`."""

    def build(self, model: Any, batch: Any) -> None:
        """Creates the variables of a model, its metrics and its optimizer.

        Args:
            model: a compiled model.
            batch: a batch as `train_step` gets it.
        """
        _keras.symbolic_build(model, batch)

    def prepare_compiled(self, model: Any) -> None:  # noqa: B027
        """Adapts what `compile` has set; nothing on most backends."""


def load(backend: str) -> Backend:
    """The `Backend` of a Keras backend, by its name."""
    module = importlib.import_module(f"keras_mwms.training.{backend}")
    loaded: Backend = module.BACKEND
    return loaded


def check_reduced(step: Any, trained: bool) -> None:
    """Raises if a step trained without exchanging gradients.

    Args:
        step: the finished `Step`.
        trained: whether trainable variables have changed, or may have.

    Raises:
        RuntimeError: if they have and nothing was reduced.
    """
    if trained and not step.reductions:
        raise RuntimeError(
            "This model's train_step changed its weights without a gradient "
            "being exchanged with the other replicas: they would drift apart. "
            "Apply gradients with a Keras optimizer that is an attribute of "
            "the model (for example model.optimizer), by apply(), "
            "apply_gradients() or stateless_apply(). Received: no such call "
            "in train_step."
        )

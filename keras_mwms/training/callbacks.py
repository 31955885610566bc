"""Makes the callbacks of all replicas decide alike.

A last callback, after the user's own, lets the replicas agree on when to
stop and on learning rates. It runs on every replica, whatever callbacks the
replica has, so that a callback on one of them alone stalls nobody.
"""

import contextlib
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_mwms import _keras
from keras_mwms.collectives import Collectives

_BATCH_HOOKS = (
    "on_batch_begin",
    "on_batch_end",
    "on_train_batch_begin",
    "on_train_batch_end",
)

# Those of Keras that act on batches and never stop training there. The exact
# classes: a subclass may do more.
_NEVER_STOP = frozenset(
    {
        keras.callbacks.BackupAndRestore,
        keras.callbacks.ModelCheckpoint,
        keras.callbacks.OrbaxCheckpoint,
        keras.callbacks.ProgbarLogger,
        keras.callbacks.TensorBoard,
    }
)

Optimizers = Sequence[tuple[str, keras.optimizers.Optimizer]]


class EpochAgreement(keras.callbacks.Callback):  # type: ignore[misc]
    """Agrees at the beginning and at the end of each epoch.

    Training stops on all replicas if one wants to stop. Learning rates become
    those of the chief.

    Args:
        ring: the collectives.
        optimizers: the model's optimizers, with names for them.
    """

    def __init__(self, ring: Collectives, optimizers: Optimizers):
        super().__init__()
        self.ring = ring
        self._optimizers = optimizers

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """What callbacks set for this epoch, or before it."""
        self._agree()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """What callbacks set after this epoch, or during its validation."""
        self._agree()

    def _agree(self) -> None:
        variables = _rates_of(self._optimizers)
        rates = {
            label: float(keras.ops.convert_to_numpy(v.value))
            for label, v in variables.items()
        }
        of_all = self.ring.gather_values(
            {"stop": bool(self.model.stop_training), "rates": rates}
        )
        self.model.stop_training = any(each["stop"] for each in of_all)
        for label, rate in of_all[0]["rates"].items():
            if label in variables and rates[label] != rate:
                variables[label].assign(rate)


class StepAgreement(EpochAgreement):
    """Agrees after each step as well.

    Keras calls it on the thread that trains, for it overrides a hook of
    batches and does not say `async_safe`: then it calls all callbacks of the
    replica there.

    Args:
        ring: the collectives.
        optimizers: the model's optimizers, with names for them.
        may_stop: whether some replica's callbacks may stop after a batch.
        every: compare the replicas every so many steps, `None` for never.
        check: raises if the replicas differ, gets the number of the step.
    """

    def __init__(
        self,
        ring: Collectives,
        optimizers: Optimizers,
        may_stop: bool,
        every: int | None,
        check: Callable[[int], None],
    ):
        super().__init__(ring, optimizers)
        self._may_stop = may_stop
        self._every = every
        self._check = check
        self._first = 0
        self._steps = 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """The number of the first step that is executed next."""
        self._first = batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """One step has ended, or more with `steps_per_execution`."""
        if self._may_stop:
            wanted = np.array([bool(self.model.stop_training)], np.int32)
            (replicas,) = self.ring.sum_arrays([wanted])
            self.model.stop_training = bool(replicas[0])
        before = self._steps
        self._steps += batch - self._first + 1
        if self._every and before // self._every < self._steps // self._every:
            self._check(self._steps)


@contextlib.contextmanager
def agreeing(
    ring: Collectives,
    model: keras.Model,
    optimizers: Optimizers,
    callbacks: Any,
    every: int | None,
    check: Callable[[int], None],
) -> Iterator[Any]:
    """Adds the callback that agrees to those of the user.

    Args:
        ring: the collectives; every replica enters.
        model: the model that is going to train.
        optimizers: its optimizers, with names for them.
        callbacks: as `fit` takes them.
        every: compare the replicas every so many steps, `None` for never.
        check: raises if the replicas differ, gets the number of the step.

    Yields:
        Callbacks for Keras's own `fit`. A `CallbackList` is the user's own,
        which is put back as it was.

    Raises:
        ValueError: on every replica, if they do not have the same `every`.
    """
    is_list = isinstance(callbacks, keras.callbacks.CallbackList)
    users = callbacks.callbacks if is_list else _flat(callbacks)
    may_stop, every = _agreed_plan(
        ring, any(map(_acts_on_batches, users)), every
    )
    own = (
        StepAgreement(ring, optimizers, may_stop, every, check)
        if may_stop or every
        else EpochAgreement(ring, optimizers)
    )
    if not is_list:
        yield [*users, own]
        return
    own.set_params(callbacks.params)
    own.set_model(model)
    callbacks.callbacks.append(own)
    try:
        with (
            _keras.called_synchronously(callbacks)
            if may_stop or every
            else contextlib.nullcontext()
        ):
            yield callbacks
    finally:
        callbacks.callbacks.remove(own)


def _agreed_plan(
    ring: Collectives, may_stop: bool, every: int | None
) -> tuple[bool, int | None]:
    """Whether some replica may stop after a batch, and the common `every`."""
    of_all = ring.gather_values([may_stop, every])
    intervals = [each[1] for each in of_all]
    if len(set(intervals)) > 1:
        raise ValueError(
            "check_in_sync_every must be the same on every replica. "
            f"Received, in rank order: {intervals}"
        )
    return any(each[0] for each in of_all), every


def _flat(callbacks: Any) -> list[Any]:
    return list(keras.tree.flatten(callbacks)) if callbacks else []


def _acts_on_batches(callback: Any) -> bool:
    """Whether a callback may stop training after a batch."""
    return type(callback) not in _NEVER_STOP and not all(
        _keras.is_default(getattr(callback, name)) for name in _BATCH_HOOKS
    )


def _rates_of(optimizers: Optimizers) -> dict[str, Any]:
    """The learning rates that are variables, not schedules."""
    rates = {}
    for label, optimizer in optimizers:
        inner = getattr(optimizer, "inner_optimizer", optimizer)
        for i, each in enumerate(getattr(inner, "optimizers", [inner])):
            rate = each.learning_rate
            if isinstance(rate, keras.Variable):
                rates[f"{label}.{i}"] = rate
    return rates

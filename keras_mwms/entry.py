"""The one line that users add, and a check of what it promises."""

from typing import Any

import keras

from keras_mwms import data
from keras_mwms import world
from keras_mwms.training.hooks import Hooks
from keras_mwms.training.hooks import hooks_of
from keras_mwms.training.in_sync import Difference


def distribute(
    model: keras.Model,
    *,
    auto_shard_policy: Any = None,
    check_in_sync_every: int | None = None,
) -> keras.Model:
    """Makes a model train on all workers of the cluster.

    The cluster is found by what `horovodrun` or `mpirun` set, else by
    `TF_CONFIG`, which is read now. In a world of one nothing changes. Call it
    on every replica, before or after `compile`, before or after the model is
    built.

    From then on `fit`, `evaluate` and `predict` share the work: `batch_size`
    is that of the global batch, of which each replica takes its slice;
    gradients are summed over the replicas; logs are those of all rows; and
    what is saved is written by the chief. Weights start from the chief's.

    Callbacks may be on some replicas only. Training stops on all replicas if
    a callback of one sets `model.stop_training`. Learning rates that
    callbacks set become the chief's at the beginning and at the end of each
    epoch: what a callback sets on another replica alone is overwritten. If
    the replicas differ at the end of `fit`, all get the chief's values, with
    a warning.

    Args:
        model: a Keras model.
        auto_shard_policy: how data are split that do not say so themselves:
            an `AutoShardPolicy` or its name. `None` is `AUTO`. The options
            of a `tf.data.Dataset` go before it. A second call for the same
            model may change it.
        check_in_sync_every: compare the replicas after every so many steps
            of `fit`, as `check_in_sync` does, the same number on every
            replica (with `steps_per_execution` at the end of an execution).
            `None`: never. A second call for the same model may change it.

    Returns:
        The same model.

    Raises:
        TypeError: `model` is not a Keras model.
        ValueError: `check_in_sync_every` is not a positive integer, or there
            is no such `auto_shard_policy`.
        ClusterConfigError: the description of the cluster is wrong.
        HorovodMissingError: Horovod is not installed for this backend.
        StartError: the members of the cluster do not fit together.
        StartTimeoutError: a member did not arrive in time.

    Example:
        >>> import keras
        >>> import keras_mwms
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> keras_mwms.distribute(model) is model
        True
    """
    _require_model(model, "distribute")
    if check_in_sync_every is not None:
        _require_positive(check_in_sync_every)
    policy = data.policy_of(auto_shard_policy)
    hooks = hooks_of(model)
    if hooks is None:
        ring = world.join().ring
        if ring.size == 1:
            return model
        _refuse_second_distribution()
        hooks = Hooks(ring, model)
        hooks.attach()
    if check_in_sync_every is not None:
        hooks.check_in_sync_every = check_in_sync_every
    if auto_shard_policy is not None:
        hooks.auto_shard_policy = policy
    return model


def check_in_sync(model: keras.Model) -> tuple[Difference, ...]:
    """Says which variables are not the same on all replicas.

    Weights and optimizer variables are compared, to the last bit. Left out
    is what may differ: seeds, metrics, states of stateful RNNs, gradients
    that are accumulated, and moving statistics of `BatchNormalization`
    between epochs.

    Every replica must call it, at the same place: it waits for the others.
    In `fit`, that is the same hook of a callback that all replicas have.

    Args:
        model: a model that `distribute` was called with.

    Returns:
        One value for each variable that differs, with `path`, `groups` (the
        ranks, in groups of the same value) and `difference` (the largest
        absolute difference from the chief's value). Empty when the replicas
        are in sync, and in a world of one.

    Raises:
        TypeError: `model` is not a Keras model.
        RuntimeError: the model is not distributed.

    Example:
        >>> import keras
        >>> import keras_mwms
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        >>> keras_mwms.check_in_sync(keras_mwms.distribute(model))
        ()
    """
    _require_model(model, "check_in_sync")
    hooks = hooks_of(model)
    if hooks is not None:
        return hooks.comparison().differences()
    if world.world_size() == 1:
        return ()
    raise RuntimeError(
        "check_in_sync() compares the replicas of a distributed model. Call "
        "keras_mwms.distribute(model) on every replica first. "
        f"Received: {model!r}, which is not distributed"
    )


def _require_model(model: Any, function: str) -> None:
    if not isinstance(model, keras.Model):
        raise TypeError(
            f"{function}() takes a Keras model. "
            f"Received: {model!r} of type {type(model).__name__}"
        )


def _require_positive(steps: Any) -> None:
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ValueError(
            "check_in_sync_every must be a positive number of steps, an int, "
            f"or None. Received: {steps!r}"
        )


def _refuse_second_distribution() -> None:
    """Two ways to distribute at once would reduce twice."""
    if keras.distribution.distribution() is not None:
        raise RuntimeError(
            "A global keras.distribution is set, which splits the data and "
            "reduces gradients itself. Use one of the two: remove "
            "keras.distribution.set_distribution(...), or keras_mwms. "
            f"Received: {keras.distribution.distribution()!r}"
        )

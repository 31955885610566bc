"""The one line that users add."""

import keras

from keras_mwms import world
from keras_mwms.training.hooks import Hooks
from keras_mwms.training.hooks import hooks_of


def distribute(model: keras.Model) -> keras.Model:
    """Makes a model train on all workers of the cluster.

    The cluster is found by what `horovodrun` or `mpirun` set, else by
    `TF_CONFIG`, which is read now. In a world of one nothing changes. Call it
    on every replica, before or after `compile`, before or after the model is
    built.

    From then on `fit`, `evaluate` and `predict` share the work: `batch_size`
    is that of the global batch, of which each replica takes its slice;
    gradients are summed over the replicas; logs are those of all rows; and
    what is saved is written by the chief. Weights start from the chief's.

    Args:
        model: a Keras model.

    Returns:
        The same model.

    Raises:
        TypeError: `model` is not a Keras model.
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
    if not isinstance(model, keras.Model):
        raise TypeError(
            "distribute() takes a Keras model. "
            f"Received: {model!r} of type {type(model).__name__}"
        )
    if hooks_of(model) is not None:
        return model
    ring = world.join().ring
    if ring.size > 1:
        _refuse_second_distribution()
        Hooks(ring, model).attach()
    return model


def _refuse_second_distribution() -> None:
    """Two ways to distribute at once would reduce twice."""
    if keras.distribution.distribution() is not None:
        raise RuntimeError(
            "A global keras.distribution is set, which splits the data and "
            "reduces gradients itself. Use one of the two: remove "
            "keras.distribution.set_distribution(...), or keras_mwms. "
            f"Received: {keras.distribution.distribution()!r}"
        )

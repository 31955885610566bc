"""The errors that users of this package meet."""


class ClusterConfigError(ValueError):
    """The description of the cluster (`TF_CONFIG` & co.) is wrong.

    The message quotes the part that is wrong and says what to do. Nothing
    else ever comes out of parsing a description.
    """


class StartTimeoutError(TimeoutError):
    """Some worker did not arrive within `KERAS_MWMS_START_TIMEOUT` seconds.

    The message names the missing tasks and their addresses.
    """


class StartError(RuntimeError):
    """The cluster cannot start: its members do not fit together.

    For example the same task was started twice, a port of the cluster is
    taken, or two members run different versions. Raised on every member.
    """


class HorovodMissingError(ImportError):
    """Horovod is not installed for the Keras backend in use.

    The message holds the command that installs it.
    """


class OutOfSyncError(RuntimeError):
    """The replicas have different weights or optimizer variables.

    Raised on every replica. The message names the first variables that
    differ, on which ranks, and by how much.
    """


class WorkerLostError(RuntimeError):
    """A replica was lost while the others trained.

    Raised within `KERAS_MWMS_TIMEOUT` seconds on all that are left.
    """

"""What can go wrong while Horovod is installed."""


class InstallError(RuntimeError):
    """Horovod could not be installed; the message says what to do.

    Attributes:
        exit_status: what the command line exits with.
    """

    exit_status = 1


class MissingToolsError(InstallError):
    """Something that the build needs is not on this machine."""

    exit_status = 2


class SubstitutionError(InstallError):
    """A change to Horovod's sources found nothing to change."""


class BuildError(InstallError):
    """The build failed or took too long."""

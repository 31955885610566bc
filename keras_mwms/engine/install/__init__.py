"""Builds Horovod for the frameworks of an environment, and installs it."""

from keras_mwms.engine.install.errors import BuildError as BuildError
from keras_mwms.engine.install.errors import InstallError as InstallError
from keras_mwms.engine.install.errors import (
    MissingToolsError as MissingToolsError,
)
from keras_mwms.engine.install.errors import (
    SubstitutionError as SubstitutionError,
)
from keras_mwms.engine.install.install import (
    InstalledHorovod as InstalledHorovod,
)
from keras_mwms.engine.install.install import install_horovod as install_horovod

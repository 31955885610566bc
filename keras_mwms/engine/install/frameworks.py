"""Which frameworks are here, and for which of them to build Horovod."""

import dataclasses
import importlib.metadata
import importlib.util
from collections.abc import Mapping
from collections.abc import Sequence

from keras_mwms.engine.install.errors import InstallError


@dataclasses.dataclass(frozen=True)
class Framework:
    """A framework that Horovod can be built for.

    Attributes:
        name: as in `KERAS_BACKEND`, and Horovod's folder for it.
        feature: as in Horovod's `HOROVOD_WITH_<feature>`.
        modules: the top-level modules that make it up.
    """

    name: str
    feature: str
    modules: tuple[str, ...]


TENSORFLOW = Framework("tensorflow", "TENSORFLOW", ("tensorflow",))
TORCH = Framework("torch", "PYTORCH", ("torch",))
JAX = Framework("jax", "JAX", ("jax", "jaxlib"))
FRAMEWORKS = (TENSORFLOW, TORCH, JAX)


def switch(environ: Mapping[str, str], feature: str) -> bool | None:
    """What the user said about a feature of Horovod.

    Like Horovod's build, counts only `"1"`, and `WITHOUT` before `WITH`.

    Args:
        environ: the environment.
        feature: for example `"MPI"`.

    Returns:
        `True` for `HOROVOD_WITH_<feature>=1`, `False` for
        `HOROVOD_WITHOUT_<feature>=1`, `None` when neither is set.
    """
    if environ.get(f"HOROVOD_WITHOUT_{feature}") == "1":
        return False
    if environ.get(f"HOROVOD_WITH_{feature}") == "1":
        return True
    return None


def is_installed(framework: Framework) -> bool:
    """Whether a framework can be imported, without importing it."""
    for module in framework.modules:
        spec = importlib.util.find_spec(module)
        # A folder that happens to have the name has no origin.
        if spec is None or spec.origin is None:
            return False
    return True


def describe_version(framework: Framework) -> str:
    """The distributions and versions behind an installed framework."""
    owners = importlib.metadata.packages_distributions()
    names = {
        name for module in framework.modules for name in owners.get(module, ())
    }
    return ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in sorted(names)
    )


def select(
    requested: Sequence[str] | None,
    environ: Mapping[str, str],
    installed: Sequence[Framework],
) -> tuple[Framework, ...]:
    """Chooses the frameworks to build for.

    `HOROVOD_WITH_<feature>=1` adds a framework and
    `HOROVOD_WITHOUT_<feature>=1` takes it away.

    Args:
        requested: names of frameworks, `None` for all that are installed.
        environ: the environment.
        installed: the frameworks that are installed.

    Returns:
        The frameworks, at least one, in the order of `FRAMEWORKS`.

    Raises:
        InstallError: a name is unknown, a wanted framework is not installed,
            requested and switched off at once, or nothing is left.
    """
    known = [framework.name for framework in FRAMEWORKS]
    for name in requested or ():
        if name not in known:
            raise InstallError(
                f"Unknown framework; known are {', '.join(known)}. "
                f"Received: {name!r}"
            )
    chosen = []
    for framework in FRAMEWORKS:
        said = switch(environ, framework.feature)
        asked = requested is not None and framework.name in requested
        if said is False:
            if asked:
                raise InstallError(
                    f"{framework.name} is asked for and switched off at the "
                    "same time; drop one of the two. Received: "
                    f"HOROVOD_WITHOUT_{framework.feature}=1"
                )
            continue
        here = framework in installed
        if (asked or said) and not here:
            raise InstallError(
                f"{framework.name} is asked for but is not installed in this "
                f"environment. Install it first: pip install {framework.name}"
            )
        if asked or said or (requested is None and here):
            chosen.append(framework)
    if not chosen:
        raise InstallError(
            "No framework to build Horovod for: this environment has none of "
            f"{', '.join(known)} (or all are switched off by "
            "HOROVOD_WITHOUT_*). Install one first, for example: "
            "pip install keras-mwms[torch]"
        )
    return tuple(chosen)

"""Installs Horovod for the frameworks of this environment."""

import dataclasses
import importlib.metadata
import json
import os
import pathlib
import sys
import sysconfig
import tempfile
import time
import urllib.parse
from collections.abc import Mapping
from collections.abc import Sequence

from rich.console import Console

from keras_mwms.engine.install import binding
from keras_mwms.engine.install import environment
from keras_mwms.engine.install import frameworks as frameworks_lib
from keras_mwms.engine.install import process
from keras_mwms.engine.install import source
from keras_mwms.engine.install import substitutions
from keras_mwms.engine.install.build import build_wheel
from keras_mwms.engine.install.cache import Ingredients
from keras_mwms.engine.install.cache import WheelCache
from keras_mwms.engine.install.cache import cache_folder
from keras_mwms.engine.install.cache import environment_lock
from keras_mwms.engine.install.cache import instruction_sets
from keras_mwms.engine.install.errors import InstallError
from keras_mwms.engine.install.frameworks import Framework
from keras_mwms.engine.install.progress import BuildProgress
from keras_mwms.engine.install.tools import find_tools

DEFAULT_TIMEOUT = 3600.0
_PIP_SECONDS = 600.0
_IMPORT_SECONDS = 300.0
_NEEDS = ("cloudpickle", "psutil", "pyyaml", "packaging", "cffi>=1.4.0")


@dataclasses.dataclass(frozen=True)
class InstalledHorovod:
    """What `install_horovod` did.

    Attributes:
        wheel: the wheel that is installed.
        frameworks: the names of the frameworks it is built for.
        from_cache: whether it was built before, by this or another run.
        already_installed: whether there was nothing to do.
        seconds: how long it took.
    """

    wheel: pathlib.Path
    frameworks: tuple[str, ...]
    from_cache: bool
    already_installed: bool
    seconds: float


@dataclasses.dataclass(frozen=True)
class Plan:
    """What to build, with what, and where it is kept.

    Attributes:
        frameworks: what to build for.
        env: the environment of the build.
        changes: the changes to Horovod's sources.
        binding_sources: the folder of the JAX binding.
        cache: where everything is kept.
        key: the wheel's place in the cache.
        timeout: seconds that the build may take.
    """

    frameworks: tuple[Framework, ...]
    env: Mapping[str, str]
    changes: tuple[substitutions.Substitution, ...]
    binding_sources: pathlib.Path
    cache: WheelCache
    key: str
    timeout: float

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the frameworks."""
        return tuple(framework.name for framework in self.frameworks)

    @property
    def title(self) -> str:
        """What is built, in words."""
        return f"Horovod {source.VERSION} for {', '.join(self.names)}"


def make_plan(
    frameworks: Sequence[str] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    binding_sources: pathlib.Path = binding.DEFAULT_SOURCES,
    timeout: float = DEFAULT_TIMEOUT,
) -> Plan:
    """Decides what to build; downloads and changes nothing.

    Args:
        frameworks: names, `None` for all that are installed.
        environ: the environment, `None` for this process's own.
        binding_sources: the folder of the JAX binding's sources.
        timeout: seconds that the build may take.

    Returns:
        The `Plan`.

    Raises:
        InstallError: there is no framework to build for.
        MissingToolsError: a tool of the build is missing.
    """
    environ = os.environ if environ is None else environ
    installed = [
        known
        for known in frameworks_lib.FRAMEWORKS
        if frameworks_lib.is_installed(known)
    ]
    chosen = frameworks_lib.select(frameworks, environ, installed)
    tools = find_tools(environ, python_headers=frameworks_lib.TORCH in chosen)
    env = environment.build_environment(environ, chosen, tools)
    with_jax = frameworks_lib.JAX in chosen
    changes: tuple[substitutions.Substitution, ...] = substitutions.COMMON
    if with_jax:
        changes += substitutions.JAX_BINDING
    ingredients = Ingredients(
        horovod=source.SHA256,
        frameworks=tuple(
            (known.name, frameworks_lib.describe_version(known))
            for known in chosen
        ),
        python=str(sysconfig.get_config_var("EXT_SUFFIX")),
        platform=f"{sysconfig.get_platform()} {instruction_sets()}",
        substitutions=changes,
        binding=binding.digest(binding_sources) if with_jax else "",
        variables=tuple(environment.build_variables(env).items()),
        compiler=tools.compiler_version,
    )
    return Plan(
        frameworks=chosen,
        env=env,
        changes=changes,
        binding_sources=binding_sources,
        cache=WheelCache(cache_folder(environ)),
        key=ingredients.key(),
        timeout=timeout,
    )


def install_horovod(
    frameworks: Sequence[str] | None = None,
    *,
    use_cache: bool = True,
    console: Console | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    binding_sources: pathlib.Path = binding.DEFAULT_SOURCES,
) -> InstalledHorovod:
    """Builds Horovod for the frameworks of this environment; installs it.

    `HOROVOD_*` variables of the environment are obeyed, for example
    `HOROVOD_GPU_OPERATIONS=NCCL`. Without them, Horovod is built with Gloo
    and without MPI. A wheel that was built before from the same ingredients
    is taken from the cache.

    Args:
        frameworks: names among `"tensorflow"`, `"torch"` and `"jax"`; `None`
            for all that are installed.
        use_cache: whether a wheel that was built before will do.
        console: where to show progress, `None` for standard output.
        timeout: seconds that the build may take.
        binding_sources: the folder of the JAX binding's sources.

    Returns:
        What was done, as `InstalledHorovod`.

    Raises:
        InstallError: it did not work; the message says why and what to do.
        MissingToolsError: a tool of the build is missing.

    Example:
    >>> install_horovod(["torch"]).frameworks  # doctest: +SKIP
    ('torch',)
    """
    start = time.monotonic()
    console = Console() if console is None else console
    plan = make_plan(
        frameworks, binding_sources=binding_sources, timeout=timeout
    )

    def result(
        wheel: pathlib.Path, *, cached: bool, already: bool = False
    ) -> InstalledHorovod:
        seconds = time.monotonic() - start
        return InstalledHorovod(wheel, plan.names, cached, already, seconds)

    with plan.cache.locked(environment_lock(sys.prefix), timeout=timeout):
        installed = installed_wheel(plan.key) if use_cache else None
        if installed is not None:
            return result(installed, cached=True, already=True)
        with plan.cache.locked(plan.key, timeout=timeout):
            wheel = plan.cache.find(plan.key) if use_cache else None
            cached = wheel is not None
            if wheel is None:
                wheel = _build(plan, console)
            _install(wheel, plan.title, console)
            try:
                verify(plan.frameworks)
            except InstallError:
                plan.cache.discard(plan.key)
                raise
    return result(wheel, cached=cached)


def installed_wheel(key: str) -> pathlib.Path | None:
    """The wheel that is installed, when its key is `key`.

    pip notes the path of the wheel it installed from, as PEP 610 says.

    Args:
        key: the key of the wheel's ingredients.

    Returns:
        The path of the wheel, which need not exist any more, or `None`.
    """
    try:
        horovod = importlib.metadata.distribution("horovod")
    except importlib.metadata.PackageNotFoundError:
        return None
    noted = horovod.read_text("direct_url.json")
    if noted is None:
        return None
    path = urllib.parse.urlparse(json.loads(noted)["url"]).path
    wheel = pathlib.Path(urllib.parse.unquote(path))
    return wheel if wheel.parent.name == key else None


def verify(frameworks: Sequence[Framework]) -> None:
    """Checks that what is installed loads, in a process for each framework.

    Args:
        frameworks: the frameworks that Horovod was built for.

    Raises:
        InstallError: names the framework and holds the end of the output.
    """
    for framework in frameworks:
        # `import horovod.torch` alone also works without the library.
        script = f"from horovod.{framework.name} import init"
        process.run(
            [sys.executable, "-P", "-c", script],
            what=(
                f"loading Horovod for {framework.name} after it was built; "
                "--no-cache builds it again"
            ),
            timeout=_IMPORT_SECONDS,
            env={**os.environ, "KERAS_BACKEND": framework.name},
        )


def _build(plan: Plan, console: Console) -> pathlib.Path:
    _say(console, f"Building {plan.title}, log: {plan.cache.log(plan.key)}")
    archive = source.fetch(plan.cache.sources, timeout=_PIP_SECONDS)
    env = dict(plan.env)
    if frameworks_lib.JAX in plan.frameworks:
        env |= binding.build_variables()
    with tempfile.TemporaryDirectory(
        prefix="keras-mwms-", ignore_cleanup_errors=True
    ) as scratch:
        tree = source.unpack(archive, pathlib.Path(scratch))
        substitutions.apply_all(plan.changes, tree)
        if frameworks_lib.JAX in plan.frameworks:
            binding.add(plan.binding_sources, tree)
        with BuildProgress(console, plan.title) as progress:
            wheel = build_wheel(
                tree,
                env=env,
                log=plan.cache.log(plan.key),
                timeout=plan.timeout,
                on_line=progress.line,
            )
        return plan.cache.store(plan.key, wheel)


def _install(wheel: pathlib.Path, title: str, console: Console) -> None:
    _say(console, f"Installing {title}")
    pip = [sys.executable, "-m", "pip", "install"]
    process.run(
        [*pip, *_NEEDS],
        what="installing what Horovod needs",
        timeout=_PIP_SECONDS,
    )
    process.run(
        [*pip, "--no-deps", "--force-reinstall", str(wheel)],
        what="installing Horovod's wheel",
        timeout=_PIP_SECONDS,
    )


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)

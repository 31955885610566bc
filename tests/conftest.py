"""What all tests share: the backend they run on, and clusters of workers."""

import functools
import importlib.util
import os
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest

from tests.pool import Clusters
from tests.pool import FreshCluster

BACKENDS = ("tensorflow", "torch", "jax")


# Other tests keep the cores busy: how long an example takes says nothing.
hypothesis.settings.register_profile(
    "busy",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("busy")


def _choose_backend() -> str:
    """The backend of this session: `KERAS_BACKEND`, or the one installed."""
    installed = [b for b in BACKENDS if importlib.util.find_spec(b)]
    asked = os.environ.get("KERAS_BACKEND")
    if asked is None and len(installed) == 1:
        return installed[0]
    if asked not in installed:
        raise pytest.UsageError(
            "Install one backend, or set KERAS_BACKEND to one that is "
            f"installed. Received: KERAS_BACKEND={asked!r}, "
            f"installed: {installed}."
        )
    return asked


def pytest_configure(config: pytest.Config) -> None:
    # Before anything imports Keras.
    os.environ["KERAS_BACKEND"] = _choose_backend()
    config.addinivalue_line(
        "markers",
        "backend(*names): run the test on these Keras backends only.",
    )
    config.addinivalue_line(
        "markers",
        "needs(*modules): run the test where these modules are installed.",
    )
    config.addinivalue_line(
        "markers",
        "beside: set on tests that need more than the backend.",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = {os.environ["KERAS_BACKEND"]}
    for item in items:
        if any(set(m.args) - here for m in item.iter_markers("needs")):
            item.add_marker("beside")


def pytest_report_header() -> str:
    return f"keras backend: {os.environ['KERAS_BACKEND']}"


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs"):
        missing = [m for m in marker.args if not importlib.util.find_spec(m)]
        if missing:
            pytest.skip(f"{', '.join(missing)} not installed")
    here = os.environ["KERAS_BACKEND"]
    for marker in item.iter_markers("backend"):
        unknown = set(marker.args) - set(BACKENDS)
        if unknown or not marker.args:
            raise pytest.UsageError(
                f"The backend marker of {item.nodeid} takes names out of "
                f"{BACKENDS}. Received: {marker.args}"
            )
        if here not in marker.args:
            pytest.skip(f"for {', '.join(marker.args)}, not for {here}")


@pytest.fixture(scope="session")
def backend() -> str:
    """The Keras backend of this session."""
    return os.environ["KERAS_BACKEND"]


@pytest.fixture(scope="session")
def cluster() -> Iterator[Clusters]:
    """The session's pools: `cluster(2).run(fn, ...)` gives one result a rank.

    `start` is `"tf_config"` (the default) or `"horovodrun"`. The workers are
    started on first use and kept for the tests that follow.
    """
    clusters = Clusters()
    yield clusters
    clusters.stop()


@pytest.fixture(scope="session")
def alone(cluster: Clusters) -> Callable[..., Any]:
    """`alone(fn, *args)`: the result in a world of one, computed once.

    The measure of all equality tests.
    """
    return functools.cache(lambda fn, *args: cluster(1).run(fn, *args)[0])


@pytest.fixture(scope="session")
def fresh_cluster() -> FreshCluster:
    """Starts a command as a new cluster and gives how each process ended."""
    return FreshCluster()

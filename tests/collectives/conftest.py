"""What the tests of collectives are repeated for."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.collectives.tensors import compiled


def as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


@pytest.fixture(params=[2, 3])
def size(request: pytest.FixtureRequest) -> int:
    """The number of replicas."""
    return request.param


@pytest.fixture(
    params=[
        pytest.param(as_it_is, id="eager"),
        pytest.param(
            compiled,
            id="compiled",
            marks=pytest.mark.backend("tensorflow", "jax"),
        ),
    ]
)
def wrap(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Makes a program of a function, or leaves it eager."""
    return request.param

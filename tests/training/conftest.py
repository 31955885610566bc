"""What one process gives, the measure of all equality tests."""

import functools

import pytest


@pytest.fixture(scope="session")
def alone(cluster):
    """`alone(fn, *args)`: the result in a world of one, computed once."""
    return functools.cache(lambda fn, *args: cluster(1).run(fn, *args)[0])

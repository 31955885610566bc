"""What training leaves behind, as named arrays that can be compared."""

import numpy as np

ACCUMULATOR = "gradient_accumulator"


def facts_of(model, **more):
    """The weights and the optimizer of a model, and what else is given.

    Args:
        model: a compiled and built model.
        **more: as `named` takes them.

    Returns:
        A dictionary from names, which do not depend on automatic names of
        layers, to arrays.
    """
    facts = {}
    for i, weight in enumerate(model.weights):
        facts[f"weight {i} {weight.name}"] = as_numpy(weight)
    for i, variable in enumerate(model.optimizer.variables):
        kind = ACCUMULATOR if ACCUMULATOR in variable.name else "variable"
        facts[f"optimizer {i} {kind}"] = as_numpy(variable)
    return facts | named(**more)


def named(**values):
    """Numbers, arrays, or dictionaries of them, as facts."""
    facts = {}
    for name, value in values.items():
        items = value if isinstance(value, dict) else {"": value}
        for key, item in items.items():
            facts[f"{name} {key}".rstrip()] = as_numpy(item)
    return facts


def as_numpy(value):
    import keras

    return np.array(keras.ops.convert_to_numpy(value))


def assert_same(actual, expected, tolerance=1e-5, skip=()):
    """Asserts that facts are equal, to 1e-5 relatively and absolutely.

    Args:
        actual: what to check.
        expected: what it should be.
        tolerance: the relative and the absolute tolerance.
        skip: parts of the names that are not compared.
    """
    assert sorted(actual) == sorted(expected)
    for name, value in expected.items():
        if not any(part in name for part in skip):
            np.testing.assert_allclose(
                actual[name],
                value,
                rtol=tolerance,
                atol=tolerance,
                err_msg=name,
            )


def assert_as_alone(replicas, expected, skip=(), tolerance=1e-5):
    """Asserts that the chief has what one process has, and the rest agree.

    Accumulated gradients are the chief's alone: its next update needs their
    sum once.

    Args:
        replicas: the facts of every replica.
        expected: those of one process.
        skip: parts of the names that are not compared.
        tolerance: more than 1e-5 for narrow dtypes alone.
    """
    chief, *others = replicas
    assert_same(chief, expected, tolerance=tolerance, skip=skip)
    for other in others:
        assert_same(other, chief, tolerance=1e-6, skip=(ACCUMULATOR, *skip))
        for name, value in other.items():
            if ACCUMULATOR in name:
                assert not np.any(value), name

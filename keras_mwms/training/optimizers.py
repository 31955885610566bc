"""The optimizers of a model, and paths for their variables."""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras


def of_model(
    model: keras.Model,
) -> list[tuple[str, keras.optimizers.Optimizer]]:
    """The optimizers that a model holds, with names for them.

    They are attributes, or in a list, tuple or dictionary that is one.
    """
    found: dict[int, tuple[str, keras.optimizers.Optimizer]] = {}
    for attribute, value in sorted(vars(model).items()):
        if attribute.startswith("_self_"):
            continue  # TensorFlow's own tracking of what stands elsewhere.
        for label, candidate in _labelled(attribute, value):
            if isinstance(candidate, keras.optimizers.Optimizer):
                found.setdefault(id(candidate), (label, candidate))
    return list(found.values())


def named(
    model: keras.Model,
    optimizers: Sequence[tuple[str, keras.optimizers.Optimizer]],
    paths: Mapping[int, str],
) -> Iterator[tuple[str, Any]]:
    """The variables of optimizers, with paths.

    Args:
        model: a built model.
        optimizers: its optimizers, with names for them.
        paths: from the identity of a variable of the model to a better path
            than its own.

    Yields:
        `(path, variable)`.
    """
    # Optimizers name their variables after those of the model.
    renamed = {
        v.path.replace("/", "_"): paths[id(v)]
        for v in model.trainable_variables
        if id(v) in paths
    }
    for label, optimizer in optimizers:
        for v in optimizer.variables:
            yield f"{label}/{_renamed(v.path, renamed)}", v


def for_pairing(named: Sequence[tuple[str, Any]]) -> dict[int, str]:
    """Paths without the names of optimizers, which may be automatic.

    Args:
        named: what the function `named` gives.

    Returns:
        From the identity of a variable to a path by which it finds its
        partner on another replica.
    """
    folders: dict[str, int] = {}
    found = {}
    for path, variable in named:
        label, _, rest = path.partition("/")
        folder, _, name = rest.partition("/")
        number = folders.setdefault(f"{label}/{folder}", len(folders))
        found[id(variable)] = f"{label}/{number}/{name}"
    return found


def _renamed(path: str, renamed: Mapping[str, str]) -> str:
    """The path of an optimizer's variable, by that of the model's."""
    folder, _, name = path.rpartition("/")
    # The longest first: "variable_1" begins like "variable".
    for old in sorted(renamed, key=len, reverse=True):
        if name.startswith(f"{old}_"):
            return f"{folder}/{renamed[old]}{name.removeprefix(old)}"
    return path


def _labelled(attribute: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key in sorted(value, key=str):
            yield f"{attribute}.{key}", value[key]
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield f"{attribute}.{i}", item
    else:
        yield attribute, value

"""Names the variables of optimizers by those of the model."""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras


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

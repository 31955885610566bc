"""One path, one writer, whole files only.

Every replica calls `save`. The chief writes beside the path and renames when
the file is whole; replica r writes to `<dir>/workertemp_<r>/<name>`, which is
removed afterwards.
"""

import contextlib
import functools
import os
import pathlib
import shutil
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras

METHODS = ("save", "save_weights", "export")


def hook(model: keras.Model, rank: int) -> None:
    """Makes the methods of `model` that save follow the rule above.

    Args:
        model: the model.
        rank: this replica's rank.
    """
    for name in METHODS:
        setattr(model, name, _guarded(getattr(model, name), rank))


def _asks_to_overwrite(name: str, args: Any, kwargs: Any) -> bool:
    """Whether Keras asks the user before it replaces a file."""
    if name == "export":
        return False
    return not kwargs.get("overwrite", args[0] if args else True)


def _guarded(original: Callable[..., Any], rank: int) -> Callable[..., Any]:
    @functools.wraps(original)
    def save(filepath: Any, *args: Any, **kwargs: Any) -> Any:
        asks = _asks_to_overwrite(original.__name__, args, kwargs)
        if not _is_local(filepath) or (asks and os.path.exists(filepath)):
            # Keras asks the user, or writes through a remote file system.
            return original(filepath, *args, **kwargs) if rank == 0 else None
        with _own_path(pathlib.Path(filepath), rank) as path:
            same_type = path if isinstance(filepath, os.PathLike) else str(path)
            return original(same_type, *args, **kwargs)

    return save


@contextlib.contextmanager
def _own_path(path: pathlib.Path, rank: int) -> Iterator[pathlib.Path]:
    """A path that is this replica's alone while it writes.

    Args:
        path: where the user wants the file.
        rank: this replica's rank; the chief's file ends up at `path`.

    Yields:
        A path of the same name in a folder beside `path`.
    """
    folder = path.parent / (
        f"workertemp_{rank}" if rank else f".{path.name}.partial"
    )
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder / path.name
        if rank == 0:
            for made in sorted(folder.iterdir()):
                _put(made, path.parent / made.name)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _put(made: pathlib.Path, final: pathlib.Path) -> None:
    """Gives a finished file or folder its final name."""
    if made.is_dir():
        if final.is_dir():
            shutil.rmtree(final)
    else:
        with open(made, "rb") as file:
            os.fsync(file.fileno())
    os.replace(made, final)


def _is_local(filepath: Any) -> bool:
    return isinstance(filepath, str | os.PathLike) and "://" not in str(
        filepath
    )

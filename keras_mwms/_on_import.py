"""Runs something as soon as a module is loaded, without loading it."""

import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Then = Callable[[ModuleType], None]


def when_imported(name: str, then: Then) -> None:
    """Calls `then` with a module: now if it is loaded, else when it is.

    Args:
        name: the full name of the module.
        then: called once, before whoever imports the module goes on.
    """
    if name in sys.modules:
        # Another thread may be loading it: this waits for the end.
        then(importlib.import_module(name))
    else:
        sys.meta_path.insert(0, _Finder(name, then))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module as the other finders do, and watches it load."""

    def __init__(self, name: str, then: Then):
        self._name = name
        self._then = then
        self._is_asking = False

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Returns the spec of the module that is waited for."""
        if fullname != self._name or self._is_asking:
            return None
        self._is_asking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._is_asking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._finished)
        return spec

    def _finished(self, module: ModuleType) -> None:
        # Only now: an import that fails may be tried again.
        sys.meta_path.remove(self)
        self._then(module)


class _Loader(importlib.abc.Loader):
    """Loads a module by its own loader, then calls a function with it."""

    def __init__(self, loader: Any, then: Then):
        self._loader = loader
        self._then = then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Makes the module, as its own loader does."""
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Runs the module's code, with its own loader in its attributes."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._then(module)

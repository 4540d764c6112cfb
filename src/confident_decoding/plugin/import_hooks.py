"""Run a function right after a module is imported, without importing it.

vLLM loads plugins before most of its own modules; importing those here would cost seconds in
processes that never need them.
"""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

Callback = Callable[[ModuleType], None]


class PostImportHooks(MetaPathFinder):
    """A finder that finds nothing itself: it lets the others find, and calls back after execution."""

    def __init__(self) -> None:
        self._callbacks: dict[str, Callback] = {}

    def on_import(self, name: str, callback: Callback) -> None:
        """Call ``callback(module)`` once module ``name`` has been executed, or now if it has been."""
        module = sys.modules.get(name)
        if module is not None:
            callback(module)
            return
        self._callbacks[name] = callback
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Call nobody back any more."""
        self._callbacks.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find ``fullname`` through the other finders and make its loader call back."""
        callback = self._callbacks.get(fullname)
        if callback is None:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    _call_after_execution(spec.loader, callback)
                return spec
        return None


def _call_after_execution(loader: Loader, callback: Callback) -> None:
    original = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        original(module)
        callback(module)

    loader.exec_module = exec_module  # type: ignore[method-assign]

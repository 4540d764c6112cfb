"""Hooks on a model's modules for the time of one ``generate`` call, seen by its own thread only."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


class Watch:
    """A set of forward hooks; `close` removes them. Forwards of other threads pass unseen.

    Attributes:
        asleep: While true, nothing is seen.
    """

    def __init__(self) -> None:
        self.asleep = False
        self._thread = threading.get_ident()
        self._handles: list[Any] = []

    def entering(self, module: nn.Module, see: Callable[[Any], None]) -> None:
        """Call ``see(hidden_states)`` with what enters ``module``."""

        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if self._awake():
                see(args[0] if args else kwargs.get("hidden_states"))

        self._handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))

    def leaving(self, module: nn.Module, see: Callable[[Any], None]) -> None:
        """Call ``see(output)`` with what ``module`` returns."""
        self.replacing(module, lambda _args, _kwargs, output: see(output))

    def replacing(self, module: nn.Module, replace: Callable[[tuple[Any, ...], dict[str, Any], Any], Any]) -> None:
        """Let ``replace(args, kwargs, output)`` return another output of ``module``; None keeps it."""

        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
            return replace(args, kwargs, output) if self._awake() else None

        self._handles.append(module.register_forward_hook(hook, with_kwargs=True))

    def resting(self, inner: Any) -> Any:
        """``inner``, a callable collection, that is unseen while it is called: it may run the model again."""
        return _Resting(self, inner)

    @contextmanager
    def rest(self) -> Iterator[None]:
        """Within, nothing is seen."""
        before, self.asleep = self.asleep, True
        try:
            yield
        finally:
            self.asleep = before

    def close(self) -> None:
        """Remove the hooks."""
        while self._handles:
            self._handles.pop().remove()

    def _awake(self) -> bool:
        return not self.asleep and threading.get_ident() == self._thread


class _Resting:
    """A list of logits processors or stopping criteria."""

    def __init__(self, watch: Watch, inner: Any) -> None:
        self._watch, self._inner = watch, inner

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._watch.rest():
            return self._inner(*args, **kwargs)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._inner)

    def __len__(self) -> int:
        return len(self._inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@contextmanager
def answering(module: Any, answer: Callable[[], Any]) -> Iterator[None]:
    """Within, ``module`` returns ``answer()`` to this thread instead of running; restored in any case."""
    thread, own, original = threading.get_ident(), "forward" in vars(module), module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        return answer() if threading.get_ident() == thread else original(*args, **kwargs)

    module.forward = forward
    try:
        yield
    finally:
        if own:
            module.forward = original
        else:
            del module.forward

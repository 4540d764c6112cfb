"""Attributes of vLLM's classes that stand in for its own while a model of ours is loaded, and no longer.

The loader's and the front end's hooks are placed before anybody knows whether the switch is on. All else that is put
on a class goes through here, so that the process is as before once the last engine with the switch on is gone.
"""

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

_give_back: list[Callable[[], None]] = []
_users = 0


def put(owner: type, name: str, value: Any) -> None:
    """Set an attribute of a class until nobody uses it any more."""
    own = name in vars(owner)
    before = vars(owner).get(name)

    def give_back() -> None:
        if vars(owner).get(name) is not value:
            return  # somebody else has put theirs on top, which calls ours: it does nothing now
        if own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)

    setattr(owner, name, value)
    _give_back.append(give_back)


def on_return(action: Callable[[], None]) -> None:
    """Call ``action`` when everything is given back."""
    _give_back.append(action)


@contextlib.contextmanager
def in_use() -> Iterator[None]:
    """Nothing is given back within; after it, unless a model has been named to `in_use_by`."""
    _enter()
    try:
        yield
    finally:
        _leave()


def in_use_by(model: Any) -> None:
    """Nothing is given back before ``model`` is gone."""
    _enter()
    weakref.finalize(model, _leave).atexit = False


def _enter() -> None:
    global _users  # noqa: PLW0603 (of this process)
    _users += 1


def _leave() -> None:
    global _users  # noqa: PLW0603
    _users -= 1
    while not _users and _give_back:
        _give_back.pop()()

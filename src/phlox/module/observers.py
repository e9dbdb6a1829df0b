"""How a part of a module tells the structures that were made of it that it has changed."""

from __future__ import annotations

import weakref
from typing import Any, Protocol

_set = object.__setattr__  # modules have a __setattr__ of their own, which calls `changed`


class Watcher(Protocol):
    """Who remembers what a module was."""

    valid: bool
    """Is it still made of the same parts?"""
    ids_differ: bool
    """Is it known that no two of its parameters have one id?"""
    aux: Any
    """What its parameters are, beside their values; None where that is to be found out anew."""


class Watched:
    """A module or a parameter: whoever remembers what it was is told when it changes."""

    __slots__ = ("__weakref__", "_phlox_watchers")

    _phlox_watchers: tuple[weakref.ref[Watcher], ...]

    def watch(self, watcher: Watcher) -> None:
        """From now on set `watcher.valid` to False at the next change; it is not kept alive."""
        known = [ref for ref in self._phlox_watchers if (other := ref()) is not None and other.valid]
        _set(self, "_phlox_watchers", (*known, weakref.ref(watcher)))

    def changed(self) -> None:
        """Tell everyone who watches that it has other parts now."""
        told = self._phlox_watchers
        if told:
            _set(self, "_phlox_watchers", ())
            for ref in told:
                watcher = ref()
                if watcher is not None:
                    watcher.valid = False

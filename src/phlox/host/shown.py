"""What shows a value: `Report` for results that are printed as a notebook shows them, `html_by` for all others.

The writers are imported when they are first used.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phlox.host.page import Page


class Report:
    """The base of results that print what a notebook shows: a subclass makes a `Page` of itself."""

    __slots__ = ()

    def _page(self) -> Page:
        raise NotImplementedError

    def __str__(self) -> str:
        return self._page().text()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        from phlox.host.html import representation

        return representation(self, type(self)._page)


def html_by(module: str, name: str) -> Callable[[Any], str]:
    """A method `_repr_html_`: it shows the page that a function, called `name` in `module`, makes of the value."""

    def _repr_html_(self: Any) -> str:
        from phlox.host.html import representation

        return representation(self, getattr(import_module(module), name))

    return _repr_html_

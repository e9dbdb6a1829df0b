"""From a tensor's backend and kind to the functions that serve it."""

from __future__ import annotations

from typing import Any

from phlox.backend import Backend, Kind
from phlox.backend.kind import KINDS
from phlox.errors import BackendError, KindError

_CONVERSIONS = {"float": ".float()", "int": ".int()", "bool": ".bool()"}


class Ops:
    """The operations of one backend on one kind, by their short names: `add` is `float_add`, `int_add`, ...

    There is one object for each pair, and tensors carry it: two tensors can meet in an operation exactly if they carry
    the same one. An operation is looked up on its first use and an attribute from then on.
    """

    def __init__(self, backend: Backend, kind: type[Kind]) -> None:
        self.backend = backend
        self.kind = kind

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in ("as_float", "as_int", "as_bool"):
            found: Any = ops_of(self.backend, KINDS[name[3:]])
        else:
            found = self._find(name)
        setattr(self, name, found)
        return found

    def _find(self, name: str) -> Any:
        backend = self.backend
        for full in (f"{self.kind.name}_{name}", name):
            if _provides(backend, full):
                return getattr(backend, full)
        others = [_CONVERSIONS[kind] for kind in _CONVERSIONS if _provides(backend, f"{kind}_{name}")]
        if others:
            raise KindError(f"{self.kind.__name__} tensors have no `{name}`; convert with {' or '.join(others)} first")
        raise BackendError(f"{backend!r} does not support `{name}`")


def _provides(backend: Backend, name: str) -> bool:
    try:
        getattr(backend, name)
    except (BackendError, AttributeError):
        return False
    return True


_tables: dict[tuple[Backend, type[Kind]], Ops] = {}


def ops_of(backend: Backend, kind: type[Kind]) -> Ops:
    """The one table for this backend and kind."""
    key = (backend, kind)
    table = _tables.get(key)
    return table if table is not None else _tables.setdefault(key, Ops(backend, kind))

"""The table of operations for a tensor's backend and kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from phlox.backend import Backend, Float, Kind
from phlox.backend.contract import ShapeOps
from phlox.backend.contract.indexing import IndexingOps
from phlox.backend.contract.shape import ShapingOps
from phlox.backend.reproducible import when_installed
from phlox.errors import BackendError, KindError

_ANY_KIND = {*ShapeOps.__annotations__, *vars(ShapingOps), *vars(IndexingOps)}
_CONVERSIONS = {"float": ".float()", "int": ".int()", "bool": ".bool()"}


class Ops(dict[str, Callable[..., Any]]):
    """The operations of one backend on one kind, by their short names: `add` is `float_add`, `int_add`, ...

    There is one table for each pair, and each tensor holds its table: two tensors can be operands of one operation if
    they hold the same table. An operation is looked up on first use. (A dict, because nothing is faster to read.)
    """

    __slots__ = ("__weakref__", "backend", "has_slices", "kind", "shape")

    def __init__(self, backend: Backend, kind: type[Kind]) -> None:
        super().__init__()
        self.backend = backend
        self.kind = kind
        self.shape = backend.shape
        self.has_slices = backend.has_slices
        when_installed(self.clear)

    # A table is compared by identity, and is true even while the dict is empty.

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return id(self)

    def __bool__(self) -> bool:
        return True

    def __reduce__(self) -> tuple[Any, ...]:
        return ops_of, (self.backend, self.kind)

    def __repr__(self) -> str:
        return f"Ops({self.backend!r}, {self.kind.__name__})"

    def __missing__(self, name: str) -> Callable[..., Any]:
        operation = self[name] = self._find(name)
        return operation

    def _find(self, name: str) -> Callable[..., Any]:
        backend = self.backend
        # An operation without a kind in its name moves elements, or is a composite of floats.
        without_kind = [name] if self.kind is Float or name in _ANY_KIND else []
        for full in (f"{self.kind.name}_{name}", *without_kind):
            if _provides(backend, full):
                return getattr(backend, full)
        from phlox.backend.contract.catalogue import OPERATIONS  # needed only for an error

        if (full := f"{self.kind.name}_{name}") in OPERATIONS:  # other backends have it, or this one for other kinds
            raise BackendError(f"{backend!r} does not support `{full}`")
        methods = [method for kind, method in _CONVERSIONS.items() if _provides(backend, f"{kind}_{name}")]
        if not methods and _provides(backend, name):
            methods = [_CONVERSIONS["float"]]
        if methods:
            raise KindError(f"{self.kind.__name__} tensors have no `{name}`; convert with {' or '.join(methods)} first")
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


def every_table() -> list[Ops]:
    """All tables of operations that exist."""
    return list(_tables.values())

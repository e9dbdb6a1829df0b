"""Half precision: what is computed in single precision and rounded once.

An operation is *widened* when its half-precision operands become f32, the f32 backend's own function runs, and its f32
results are rounded back. An engine whose arithmetic at half precision is sound does most operations itself; widening
then serves what the contract derives in many steps, each of which would round, and what the engine lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, cast

from phlox.backend.contract.backend import Backend
from phlox.backend.contract.catalogue import DERIVED, OPERATIONS, provision, whole
from phlox.backend.contract.indexing import IndexingOps
from phlox.backend.contract.linalg import LinalgOps
from phlox.backend.contract.nn.conv import ConvOps
from phlox.backend.contract.required import ShapeOps
from phlox.backend.contract.shape import ShapingOps
from phlox.backend.contract.signal import SignalOps
from phlox.backend.contract.types import Array

_OTHER_KINDS = ("int_", "bool_", "random_", "float_full", "detach")


def _moves(name: str) -> bool:
    """Does this operation move elements of any kind about, and nothing else?"""
    anywhere = name in ShapeOps.__annotations__ or DERIVED.get(name) in (ShapingOps, IndexingOps)
    return anywhere and not name.startswith("float_")


COMPUTING: frozenset[str] = frozenset(
    name for name in OPERATIONS if not name.startswith(_OTHER_KINDS) and not _moves(name)
)
"""The operations that read or make floats other than by moving them."""

_PRODUCTS = ("linear", "attention", "conv", "float_matmul", "float_dot")
"""How the names begin of operations that are matrix products, whose sums engines hold in f32 by themselves."""


def delicate(backend: Backend) -> frozenset[str]:
    """What an engine whose arithmetic at half precision is sound should still not do at it.

    That is what takes several steps, and decompositions and transforms, which hardly any engine has at half precision.
    """
    return frozenset(
        name
        for name in COMPUTING
        if not name.startswith(_PRODUCTS)
        and DERIVED.get(name) is not ConvOps
        and (DERIVED.get(name) in (LinalgOps, SignalOps) or provision(backend, whole(name)) == "derived")
    )


def widen(
    backend: Backend, wide: Backend, names: Iterable[str], grow: Callable[[Any], Any], shrink: Callable[[Any], Any]
) -> None:
    """Make `backend` do the operations `names` as `wide` does.

    `grow` makes one array a wide one, `shrink` a narrow one; each returns as it is whatever it does not concern.
    """
    for name in names:
        try:
            function = getattr(wide, name)
        except AttributeError:
            continue  # what the engine lacks, it lacks at every precision
        make = _widened_forward if name.endswith("_forward") else _widened
        operation = make(function, grow, shrink)
        operation.widened = True
        setattr(backend, name, operation)


def _each(convert: Callable[[Any], Any], value: Any) -> Any:
    """`convert` of an array, or of each one in nested sequences."""
    if isinstance(value, list):
        return [_each(convert, part) for part in cast("list[Any]", value)]
    if not isinstance(value, tuple):
        return convert(value)
    parts = [_each(convert, part) for part in cast("tuple[Any, ...]", value)]
    return cast(Any, value)._make(parts) if hasattr(cast(Any, value), "_make") else tuple(parts)


def _widened(function: Callable[..., Any], grow: Callable[[Any], Any], shrink: Callable[[Any], Any]) -> Any:
    @wraps(function)
    def operation(*arguments: Any) -> Any:
        return _each(shrink, function(*[_each(grow, x) for x in arguments]))

    return operation


def _widened_forward(function: Callable[..., Any], grow: Callable[[Any], Any], shrink: Callable[[Any], Any]) -> Any:
    @wraps(function)
    def operation(*arguments: Any) -> tuple[Array, Any]:
        grown = [_each(grow, x) for x in arguments]
        y, saved = function(*grown)
        # What is saved stays wide, so that the backward pass does not start from rounded values; but of an operand the
        # narrow array is kept, which is there anyway.
        given = {id(wide): x for wide, x in zip(grown, arguments, strict=True) if hasattr(x, "shape")}
        return _each(shrink, y), _each(lambda x: given.get(id(x), x), saved)

    return operation

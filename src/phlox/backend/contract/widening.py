"""Half precision: the operations that are computed in single precision and rounded once.

An operation is *widened* when its half-precision operands become f32, the f32 backend's own function runs, and its f32
results are rounded back. An engine with sound half-precision arithmetic does most operations itself; widening is then
for operations that the contract derives in many steps, each of which would round, and for those that the engine lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import wraps
from typing import Any, TypeAlias, cast

from phlox.backend.contract.arithmetic import ArithmeticOps
from phlox.backend.contract.backend import Backend
from phlox.backend.contract.catalogue import DERIVED, OPERATIONS, REQUIRED, composite_of, provision
from phlox.backend.contract.elementwise import ElementwiseOps
from phlox.backend.contract.indexing import IndexingOps
from phlox.backend.contract.nn.activation import ActivationOps
from phlox.backend.contract.required import ShapeOps
from phlox.backend.contract.shape import ShapingOps
from phlox.backend.contract.sorting import SortingOps
from phlox.backend.contract.special import SpecialOps
from phlox.backend.contract.types import Array
from phlox.backend.contract.update import UpdateOps
from phlox.host.dtypes import HALF_ELEMENTS

Convert: TypeAlias = Callable[[Any], Any]

_OTHER_KINDS = ("int_", "bool_", "random_", "float_full", "detach")


def _only_moves(name: str) -> bool:
    """Does this operation only move elements, of any kind?"""
    anywhere = name in ShapeOps.__annotations__ or DERIVED.get(name) in (ShapingOps, IndexingOps)
    return anywhere and not name.startswith("float_")


COMPUTING: frozenset[str] = frozenset(
    name for name in OPERATIONS if not name.startswith(_OTHER_KINDS) and not _only_moves(name)
)
"""The operations that compute with floats, rather than only move them."""

_PRODUCTS = ("linear", "expert_linear", "attention", "float_matmul", "float_dot")
"""Prefixes of the names of matrix products, which engines accumulate in f32 by themselves."""

_OF_PRODUCTS = ("linear", "expert_linear", "conv", "float_dot", "float_argtopk", "float_argsort")
"""Prefixes of the names of operations whose definitions compute by products alone."""

CONVOLUTIONS: frozenset[str] = frozenset(name for name in COMPUTING if name.startswith("conv"))
"""Convolution, its derivatives and their parts; they count as products, unless an engine overrides that."""

ATTENTION: frozenset[str] = frozenset(name for name in COMPUTING if name.startswith("attention"))
"""Products with a softmax between them: at half precision an engine needs a kernel with f32 logits."""

_ACCUMULATING = frozenset({"float_sum", "float_prod", "float_cumsum", "max_pool_backward"})
"""Operations that accumulate, in families whose other operations mostly do not."""

_POINTWISE = (ElementwiseOps, ArithmeticOps, SpecialOps, ActivationOps, SortingOps, UpdateOps)
"""Families of operations that accumulate nothing."""

_POINTWISE_TOO = (
    "gelu", "max_pool", "adaptive_max_pool", "float_cummax", "float_cummin", "float_order", "float_index_adjoint",
    "frame", "im2col",
)  # fmt: skip
"""Prefixes of the names of other operations that accumulate nothing."""


def delicate(backend: Backend, sound: Collection[str] = ()) -> frozenset[str]:
    """The operations that even an engine with sound half-precision arithmetic should do in f32: those that accumulate.

    These are all operations except products, convolutions, and elementwise and comparing operations of one step; an
    elementwise operation of several steps would round or overflow in each. `sound` names the operations that the engine
    itself accumulates in f32 and rounds once.
    """
    return frozenset(name for name in COMPUTING if name not in sound and _is_delicate(backend, name))


def _is_delicate(backend: Backend, name: str) -> bool:
    if name.startswith(_PRODUCTS) or name in CONVOLUTIONS:
        return False
    if name in _ACCUMULATING:
        return True
    if name in REQUIRED:
        return False
    if DERIVED[name] in _POINTWISE or name.startswith(_POINTWISE_TOO):
        kind = provision(backend, composite_of(name))
        return kind == "derived" or (kind == "native" and is_composed(backend, name))
    return True


DEFINED_IN_STEPS: frozenset[str] = frozenset(
    name for name in COMPUTING & DERIVED.keys() if not name.startswith(_OF_PRODUCTS) and name != "adam_update"
)
"""Operations that the contract defines in several steps, each of which would round at half precision.

If a decorator has no rule for one of these, it follows the definition at full precision."""


def composed(operation: Any) -> Any:
    """Mark an engine's function as one of several steps, like the contract's definition of it."""
    operation.is_composed = True
    return operation


def is_composed(backend: Backend, name: str) -> bool:
    """Is this operation marked by `composed`?"""
    return hasattr(getattr(backend, name), "is_composed")


def converters(backend: Backend) -> tuple[Backend, Convert, Convert]:
    """The backend at full precision, the conversion of this backend's float arrays to it, and the conversion back.

    Each returns any other argument as it is. A backend of f32 or f64 is its own, and nothing is converted.
    """
    if backend.float_element not in HALF_ELEMENTS:
        return backend, _identity, _identity
    wide = backend.full_precision()
    return wide, _converter(backend, wide), _converter(wide, backend)


def _identity(x: Any) -> Any:
    return x


def _converter(source: Backend, target: Backend) -> Convert:
    owns, cast, device_of = source.owns_floats, source.cast, source.device_of
    return lambda x: cast(x, target, device_of(x).on(target)) if owns(x) else x


def widen(
    backend: Backend,
    wide: Backend,
    names: Iterable[str],
    grow: Callable[[Any], Any],
    shrink: Callable[[Any], Any],
    unless: Callable[..., bool] | None = None,
) -> None:
    """Make `backend` carry out the operations `names` on `wide`.

    `grow` makes one array a wide one, `shrink` a narrow one; each returns any other value unchanged. For arguments
    with `unless(*arguments)`, the backend's own operation runs.
    """
    for name in names:
        try:
            function = getattr(wide, name)
        except AttributeError:
            continue  # an operation that the engine lacks at every precision
        make = widened_forward if name.endswith("_forward") else widened
        operation = make(function, grow, shrink)
        if unless is not None:
            operation = _narrow_if(unless, getattr(backend, name), operation)
        operation.widened = True
        setattr(backend, name, operation)


def map_nested(convert: Callable[[Any], Any], value: Any) -> Any:
    """`convert` of an array, or of each array in nested sequences."""
    if isinstance(value, list):
        return [map_nested(convert, part) for part in cast("list[Any]", value)]
    if not isinstance(value, tuple):
        return convert(value)
    parts = [map_nested(convert, part) for part in cast("tuple[Any, ...]", value)]
    return cast(Any, value)._make(parts) if hasattr(cast(Any, value), "_make") else tuple(parts)


def _narrow_if(narrow: Callable[..., bool], operation_narrow: Callable[..., Any], wide: Callable[..., Any]) -> Any:
    @wraps(operation_narrow)
    def operation(*arguments: Any) -> Any:
        return operation_narrow(*arguments) if narrow(*arguments) else wide(*arguments)

    return operation


def widened(function: Callable[..., Any], grow: Convert, shrink: Convert) -> Any:
    """A function of wide arrays as a function of narrow arrays."""

    @wraps(function)
    def operation(*arguments: Any) -> Any:
        return map_nested(shrink, function(*[map_nested(grow, x) for x in arguments]))

    return operation


def widened_forward(function: Callable[..., Any], grow: Convert, shrink: Convert) -> Any:
    """As `widened`, for a function that also returns values for its derivative.

    These stay wide, so that the backward pass does not start from rounded values; but operands are kept as the narrow
    arrays, which exist anyway.
    """

    @wraps(function)
    def operation(*arguments: Any) -> tuple[Array, Any]:
        grown = [map_nested(grow, x) for x in arguments]
        y, saved = function(*grown)
        narrow = {id(wide): x for wide, x in zip(grown, arguments, strict=True) if hasattr(x, "shape")}
        return map_nested(shrink, y), map_nested(lambda x: narrow.get(id(x), x), saved)

    return operation

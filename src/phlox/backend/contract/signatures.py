"""Classes of operations by their signatures: elementwise, along axes, or with a derivative of their own.

Decorators of backends derive their rules from this.
"""

from __future__ import annotations

from phlox.backend.contract.arithmetic import ArithmeticOps
from phlox.backend.contract.catalogue import DERIVED
from phlox.backend.contract.elementwise import ElementwiseOps
from phlox.backend.contract.nn.activation import ActivationOps
from phlox.backend.contract.reduction import ReductionOps
from phlox.backend.contract.required import BoolOps, FloatOps, IntOps
from phlox.backend.contract.special import SpecialOps


def declared(*types: str) -> list[str]:
    """The required operations of these types.

    >>> declared("ArgReduction")
    ['float_argmax', 'float_argmin', 'int_argmax', 'int_argmin']
    """
    families = (FloatOps, IntOps, BoolOps)
    return [name for family in families for name, type_name in family.__annotations__.items() if type_name in types]


_TYPES = {name: getattr(family, name).__annotations__ for name, family in DERIVED.items()}
"""The types of parameters and result of each derived operation."""


def _count(types: dict[str, str], *kinds: str) -> int:
    return sum(kind in kinds for parameter, kind in types.items() if parameter != "return")


_OF_ELEMENTS = (ArithmeticOps, SpecialOps, ElementwiseOps, ActivationOps)

ELEMENTWISE: dict[str, int] = {
    **dict.fromkeys(declared("Unary"), 1),
    **dict.fromkeys(declared("Binary"), 2),
    **{
        name: _count(types, "Array", "Any")
        for name, types in _TYPES.items()
        if DERIVED[name] in _OF_ELEMENTS and name != "int_matmul"
    },
    "where": 3,
    "detach": 1,
    "gelu": 1,
}
"""The operations on elements, and how many of the first arguments are operands: arrays, numbers or None."""


def _position_of_axes(name: str) -> int | None:
    """The position of the axes among the options of an operation from one array to one array; else None."""
    types = _TYPES[name]
    if types.get("return") != "Array" or [*types.values()].count("Array") != 2 or "shape" in types:
        return None
    return next((position - 1 for position, name in enumerate(types) if name in ("axis", "axes")), None)


ALONG: dict[str, int] = {
    **dict.fromkeys([*declared("Reduction", "ArgReduction", "Scan"), "flip"], 0),
    **{name: position for name in DERIVED if (position := _position_of_axes(name)) is not None},
}
"""The operations along axes, and the position of the axes in their options; 0 is the first after the operand."""

SCANS = [*declared("Scan"), *(name for name in ALONG if DERIVED.get(name) is ReductionOps and "axis" in _TYPES[name])]
"""The operations that combine each element with those before it, along an axis."""

COMPOSITES: dict[str, int] = {
    name: _count(types, "Array", "Array | None", "Mask")
    for name, types in _TYPES.items()
    if f"{name}_forward" in DERIVED
}
"""The operations with a function for each direction of their derivative, and how many arrays, or None, they take."""

SEVERAL = frozenset(name for name, types in _TYPES.items() if str(types.get("return")).startswith("tuple"))
"""The operations with several results."""

"""Elementwise operations; the contract says how many operands each has."""

from __future__ import annotations

import inspect
from typing import Any

from phlox.backend.contract.arithmetic import ArithmeticOps
from phlox.backend.contract.elementwise import ElementwiseOps
from phlox.backend.contract.nn.activation import ActivationOps
from phlox.backend.contract.required import BoolOps, FloatOps, IntOps
from phlox.backend.contract.special import SpecialOps
from phlox.batching.build import ElementwiseRule, Rule

_REQUIRED = {
    name: ElementwiseRule({"Unary": 1, "Binary": 2}[annotation])
    for family in (FloatOps, IntOps, BoolOps)
    for name, annotation in family.__annotations__.items()
    if annotation in ("Unary", "Binary")
}


def _operands(function: Any) -> int:
    """The number of parameters of an operation that are, or may be, arrays."""
    parameters = inspect.signature(function).parameters.values()
    return sum(parameter.annotation in ("Array", "Any") for parameter in parameters)


_DERIVED = {
    name: ElementwiseRule(_operands(function))
    for family in (ArithmeticOps, SpecialOps, ElementwiseOps, ActivationOps)
    for name, function in vars(family).items()
    if inspect.isfunction(function) and not name.startswith("_") and name != "int_matmul"
}

ELEMENTWISE: dict[str, Rule] = {
    **_REQUIRED,
    **_DERIVED,
    "where": ElementwiseRule(3),
    "detach": ElementwiseRule(1),
    "gelu": ElementwiseRule(1),
}

"""`TracedScalar`: a Python scalar that is an argument of a compiled function, while that is traced."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from phlox.backend.tracing.lifetime_errors import leaked_tracer

if TYPE_CHECKING:
    from phlox.backend.contract.backend import Backend
    from phlox.backend.kind import Kind


class TracedScalar:
    """A tracer in place of a Python scalar. With other scalars it computes in 64 bits, as Python does.

    With a tensor or an engine's array it takes their precision (`as_operand`). Its value is not known: reading it
    raises the engine's error, as for a tensor.
    """

    __slots__ = ("backend", "value", "whole")

    __hash__ = object.__hash__
    __array_ufunc__ = None  # NumPy's scalars leave arithmetic to this class
    ndim = 0
    shape = ()

    def __init__(self, backend: Backend, value: Any, whole: bool) -> None:
        self.backend = backend
        """The engine that traces."""
        self.value = value
        """The engine's tracer of 64 bits, without axes."""
        self.whole = whole
        """Does it stand for an int?"""

    @property
    def dtype(self) -> str:
        """Its element type, as an engine's array would name it."""
        return "int64" if self.whole else "float64"

    def as_operand(self, backend: Backend, kind: type[Kind]) -> Any:
        """The scalar as an operand of a backend, beside its arrays of a kind, Float or Int."""
        return backend.promote_scalar(self._live_value(), kind)

    def _live_value(self) -> Any:
        """The tracer; `CompileError` if its trace has ended."""
        if self.backend.is_leaked(self.value, surely=True):
            raise leaked_tracer("a number", self.backend.trace_of(self.value))
        return self.value

    def expm1(self) -> TracedScalar:
        """exp(x) - 1."""
        return self._compute(self.backend.scalar_expm1, False, self)

    def _compute(self, op: Callable[..., Any], whole: bool, *operands: Any) -> TracedScalar:
        values = [x._live_value() if isinstance(x, TracedScalar) else x for x in operands]
        return TracedScalar(self.backend, self.backend.on_scalars(op, whole, *values), whole)

    def _binary(self, op: Callable[[Any, Any], Any], lhs: Any, rhs: Any) -> Any:
        other = lhs if rhs is self else rhs
        if isinstance(other, np.generic):
            return self._binary(op, *[x if x is self else x.item() for x in (lhs, rhs)])
        if not isinstance(other, (TracedScalar, int, float)):
            if not hasattr(other, "dtype") or hasattr(other, "_ops"):
                return NotImplemented  # no array of the engine: a tensor's own operator is called
            value = self.backend.scalar_as_operand(self._live_value(), other)
            return op(*[value if x is self else x for x in (lhs, rhs)])
        whole = _is_whole(lhs) and _is_whole(rhs) and op.__name__ != "truediv"
        if op.__name__ == "pow" and not (isinstance(rhs, int) and rhs >= 0):
            whole = False  # a negative exponent gives a float
        return self._compute(op, whole, lhs, rhs)

    def _compared(self, op: Callable[[Any, Any], Any], other: Any) -> Any:
        if not isinstance(other, (TracedScalar, int, float)):
            return self._binary(op, self, other)
        are_ints = _is_whole(self) and _is_whole(other)
        return self._compute(operator.mul, True, self._compute(op, are_ints, self, other), 1)  # a truth value as an int

    def __neg__(self) -> TracedScalar:
        return self._compute(operator.neg, self.whole, self)

    def __pos__(self) -> TracedScalar:
        return self

    def __abs__(self) -> TracedScalar:
        return self._compute(operator.abs, self.whole, self)

    # These need a value: the engine raises its error.

    def __float__(self) -> float:
        return float(self._live_value())

    def __int__(self) -> int:
        return int(self._live_value())

    def __index__(self) -> int:
        return operator.index(self._live_value())

    def __bool__(self) -> bool:
        return bool(self._live_value())

    def __round__(self, digits: int | None = None) -> float:
        return round(float(self), digits)

    def __format__(self, spec: str) -> str:
        return format(float(self), spec) if spec else repr(self)

    def __repr__(self) -> str:
        return f"TracedScalar({'int' if self.whole else 'float'})"


def _is_whole(x: Any) -> bool:
    return x.whole if isinstance(x, TracedScalar) else isinstance(x, int)


def _add_operators() -> None:
    def binary(op: Callable[[Any, Any], Any]) -> tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]:
        def method(self: TracedScalar, other: Any) -> Any:
            return self._binary(op, self, other)  # pyright: ignore[reportPrivateUsage]

        def reflected(self: TracedScalar, other: Any) -> Any:
            return self._binary(op, other, self)  # pyright: ignore[reportPrivateUsage]

        return method, reflected

    def comparison(op: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        return lambda self, other: self._compared(op, other)

    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
        method, reflected = binary(getattr(operator, name))
        setattr(TracedScalar, f"__{name}__", method)
        setattr(TracedScalar, f"__r{name}__", reflected)
    for name in ("lt", "le", "gt", "ge", "eq", "ne"):
        setattr(TracedScalar, f"__{name}__", comparison(getattr(operator, name)))


_add_operators()

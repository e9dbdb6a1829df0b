"""Operands of named methods. An invalid operand raises at once, since there is no reflected method to try."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from phlox.errors import KindError
from phlox.tensor.base import TensorBase, binary


def _operand_error(name: str, value: Any) -> KindError:
    return KindError(f"{name}: an operand must be a tensor or a scalar, got {type(value).__name__}")


def function(name: str, doc: str) -> Callable[[Any, Any], Any]:
    """A named (not operator) method of two operands of one kind."""
    operator = binary(name, doc)

    def method(self: Any, other: Any) -> Any:
        result = operator(self, other)
        if result is NotImplemented:
            raise _operand_error(name, other)
        return result

    method.__doc__ = doc
    return method


class Operands(TensorBase):
    """Checks of operands and options of methods."""

    __slots__ = ()

    def _promote_operands(self, name: str, *others: Any) -> tuple[Self, list[Any]]:
        """Promote this tensor and the operands to one backend. The operands become arrays or scalars; None stays."""
        me = self
        for other in others:
            me = me._promoted_with(other)
        operands: list[Any] = []
        for other in others:
            operand = None if other is None else me._operand(name, other)
            if operand is NotImplemented:
                raise _operand_error(name, other)
            operands.append(operand)
        return me, operands

    def _scalar_option(self, name: str, option: str, value: Any) -> Any:
        """Check an option that must be a scalar."""
        if isinstance(value, TensorBase):
            raise KindError(f"{name}: `{option}` must be a number, got a tensor; give {option}.item()")
        operand = self._operand(name, value)
        if operand is NotImplemented:
            raise KindError(f"{name}: `{option}` must be a number, got {type(value).__name__}")
        return operand

"""Operators and elementwise functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from phlox.backend import Bool
from phlox.errors import ShapeError
from phlox.tensor.base import Number, TensorBase, binary, comparison, reflected
from phlox.tensor.operands import function

if TYPE_CHECKING:
    from phlox.tensor.tensor import Tensor


class Arithmetic(TensorBase):
    """Operands broadcast as in NumPy. Python scalars take the tensor's kind. Tensors of different kinds do not mix."""

    __slots__ = ()

    if TYPE_CHECKING:

        def __add__(self, other: Self | Number) -> Self: ...
        def __radd__(self, other: Number) -> Self: ...
        def __sub__(self, other: Self | Number) -> Self: ...
        def __rsub__(self, other: Number) -> Self: ...
        def __mul__(self, other: Self | Number) -> Self: ...
        def __rmul__(self, other: Number) -> Self: ...
        def __truediv__(self, other: Self | Number) -> Self: ...
        def __rtruediv__(self, other: Number) -> Self: ...
        def __floordiv__(self, other: Self | Number) -> Self: ...
        def __rfloordiv__(self, other: Number) -> Self: ...
        def __mod__(self, other: Self | Number) -> Self: ...
        def __rmod__(self, other: Number) -> Self: ...
        def __pow__(self, other: Self | Number) -> Self: ...
        def __rpow__(self, other: Number) -> Self: ...
        def __and__(self, other: Self | int) -> Self: ...
        def __rand__(self, other: int) -> Self: ...
        def __or__(self, other: Self | int) -> Self: ...
        def __ror__(self, other: int) -> Self: ...
        def __xor__(self, other: Self | int) -> Self: ...
        def __rxor__(self, other: int) -> Self: ...
        def __lshift__(self, other: Self | int) -> Self: ...
        def __rlshift__(self, other: int) -> Self: ...
        def __rshift__(self, other: Self | int) -> Self: ...
        def __rrshift__(self, other: int) -> Self: ...
        def __eq__(self, other: object) -> Tensor[Any, Any, Bool]: ...  # pyright: ignore[reportIncompatibleMethodOverride]
        def __ne__(self, other: object) -> Tensor[Any, Any, Bool]: ...  # pyright: ignore[reportIncompatibleMethodOverride]
        def __lt__(self, other: Self | Number) -> Tensor[Any, Any, Bool]: ...
        def __le__(self, other: Self | Number) -> Tensor[Any, Any, Bool]: ...
        def __gt__(self, other: Self | Number) -> Tensor[Any, Any, Bool]: ...
        def __ge__(self, other: Self | Number) -> Tensor[Any, Any, Bool]: ...
        def maximum(self, other: Self | Number) -> Self: ...
        def minimum(self, other: Self | Number) -> Self: ...
        def fmod(self, other: Self | Number) -> Self: ...
    else:
        __add__ = binary("add", "Elementwise sum.")
        __radd__ = reflected("add")
        __sub__ = binary("sub", "Elementwise difference.")
        __rsub__ = reflected("sub")
        __mul__ = binary("mul", "Elementwise product.")
        __rmul__ = reflected("mul")
        __truediv__ = binary("div", "Elementwise quotient of Float tensors; for Int tensors use `//`.")
        __rtruediv__ = reflected("div")
        __floordiv__ = binary(
            "floordiv",
            "The quotient rounded down. Division by zero: ZeroDivisionError (Int), infinity or NaN (Float).",
        )
        __rfloordiv__ = reflected("floordiv")
        __mod__ = binary("mod", "The remainder of `//`, with the divisor's sign. By zero: ZeroDivisionError, or NaN.")
        __rmod__ = reflected("mod")
        __pow__ = binary("pow", "Elementwise power.")
        __rpow__ = reflected("pow")
        __and__ = binary("and", "Elementwise `and` of Bool tensors; of Int tensors, bit by bit.")
        __rand__ = reflected("and")
        __or__ = binary("or", "Elementwise `or` of Bool tensors; of Int tensors, bit by bit.")
        __ror__ = reflected("or")
        __xor__ = binary("xor", "Elementwise exclusive `or` of Bool tensors; of Int tensors, bit by bit.")
        __rxor__ = reflected("xor")
        __lshift__ = binary(
            "left_shift",
            """Left shift of Int tensors: x * 2**n, with wrap-around.

        The result is 0 if n is negative, or at least the number of bits of the dtype.
        """,
        )
        __rlshift__ = reflected("left_shift")
        __rshift__ = binary(
            "right_shift",
            """Arithmetic right shift of Int tensors: x // 2**n.

        If n is negative, or at least the number of bits of the dtype, the result is -1 for negative x and 0 for others.
        """,
        )
        __rrshift__ = reflected("right_shift")
        __eq__ = comparison("equal", "Elementwise equality, as a Bool tensor; NaN is not equal to anything.")
        __ne__ = comparison("not_equal", "Elementwise inequality, as a Bool tensor.")
        __lt__ = comparison("less", "Elementwise comparison, as a Bool tensor.")
        __le__ = comparison("less_equal", "Elementwise comparison, as a Bool tensor.")
        __gt__ = comparison("greater", "Elementwise comparison, as a Bool tensor.")
        __ge__ = comparison("greater_equal", "Elementwise comparison, as a Bool tensor.")
        maximum = function("maximum", "The greater of two values, elementwise. NaN if either is NaN.")
        minimum = function("minimum", "The lesser of two values, elementwise. NaN if either is NaN.")
        fmod = function("fmod", "The remainder of division rounded toward zero, with the dividend's sign, as in C.")

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ShapeError(
                f"the truth value of a tensor of shape {self.shape} is ambiguous; reduce it with .any() or .all() first"
            )
        return bool(self._host("bool").item())

    def __divmod__(self, other: Self | Number) -> tuple[Self, Self]:
        return self // other, self % other

    def __rdivmod__(self, other: Number) -> tuple[Self, Self]:
        return other // self, other % self

    def __neg__(self) -> Self:
        return self._apply("neg")

    def __pos__(self) -> Self:
        return self

    def __invert__(self) -> Self:
        return self._apply("not")

    def __abs__(self) -> Self:
        return self._apply("abs")

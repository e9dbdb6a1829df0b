"""Operators and elementwise functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from phlox.backend import Bool, Float
from phlox.errors import ShapeError
from phlox.tensor.base import Number, TensorBase, binary, comparison, reflected

if TYPE_CHECKING:
    from phlox.tensor.tensor import Tensor


class Arithmetic(TensorBase):
    """Operands broadcast as in NumPy; Python numbers take the tensor's kind, tensors of two kinds do not mix."""

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
        def __and__(self, other: Self | bool) -> Self: ...
        def __or__(self, other: Self | bool) -> Self: ...
        def __xor__(self, other: Self | bool) -> Self: ...
        def __eq__(self, other: object) -> Tensor[Any, Any, Bool]: ...  # pyright: ignore[reportIncompatibleMethodOverride]
        def __ne__(self, other: object) -> Tensor[Any, Any, Bool]: ...  # pyright: ignore[reportIncompatibleMethodOverride]
        def __lt__(self, other: Self | Number) -> Tensor[Any, Any, Bool]: ...
        def __le__(self, other: Self | Number) -> Tensor[Any, Any, Bool]: ...
        def __gt__(self, other: Self | Number) -> Tensor[Any, Any, Bool]: ...
        def __ge__(self, other: Self | Number) -> Tensor[Any, Any, Bool]: ...
        def maximum(self, other: Self | Number) -> Self: ...
        def minimum(self, other: Self | Number) -> Self: ...
    else:
        __add__ = binary("add", "Elementwise sum.")
        __radd__ = reflected("add")
        __sub__ = binary("sub", "Elementwise difference.")
        __rsub__ = reflected("sub")
        __mul__ = binary("mul", "Elementwise product.")
        __rmul__ = reflected("mul")
        __truediv__ = binary("div", "Elementwise quotient of Float tensors; Int tensors have `//`.")
        __rtruediv__ = reflected("div")
        __floordiv__ = binary("floordiv", "Quotient of Int tensors, rounded down; by zero is ZeroDivisionError.")
        __rfloordiv__ = reflected("floordiv")
        __mod__ = binary("mod", "Remainder of `//`, of the divisor's sign.")
        __rmod__ = reflected("mod")
        __pow__ = binary("pow", "Elementwise power.")
        __rpow__ = reflected("pow")
        __and__ = binary("and", "Elementwise `and` of Bool tensors.")
        __or__ = binary("or", "Elementwise `or` of Bool tensors.")
        __xor__ = binary("xor", "Elementwise exclusive `or` of Bool tensors.")
        __eq__ = comparison("equal", "Elementwise equality, as a Bool tensor; NaN equals nothing.")
        __ne__ = comparison("not_equal", "Elementwise inequality, as a Bool tensor.")
        __lt__ = comparison("less", "Elementwise comparison, as a Bool tensor.")
        __le__ = comparison("less_equal", "Elementwise comparison, as a Bool tensor.")
        __gt__ = comparison("greater", "Elementwise comparison, as a Bool tensor.")
        __ge__ = comparison("greater_equal", "Elementwise comparison, as a Bool tensor.")
        maximum = binary("maximum", "The greater of two values, elementwise; NaN wins.")
        minimum = binary("minimum", "The lesser of two values, elementwise; NaN wins.")

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ShapeError(
                f"a tensor of shape {self.shape} is neither true nor false; reduce it with .any() or .all() first"
            )
        return bool(self._ops.backend.to_host(self.primitive).item())

    def __neg__(self) -> Self:
        return self._apply("neg")

    def __pos__(self) -> Self:
        return self

    def __invert__(self) -> Self:
        return self._apply("not")

    def __abs__(self) -> Self:
        return self._apply("abs")

    def abs(self) -> Self:
        """|x|."""
        return self._apply("abs")

    def sign(self) -> Self:
        """-1, 0 or 1; NaN stays."""
        return self._apply("sign")

    def exp(self) -> Self:
        """e to the power x."""
        return self._apply("exp")

    def expm1(self) -> Self:
        """exp(x) - 1, exact near zero."""
        return self._apply("expm1")

    def log(self) -> Self:
        """The natural logarithm; of zero minus infinity, of negative numbers NaN."""
        return self._apply("log")

    def log1p(self) -> Self:
        """log(1 + x), exact near zero."""
        return self._apply("log1p")

    def log2(self) -> Self:
        """The logarithm of base two."""
        return self._apply("log2")

    def log10(self) -> Self:
        """The logarithm of base ten."""
        return self._apply("log10")

    def sqrt(self) -> Self:
        """The square root; of negative numbers NaN."""
        return self._apply("sqrt")

    def rsqrt(self) -> Self:
        """1 / sqrt(x)."""
        return self._apply("rsqrt")

    def square(self) -> Self:
        """x * x."""
        return self._apply("square")

    def reciprocal(self) -> Self:
        """1 / x."""
        return self._apply("reciprocal")

    def sin(self) -> Self:
        """The sine of an angle in radians."""
        return self._apply("sin")

    def cos(self) -> Self:
        """The cosine of an angle in radians."""
        return self._apply("cos")

    def tan(self) -> Self:
        """The tangent of an angle in radians."""
        return self._apply("tan")

    def tanh(self) -> Self:
        """The hyperbolic tangent."""
        return self._apply("tanh")

    def erf(self) -> Self:
        """The error function."""
        return self._apply("erf")

    def floor(self) -> Self:
        """The greatest whole number not above x."""
        return self._apply("floor")

    def ceil(self) -> Self:
        """The least whole number not below x."""
        return self._apply("ceil")

    def round(self) -> Self:
        """The nearest whole number, halves to even."""
        return self._apply("round")

    def isnan(self) -> Tensor[Any, Any, Bool]:
        """Is it not a number?"""
        return self._apply_to(Bool, "isnan")

    def isinf(self) -> Tensor[Any, Any, Bool]:
        """Is it an infinity?"""
        return self._apply_to(Bool, "isinf")

    def isfinite(self) -> Tensor[Any, Any, Bool]:
        """Is it neither an infinity nor NaN?"""
        return self._apply_to(Bool, "isfinite")

    def clip(self, low: Number | None = None, high: Number | None = None) -> Self:
        """Bound below by `low` and above by `high`; NaN stays. The gradient is one within the bounds, they included."""
        bounds = [None if bound is None else self._operand("clip", bound) for bound in (low, high)]
        return self._apply("clip", *bounds)

    # --- activations

    def relu(self) -> Self:
        """max(x, 0)."""
        return self._apply("relu")

    def sigmoid(self) -> Self:
        """1 / (1 + exp(-x))."""
        return self._apply("sigmoid")

    def silu(self) -> Self:
        """x * sigmoid(x) (Elfwing, Uchibe, Doya 2017)."""
        return self._apply("silu")

    def softplus(self) -> Self:
        """log(1 + exp(x))."""
        return self._apply("softplus")

    def gelu(self, *, approximate: bool = False) -> Self:
        """x times the normal distribution function of x (Hendrycks and Gimpel 2016), or its approximation by tanh."""
        return self._apply("gelu", approximate)

    def softmax(self, axis: int = -1) -> Self:
        """exp(x) / sum(exp(x)) along an axis, without overflow."""
        return self._softmax("softmax", axis)

    def log_softmax(self, axis: int = -1) -> Self:
        """The logarithm of `softmax`, without loss."""
        return self._softmax("log_softmax", axis)

    def _softmax(self, name: str, axis: int) -> Self:
        place = self._axis(name, axis)
        return self if self.shape[place] == 0 and self.kind is Float else self._apply(name, place)

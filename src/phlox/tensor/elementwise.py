"""Elementwise functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from phlox.backend import Bool, Float
from phlox.host.dtypes import LARGEST
from phlox.tensor.base import Number
from phlox.tensor.operands import Operands, function

if TYPE_CHECKING:
    from phlox.tensor.tensor import Tensor


class Elementwise(Operands):
    """One element of the result from one element of each operand."""

    __slots__ = ()

    if TYPE_CHECKING:

        def atan2(self, other: Self | Number) -> Self: ...
        def hypot(self, other: Self | Number) -> Self: ...
        def logaddexp(self, other: Self | Number) -> Self: ...
        def copysign(self, other: Self | Number) -> Self: ...
    else:
        atan2 = function(
            "atan2",
            """The angle in [-pi, pi] of the point whose height is this and whose width the other.

        Signed zeros and infinities are as in C; at the origin the gradient is zero.
        """,
        )
        hypot = function("hypot", "sqrt(x^2 + y^2), without overflow; where that is zero, so is the gradient.")
        logaddexp = function("logaddexp", "log(exp(x) + exp(y)), without overflow.")
        copysign = function("copysign", "|x| with the sign of the other, of minus zero too; NaN counts as positive.")

    def abs(self) -> Self:
        """|x|."""
        return self._apply("abs")

    def sign(self) -> Self:
        """-1, 0 or 1; NaN stays."""
        return self._apply("sign")

    def exp(self) -> Self:
        """e to the power x."""
        return self._apply("exp")

    def exp2(self) -> Self:
        """2 to the power x."""
        return self._apply("exp2")

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

    def cbrt(self) -> Self:
        """The cube root, of negative numbers too."""
        return self._apply("cbrt")

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

    def sinc(self) -> Self:
        """sin(pi x) / (pi x), which at zero is one."""
        return self._apply("sinc")

    def asin(self) -> Self:
        """The angle in [-pi/2, pi/2] whose sine is x; NaN beyond [-1, 1]."""
        return self._apply("asin")

    def acos(self) -> Self:
        """The angle in [0, pi] whose cosine is x; NaN beyond [-1, 1]."""
        return self._apply("acos")

    def atan(self) -> Self:
        """The angle in [-pi/2, pi/2] whose tangent is x."""
        return self._apply("atan")

    def sinh(self) -> Self:
        """The hyperbolic sine."""
        return self._apply("sinh")

    def cosh(self) -> Self:
        """The hyperbolic cosine."""
        return self._apply("cosh")

    def tanh(self) -> Self:
        """The hyperbolic tangent."""
        return self._apply("tanh")

    def asinh(self) -> Self:
        """The number whose hyperbolic sine is x."""
        return self._apply("asinh")

    def acosh(self) -> Self:
        """The number of at least zero whose hyperbolic cosine is x; NaN below 1."""
        return self._apply("acosh")

    def atanh(self) -> Self:
        """The number whose hyperbolic tangent is x; NaN beyond [-1, 1]."""
        return self._apply("atanh")

    def deg2rad(self) -> Self:
        """Degrees as radians."""
        return self._apply("deg2rad")

    def rad2deg(self) -> Self:
        """Radians as degrees."""
        return self._apply("rad2deg")

    def erf(self) -> Self:
        """The error function."""
        return self._apply("erf")

    def erfc(self) -> Self:
        """1 - erf(x), of full precision where that is small."""
        return self._apply("erfc")

    def erfinv(self) -> Self:
        """The number whose error function is x: of 1 infinity, of -1 minus infinity, NaN beyond."""
        return self._apply("erfinv")

    def lgamma(self) -> Self:
        """log(|gamma(x)|); infinity at zero, at the negative integers and at both infinities."""
        return self._apply("lgamma")

    def digamma(self) -> Self:
        """The derivative of `lgamma`; at the negative integers NaN, at zero an infinity of the opposite sign."""
        return self._apply("digamma")

    def logit(self) -> Self:
        """log(x / (1 - x)), the inverse of `sigmoid`; NaN beyond [0, 1]."""
        return self._apply("logit")

    def xlogy(self, other: Self | Number) -> Self:
        """x log(y), and zero where x is zero, unless y is NaN.

        So is its gradient there, towards x where y is not positive and towards y anywhere.
        """
        me, (y,) = self._meeting("xlogy", other)
        if isinstance(y, (int, float)) and me.kind is Float:
            y = me._ops.backend.float_full((), y, me._ops.backend.device_of(me.primitive))
        return me._apply("xlogy", y)

    def lerp(self, end: Self | Number, weight: Self | Number) -> Self:
        """x + weight (end - x): x where the weight is zero, `end` where it is one."""
        me, operands = self._meeting("lerp", end, weight)
        return me._apply("lerp", *operands)

    def floor(self) -> Self:
        """The greatest whole number not above x."""
        return self._apply("floor")

    def ceil(self) -> Self:
        """The least whole number not below x."""
        return self._apply("ceil")

    def round(self) -> Self:
        """The nearest whole number, halves to even."""
        return self._apply("round")

    def trunc(self) -> Self:
        """The nearest whole number toward zero."""
        return self._apply("trunc")

    def nan_to_num(self, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Self:
        """Numbers in place of NaN and the infinities: if not given, the greatest and the least that there are.

        The gradient there is zero.

        >>> import phlox as px
        >>> px.tensor([1.0, float("nan"), float("inf")]).nan_to_num(posinf=9.0).tolist()
        [1.0, 0.0, 9.0]
        """
        most = LARGEST[self._ops.backend.float_element]
        options = {
            "nan": nan,
            "posinf": most if posinf is None else posinf,
            "neginf": -most if neginf is None else neginf,
        }
        numbers = [self._number("nan_to_num", option, value) for option, value in options.items()]
        return self._apply("nan_to_num", *numbers)

    def signbit(self) -> Tensor[Any, Any, Bool]:
        """Is it negative, or minus zero? NaN is not."""
        return self._apply_to(Bool, "signbit")

    def isclose(
        self, other: Self | Number, *, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
    ) -> Tensor[Any, Any, Bool]:
        """|x - y| <= atol + rtol |y|; an infinity is close to itself alone, NaN to NaN if `equal_nan`."""
        me, (operand,) = self._meeting("isclose", other)
        return me._apply_to(Bool, "isclose", operand, rtol, atol, equal_nan)

    def allclose(
        self, other: Self | Number, *, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
    ) -> Tensor[Any, Any, Bool]:
        """Is every element close to the other's, see `isclose`? A Bool tensor of rank 0, which `if` and `assert` take.

        >>> import phlox as px
        >>> bool(px.tensor([1.0, 2.0]).allclose(px.tensor([1.0, 2.0 + 1e-6])))
        True
        """
        close = self.isclose(other, rtol=rtol, atol=atol, equal_nan=equal_nan)
        return close._apply("all", tuple(range(close.ndim)), False)

    def isnan(self) -> Tensor[Any, Any, Bool]:
        """Is it not a number?"""
        return self._apply_to(Bool, "isnan")

    def isinf(self) -> Tensor[Any, Any, Bool]:
        """Is it an infinity?"""
        return self._apply_to(Bool, "isinf")

    def isfinite(self) -> Tensor[Any, Any, Bool]:
        """Is it neither an infinity nor NaN?"""
        return self._apply_to(Bool, "isfinite")

    def clip(self, low: Self | Number | None = None, high: Self | Number | None = None) -> Self:
        """Bound below by `low`, then above by `high`, numbers or tensors that broadcast; NaN stays.

        The gradient goes to x within the bounds, they included, elsewhere to the bound, if that is a tensor.
        """
        me, bounds = self._meeting("clip", low, high)
        return me._apply("clip", *bounds)

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
    """Each element of the result depends on one element of each operand."""

    __slots__ = ()

    if TYPE_CHECKING:

        def atan2(self, other: Self | Number) -> Self: ...
        def hypot(self, other: Self | Number) -> Self: ...
        def logaddexp(self, other: Self | Number) -> Self: ...
        def copysign(self, other: Self | Number) -> Self: ...
    else:
        atan2 = function(
            "atan2",
            """The angle in radians, in [-pi, pi], of the point (other, self): atan2(y=self, x=other).

        Signed zeros and infinities are treated as in C. At the origin the gradient is zero.
        """,
        )
        hypot = function("hypot", "sqrt(x^2 + y^2), without overflow. Where it is zero, the gradient is zero.")
        logaddexp = function("logaddexp", "log(exp(x) + exp(y)), without overflow.")
        copysign = function("copysign", "|x| with the sign of y. -0.0 counts as negative, NaN as positive.")

    def abs(self) -> Self:
        """|x|."""
        return self._apply("abs")

    def sign(self) -> Self:
        """-1, 0 or 1; NaN for NaN."""
        return self._apply("sign")

    def exp(self) -> Self:
        """e to the power x."""
        return self._apply("exp")

    def exp2(self) -> Self:
        """2 to the power x."""
        return self._apply("exp2")

    def expm1(self) -> Self:
        """exp(x) - 1, accurate near zero."""
        return self._apply("expm1")

    def log(self) -> Self:
        """The natural logarithm. Minus infinity at zero, NaN for negative x."""
        return self._apply("log")

    def log1p(self) -> Self:
        """log(1 + x), accurate near zero."""
        return self._apply("log1p")

    def log2(self) -> Self:
        """The logarithm of base two."""
        return self._apply("log2")

    def log10(self) -> Self:
        """The logarithm of base ten."""
        return self._apply("log10")

    def sqrt(self) -> Self:
        """The square root. NaN for negative x."""
        return self._apply("sqrt")

    def cbrt(self) -> Self:
        """The cube root, also of negative x."""
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
        """sin(pi x) / (pi x); 1 at zero."""
        return self._apply("sinc")

    def asin(self) -> Self:
        """The angle in [-pi/2, pi/2] (radians) whose sine is x; NaN outside [-1, 1]."""
        return self._apply("asin")

    def acos(self) -> Self:
        """The angle in [0, pi] (radians) whose cosine is x; NaN outside [-1, 1]."""
        return self._apply("acos")

    def atan(self) -> Self:
        """The angle in [-pi/2, pi/2] (radians) whose tangent is x."""
        return self._apply("atan")

    def sinh(self) -> Self:
        """The hyperbolic sine."""
        return self._apply("sinh")

    def cosh(self) -> Self:
        """The hyperbolic cosine."""
        return self._apply("cosh")

    def tanh(self) -> Self:
        """The hyperbolic tangent.

        >>> import phlox as px
        >>> px.tensor([-1.0, 0.0]).tanh().numpy().round(4)
        array([-0.7616,  0.    ], dtype=float32)
        """
        return self._apply("tanh")

    def asinh(self) -> Self:
        """The inverse hyperbolic sine."""
        return self._apply("asinh")

    def acosh(self) -> Self:
        """The inverse hyperbolic cosine, at least zero; NaN for x < 1."""
        return self._apply("acosh")

    def atanh(self) -> Self:
        """The inverse hyperbolic tangent; NaN outside [-1, 1]."""
        return self._apply("atanh")

    def deg2rad(self) -> Self:
        """Convert degrees to radians."""
        return self._apply("deg2rad")

    def rad2deg(self) -> Self:
        """Convert radians to degrees."""
        return self._apply("rad2deg")

    def erf(self) -> Self:
        """The error function."""
        return self._apply("erf")

    def erfc(self) -> Self:
        """1 - erf(x), accurate for large x, where it is small."""
        return self._apply("erfc")

    def erfinv(self) -> Self:
        """The inverse of `erf`. Infinity at 1, minus infinity at -1, NaN outside [-1, 1]."""
        return self._apply("erfinv")

    def lgamma(self) -> Self:
        """log(|gamma(x)|). Infinity at zero, at negative integers and at both infinities."""
        return self._apply("lgamma")

    def digamma(self) -> Self:
        """The derivative of `lgamma`. NaN at negative integers; at zero an infinity of the opposite sign."""
        return self._apply("digamma")

    def logit(self) -> Self:
        """log(x / (1 - x)), the inverse of `sigmoid`; NaN outside [0, 1]."""
        return self._apply("logit")

    def xlogy(self, other: Self | Number) -> Self:
        """x log(y). Zero where x is zero, unless y is NaN.

        Where x is zero, the gradient with respect to y is zero; the gradient with respect to x is zero if y <= 0.
        """
        me, (y,) = self._promote_operands("xlogy", other)
        if isinstance(y, (int, float)) and me.kind is Float:
            y = me._ops.backend.float_full((), y, me._ops.backend.device_of(me.primitive))
        return me._apply("xlogy", y)

    def lerp(self, end: Self | Number, weight: Self | Number) -> Self:
        """Linear interpolation: x + weight (end - x). x at weight 0, `end` at weight 1."""
        me, operands = self._promote_operands("lerp", end, weight)
        return me._apply("lerp", *operands)

    def floor(self) -> Self:
        """The greatest integer value <= x."""
        return self._apply("floor")

    def ceil(self) -> Self:
        """The least integer value >= x."""
        return self._apply("ceil")

    def round(self) -> Self:
        """The nearest integer value; halves round to even."""
        return self._apply("round")

    def trunc(self) -> Self:
        """The integer part: x rounded toward zero."""
        return self._apply("trunc")

    def nan_to_num(self, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Self:
        """Replace NaN and infinities. `posinf` and `neginf` default to the largest and smallest finite values.

        The gradient is zero where a value is replaced.

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
        numbers = [self._scalar_option("nan_to_num", option, value) for option, value in options.items()]
        return self._apply("nan_to_num", *numbers)

    def signbit(self) -> Tensor[Any, Any, Bool]:
        """True where x is negative or -0.0. False for NaN."""
        return self._apply_to(Bool, "signbit")

    def isclose(
        self, other: Self | Number, *, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
    ) -> Tensor[Any, Any, Bool]:
        """|x - y| <= atol + rtol |y|. Equal infinities are close. NaN is close to NaN only if `equal_nan`."""
        me, (operand,) = self._promote_operands("isclose", other)
        return me._apply_to(Bool, "isclose", operand, rtol, atol, equal_nan)

    def allclose(
        self, other: Self | Number, *, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
    ) -> Tensor[Any, Any, Bool]:
        """Are all elements close (see `isclose`)? Returns a Bool tensor of rank 0, which works in `if` and `assert`.

        >>> import phlox as px
        >>> bool(px.tensor([1.0, 2.0]).allclose(px.tensor([1.0, 2.0 + 1e-6])))
        True
        """
        close = self.isclose(other, rtol=rtol, atol=atol, equal_nan=equal_nan)
        return close._apply("all", tuple(range(close.ndim)), False)

    def isnan(self) -> Tensor[Any, Any, Bool]:
        """True where x is NaN."""
        return self._apply_to(Bool, "isnan")

    def isinf(self) -> Tensor[Any, Any, Bool]:
        """True where x is an infinity."""
        return self._apply_to(Bool, "isinf")

    def isfinite(self) -> Tensor[Any, Any, Bool]:
        """True where x is neither an infinity nor NaN."""
        return self._apply_to(Bool, "isfinite")

    def clip(self, low: Self | Number | None = None, high: Self | Number | None = None) -> Self:
        """Limit x to [low, high]. The bounds are scalars, or tensors that broadcast. NaN stays NaN.

        If low > high, the result is `high`. The gradient goes to x where low <= x <= high, else to the bound if it is a
        tensor.
        """
        me, bounds = self._promote_operands("clip", low, high)
        return me._apply("clip", *bounds)

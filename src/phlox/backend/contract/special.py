"""Transcendental functions, derived: accurate to a few roundings in single and in double precision.

The polynomials are truncated Chebyshev series of the functions in their docstrings, computed with sixty digits; the
truncated terms are below 1e-15 of the result.
"""

from __future__ import annotations

import math
from typing import Any

from phlox.backend.contract.arithmetic import ArithmeticOps
from phlox.backend.contract.types import Array

# Coefficients from the highest power to the lowest.

_ATAN = (
    -0.017829184144146384, 0.03798774160996723, -0.050360203525713255, 0.058470900966098907, -0.066629821661885055,
    0.076920481258148232, -0.090908969743919259, 0.11111110751018727, -0.14285714279381565, 0.19999999999942342,
    -0.33333333333333127, 1.0,
)  # fmt: skip
"""atan(x) / x in powers of x^2, for |x| <= tan(pi/8)."""

ERFC = (
    -3.4514974727756682e-11, 8.3937348593514175e-10, 1.2019719431115993e-9, -8.2175950590958472e-9,
    -1.3906145789331492e-8, 4.1064013668916824e-8, 1.0277997487902569e-7, -1.4047654315570615e-7,
    -6.1756176789562016e-7, 3.5576086684211486e-7, 3.4730241678391732e-6, -7.3082814687915519e-7,
    -2.0100843094843685e-5, 4.9491966499686654e-6, 0.0001250994355712809, -0.00010515971958448073,
    -0.00077983228848230837, 0.0018886903449991719, 0.0025293918180474667, -0.023770514917171337,
    0.068308027343845159, -0.11927366341538638, 0.12964515870276474, -0.047562294353449197, -0.13562110612458121,
    1.2530080582697296,
)  # fmt: skip
"""(1 + 2x) exp(x^2) erfc(x) in powers of (x - 3) / (x + 3), for x >= 0."""

# In single precision: erf(x) = x P(x^2) / Q(x^2) on [-limit, limit], beyond which it rounds to one; the minimax
# coefficients that Eigen and XLA use.
ERF_LIMIT = 3.832506856900711
ERF_NUMERATOR = (
    -2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05,
    -7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02,
)  # fmt: skip
ERF_DENOMINATOR = (
    -1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03, -1.42647390514189e-02,
)  # fmt: skip

_ERFINV_CENTRE = (
    -3.8266700213012686e-11, 3.8581611267841119e-11, 4.4154081401624546e-10, -9.7553371891364662e-10,
    -1.9762731377249386e-9, 1.1039320695967967e-8, -6.7239479321399456e-9, -7.0897121614690477e-8,
    1.9955253577447374e-7, 1.358328533200264e-7, -1.8538776245567707e-6, 2.8516533407504124e-6,
    8.6527243089922968e-6, -4.1432071610875689e-5, 2.0472417318135178e-5, 0.00029219068516379791,
    -0.00083413564362745271, -0.0004878983983282142, 0.0085254009509357096, -0.019573561059547236,
    -0.026108235777397545, 0.6166006918604175, 1.5014093511107919,
)  # fmt: skip
"""erfinv(x) / x in powers of w / 2.5 - 1, for w = -log(1 - x^2) <= 5."""

_ERFINV_FLANK = (
    7.5837997742784744e-12, 4.311199984718152e-11, -2.7826659034866917e-10, 1.332423362380815e-10,
    2.8752833994798156e-9, -1.0850553445860659e-8, 3.7499396708402092e-9, 1.1007046910416284e-7,
    -4.0694673016961589e-7, 1.5337033896333601e-7, 3.7419358019893958e-6, -1.402836885932008e-5,
    1.1619805851298237e-5, 9.1804775485642992e-5, -0.00047814103491120913, 0.0013439679942743952,
    -0.0028605526544969331, 0.0052535983841930356, 0.63116021064780656, 2.7009736434239892,
)  # fmt: skip
"""erfinv(x) / x in powers of sqrt(w), mapped to [-1, 1], for sqrt(5) <= sqrt(w) <= 3.5."""

_ERFINV_TAIL = (
    -3.9255891871091449e-10, 7.2569495619303485e-10, 1.8601898232433117e-9, -7.1994008726917249e-9,
    1.0261990309817507e-8, -6.8289189214845211e-9, -1.7836153763640704e-8, 9.9558888031075932e-8,
    -2.7280499328061642e-7, 5.4475829453914497e-7, -8.9166106964459271e-7, 1.2917301786859536e-6,
    -1.8861343451344688e-6, 3.5153491699960065e-6, -9.3817850685910356e-6, 3.0074809941558058e-5,
    -9.6782333344246245e-5, 0.00028189584819707541, -0.00062500991660948876, 1.7285160722187725e-5,
    1.3134258156686891, 4.6478426080975125,
)  # fmt: skip
"""The same for 3.5 <= sqrt(w) <= 6.1, the largest value in double precision."""

_LGAMMA = (
    -5.1176844538117446e-13, 2.1270762170785404e-12, -6.5662150466258726e-12, 2.8075860826633895e-11,
    -1.2481294697143872e-10, 5.3524559714714045e-10, -2.3043102744274225e-9, 1.001249236957858e-8,
    -4.3873390300491619e-8, 1.9425327031438992e-7, -8.7169824490811339e-7, 3.9817930886596665e-6,
    -1.8636779875052926e-5, 9.0328447844899129e-5, -0.00046159693929175601, 0.0025726010534725419,
    -0.016838075263299535, 0.16123351671205662, 0.42278433509846714,
)  # fmt: skip
"""lgamma(x) / (x - 2) in powers of 2 (x - 2), for 1.5 <= x <= 2.5."""

_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)
"""The Bernoulli numbers B2, B4, ..., for asymptotic series."""

_STIRLING = tuple(b / (2 * n * (2 * n - 1)) for n, b in enumerate(_BERNOULLI, 1))[::-1]
_DIGAMMA = tuple(b / (2 * n) for n, b in enumerate(_BERNOULLI, 1))[::-1]
_TRIGAMMA = (*_BERNOULLI[::-1], 1.0)
_FAR = 7
"""From this x on, these series are exact to double precision."""

_HALF_PI, _TAN_PI_8 = math.pi / 2.0, math.sqrt(2.0) - 1.0


class SpecialOps(ArithmeticOps):
    """Inverse trigonometric, hyperbolic and their inverses, error and gamma functions."""

    def _polynomial(self, coefficients: tuple[float, ...], x: Array) -> Array:
        """Horner's scheme, from the highest power to the lowest."""
        first, second, *others = coefficients
        y = self.float_add(self.float_mul(x, first), second)
        for coefficient in others:
            y = self.float_add(self.float_mul(y, x), coefficient)
        return y

    # --- trigonometric

    def float_tan(self, x: Array) -> Array:
        """sin(x) / cos(x)."""
        return self.float_div(self.float_sin(x), self.float_cos(x))

    def float_asin(self, x: Array) -> Array:
        """The angle in [-pi/2, pi/2] whose sine is x; NaN beyond [-1, 1]."""
        cosine = self.float_sqrt(self.float_mul(self.float_sub(1.0, x), self.float_add(x, 1.0)))
        return self.float_atan(self.float_div(x, cosine))

    def float_acos(self, x: Array) -> Array:
        """The angle in [0, pi] whose cosine is x; NaN beyond [-1, 1]."""
        halved = self.float_sqrt(self.float_div(self.float_sub(1.0, x), self.float_add(x, 1.0)))
        return self.float_mul(self.float_atan(halved), 2.0)

    def float_atan(self, x: Array) -> Array:
        """The angle in [-pi/2, pi/2] whose tangent is x."""
        size = self.float_abs(x)
        steep = self.float_less(1.0, size)
        t = self.where(steep, self.float_div(1.0, size), size)
        turned = self.float_less(_TAN_PI_8, t)
        t = self.where(turned, self.float_div(self.float_sub(t, 1.0), self.float_add(t, 1.0)), t)
        y = self.float_mul(t, self._polynomial(_ATAN, self.float_mul(t, t)))
        y = self.where(turned, self.float_add(y, _HALF_PI / 2.0), y)
        return self.float_copysign(self.where(steep, self.float_sub(_HALF_PI, y), y), x)

    def float_atan2(self, y: Array, x: Any) -> Array:
        """The angle in [-pi, pi] of the point (x, y), signed zeros and infinities as in C."""
        y, x = self._floats(y, x)
        height, width = self.float_abs(y), self.float_abs(x)
        smaller, larger = self.float_minimum(height, width), self.float_maximum(height, width)
        # For two zeros y / x counts as zero, for two infinities as one.
        equal, zero = self.float_equal(smaller, larger), self.float_equal(larger, 0.0)
        slope = self.where(zero, larger, self.where(equal, 1.0, self.float_div(smaller, larger)))
        angle = self.float_atan(slope)
        angle = self.where(self.float_less(width, height), self.float_sub(_HALF_PI, angle), angle)
        angle = self.where(self.float_signbit(x), self.float_sub(math.pi, angle), angle)
        return self.float_copysign(angle, y)

    # --- hyperbolic

    def float_sinh(self, x: Array) -> Array:
        """(exp(x) - exp(-x)) / 2, exact near zero."""
        size = self.float_abs(x)
        near = self.float_expm1(self.float_clip(x, -1.0, 1.0))
        near = self.float_mul(self.float_add(near, self.float_div(near, self.float_add(near, 1.0))), 0.5)
        half = self.float_exp(self.float_mul(size, 0.5))  # its square overflows where the result does
        far = self.float_sub(self.float_mul(self.float_mul(half, 0.5), half), self._quotient(0.5, half))
        return self.where(self.float_less(size, 1.0), near, self.float_copysign(far, x))

    def float_cosh(self, x: Array) -> Array:
        """(exp(x) + exp(-x)) / 2."""
        half = self.float_exp(self.float_mul(self.float_abs(x), 0.5))
        return self.float_add(self.float_mul(self.float_mul(half, 0.5), half), self._quotient(0.5, half))

    def _quotient(self, x: float, y: Array) -> Array:
        """x / y^2, where y^2 may overflow."""
        return self.float_div(self.float_div(x, y), y)

    def float_asinh(self, x: Array) -> Array:
        """The inverse hyperbolic sine: log(x + sqrt(1 + x^2))."""
        size = self.float_abs(x)
        small, large = self.float_minimum(size, 1.0), self.float_maximum(size, 1.0)
        square = self.float_mul(small, small)
        root = self.float_sqrt(self.float_add(square, 1.0))
        near = self.float_log1p(self.float_add(small, self.float_div(square, self.float_add(root, 1.0))))
        inverse = self.float_div(1.0, large)
        root = self.float_sqrt(self.float_add(self.float_mul(inverse, inverse), 1.0))
        far = self.float_add(self.float_log(large), self.float_log1p(root))
        return self.float_copysign(self.where(self.float_less(size, 1.0), near, far), x)

    def float_acosh(self, x: Array) -> Array:
        """The inverse hyperbolic cosine: log(x + sqrt(x^2 - 1)); NaN below 1."""
        excess = self.float_sub(self.float_minimum(x, 2.0), 1.0)
        root = self.float_mul(self.float_sqrt(excess), self.float_sqrt(self.float_add(excess, 2.0)))  # below 1 NaN
        near = self.float_log1p(self.float_add(excess, root))
        large = self.float_maximum(x, 2.0)
        inverse = self.float_div(1.0, large)
        root = self.float_sqrt(self.float_mul(self.float_sub(1.0, inverse), self.float_add(inverse, 1.0)))
        far = self.float_add(self.float_log(large), self.float_log1p(root))
        return self.where(self.float_less(2.0, x), far, near)

    def float_atanh(self, x: Array) -> Array:
        """The inverse hyperbolic tangent: log((1 + x) / (1 - x)) / 2; NaN beyond [-1, 1]."""
        size = self.float_abs(x)
        ratio = self.float_div(self.float_mul(size, 2.0), self.float_sub(1.0, size))
        return self.float_copysign(self.float_mul(self.float_log1p(ratio), 0.5), x)

    # --- error functions

    def float_erfc(self, x: Array) -> Array:
        """1 - erf(x), with full precision where the result is small."""
        size = self.float_minimum(self.float_abs(x), 40.0)
        t = self.float_sub(1.0, self.float_div(6.0, self.float_add(size, 3.0)))
        scaled = self.float_div(self._polynomial(ERFC, t), self.float_add(self.float_mul(size, 2.0), 1.0))
        # exp(-x^2) in two factors; the square of the rounded x is exact.
        rough = self.float_mul(self.float_floor(self.float_mul(size, 16.0)), 0.0625)
        correction = self.float_mul(self.float_sub(rough, size), self.float_add(rough, size))
        bell = self.float_mul(self.float_exp(self.float_neg(self.float_mul(rough, rough))), self.float_exp(correction))
        y = self.float_mul(bell, scaled)
        return self.where(self.float_less(x, 0.0), self.float_sub(2.0, y), y)

    def float_erfinv(self, x: Array) -> Array:
        """The inverse error function: infinity at 1, NaN beyond [-1, 1]."""
        w = self.float_neg(self.float_log(self.float_mul(self.float_sub(1.0, x), self.float_add(x, 1.0))))
        root = self.float_sqrt(self.float_clip(w, 5.0, 6.1 * 6.1))
        centre = self.float_sub(self.float_mul(self.float_clip(w, 0.0, 5.0), 0.4), 1.0)
        pieces = [self._polynomial(_ERFINV_CENTRE, centre)]
        for coefficients, low, high in ((_ERFINV_FLANK, math.sqrt(5.0), 3.5), (_ERFINV_TAIL, 3.5, 6.1)):
            centred = self.float_sub(self.float_clip(root, low, high), (low + high) / 2.0)
            pieces.append(self._polynomial(coefficients, self.float_mul(centred, 2.0 / (high - low))))
        ratio = self.where(self.float_less(3.5, root), pieces[2], pieces[1])
        ratio = self.where(self.float_less(w, 5.0), pieces[0], ratio)
        ratio = self.where(self.float_equal(self.float_abs(x), 1.0), math.inf, ratio)
        return self.float_mul(x, ratio)

    # --- gamma functions

    def _reflected(self, x: Array) -> tuple[Array, Array, Array]:
        """(x < 1/2, z, angle): if x < 1/2, z = 1 - x, and angle / pi is x's distance from an integer; else z = x."""
        low = self.float_less(x, 0.5)
        below = self.where(low, x, 0.5)
        turn = self.float_mul(self.float_sub(below, self.float_round(below)), math.pi)
        return low, self.where(low, self.float_sub(1.0, x), x), turn

    def float_lgamma(self, x: Array) -> Array:
        """log(|gamma(x)|); infinity at zero, at the negative integers and at both infinities."""
        negative = self.float_less(x, 0.0)
        bounded = self.float_maximum(x, -1e18)  # all floats beyond are integers
        turn = self.float_mul(self.float_sub(bounded, self.float_round(bounded)), math.pi)
        z = self.where(negative, self.float_sub(1.0, bounded), x)
        y = self._lgamma(z)
        mirrored = self.float_add(y, self.float_log(self.float_abs(self.float_sin(turn))))
        return self.where(negative, self.float_sub(math.log(math.pi), mirrored), y)

    def _lgamma(self, x: Array) -> Array:
        """lgamma for x >= 0."""
        # Below seven: step by step into [1.5, 2.5], by gamma(x + 1) = x gamma(x).
        near = self.float_minimum(x, float(_FAR))
        up = self.where(self.float_less(near, 1.5), near, 1.0)
        z = self.where(self.float_less(near, 1.5), self.float_add(near, 1.0), near)
        up, z = (
            self.where(self.float_less(z, 1.5), self.float_mul(up, z), up),
            self.where(self.float_less(z, 1.5), self.float_add(z, 1.0), z),
        )
        down = self.float_full((), 1.0, self.device_of(x))
        for _ in range(_FAR - 2):
            is_above = self.float_less(2.5, z)
            z = self.where(is_above, self.float_sub(z, 1.0), z)
            down = self.where(is_above, self.float_mul(down, z), down)
        beside = self.float_sub(z, 2.0)
        y = self.float_mul(beside, self._polynomial(_LGAMMA, self.float_mul(beside, 2.0)))
        y = self.float_add(y, self.float_sub(self.float_log(down), self.float_log(up)))
        # From seven on: Stirling's series.
        far = self.float_maximum(x, float(_FAR))
        inverse = self.float_div(1.0, far)
        tail = self.float_mul(inverse, self._polynomial(_STIRLING, self.float_mul(inverse, inverse)))
        body = self.float_mul(self.float_sub(far, 0.5), self.float_sub(self.float_log(far), 1.0))
        series = self.float_add(self.float_add(body, 0.5 * math.log(2.0 * math.pi) - 0.5), tail)
        return self.where(self.float_less(x, float(_FAR)), y, series)

    def float_digamma(self, x: Array) -> Array:
        """The derivative of `lgamma`; NaN at the negative integers, an infinity of the opposite sign at zero."""
        low, z, turn = self._reflected(self.float_maximum(x, -1e18))
        near = self.float_less(z, float(_FAR))
        y = self.float_full((), 0.0, self.device_of(x))
        for step in range(_FAR):
            y = self.float_sub(y, self.float_div(1.0, self.float_add(z, float(step))))
        far = self.where(near, self.float_add(z, float(_FAR)), z)
        inverse = self.float_div(1.0, far)
        square = self.float_mul(inverse, inverse)
        series = self.float_sub(self.float_log(far), self.float_mul(inverse, 0.5))
        series = self.float_sub(series, self.float_mul(square, self._polynomial(_DIGAMMA, square)))
        y = self.where(near, self.float_add(series, y), series)
        cotangent = self.float_div(math.pi, self.float_tan(turn))
        pole = self.bool_and(self.float_less(x, 0.0), self.float_equal(turn, 0.0))
        y = self.where(pole, math.nan, self.where(low, self.float_sub(y, cotangent), y))
        return self.where(self.float_equal(x, 0.0), self.float_div(-1.0, x), y)

    def float_trigamma(self, x: Array) -> Array:
        """The derivative of `digamma`; infinity at zero and at the negative integers."""
        low, z, turn = self._reflected(self.float_maximum(x, -1e18))
        near = self.float_less(z, float(_FAR))
        y = self.float_full((), 0.0, self.device_of(x))
        for step in range(_FAR):
            inverse = self.float_div(1.0, self.float_add(z, float(step)))
            y = self.float_add(y, self.float_mul(inverse, inverse))
        inverse = self.float_div(1.0, self.where(near, self.float_add(z, float(_FAR)), z))
        square = self.float_mul(inverse, inverse)
        series = self.float_mul(inverse, self._polynomial(_TRIGAMMA, square))
        series = self.float_add(series, self.float_mul(square, 0.5))
        y = self.where(near, self.float_add(series, y), series)
        cosecant = self.float_div(math.pi, self.float_sin(turn))
        return self.where(low, self.float_sub(self.float_mul(cosecant, cosecant), y), y)

"""Operators, comparisons and bits, derived."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from phlox.backend.contract.shape import ShapingOps
from phlox.backend.contract.types import Array
from phlox.backend.kind import Float, Int
from phlox.host.dtypes import INT_RANGES


class ArithmeticOps(ShapingOps):
    """Python's operators, elementwise, for each kind."""

    def _floats(self, lhs: Any, rhs: Any) -> tuple[Array, Array]:
        """Two operands, one of which may be a Python scalar, both as arrays."""
        if isinstance(rhs, (int, float)):
            return lhs, self.float_full((), rhs, self.device_of(lhs))
        if isinstance(lhs, (int, float)):
            return self.float_full((), lhs, self.device_of(rhs)), rhs
        return lhs, rhs

    def _ints(self, lhs: Any, rhs: Any) -> tuple[Array, Array]:
        """Two operands, one of which may be a Python scalar, both as arrays."""
        if isinstance(rhs, int):
            return lhs, self.int_full((), rhs, self.device_of(lhs))
        if isinstance(lhs, int):
            return self.int_full((), lhs, self.device_of(rhs)), rhs
        return lhs, rhs

    # --- floats: division with remainder

    def float_fmod(self, lhs: Array, rhs: Any) -> Array:
        """The exact remainder of the quotient rounded toward zero, with the dividend's sign, as in C."""
        return self.on_host(Float, np.errstate(all="ignore")(np.fmod), *self._floats(lhs, rhs))

    def float_mod(self, lhs: Array, rhs: Any) -> Array:
        """The exact remainder of `//`, with the divisor's sign, even of a zero; division by zero gives NaN."""
        lhs, rhs = self._floats(lhs, rhs)
        remainder = self.float_fmod(lhs, rhs)
        remainder = self.where(self._is_rounded_up(remainder, rhs), self.float_add(remainder, rhs), remainder)
        return self.where(self.float_equal(remainder, 0.0), self.float_copysign(remainder, rhs), remainder)

    def float_floordiv(self, lhs: Array, rhs: Any) -> Array:
        """The exact quotient rounded down, with the sign of a zero; division by zero gives an infinity, or NaN."""
        lhs, rhs = self._floats(lhs, rhs)
        remainder, quotient = self.float_fmod(lhs, rhs), self.float_div(lhs, rhs)
        toward_zero = self.float_round(self.float_div(self.float_sub(lhs, remainder), rhs))
        down = self.float_sub(toward_zero, self.bool_into_float(self._is_rounded_up(remainder, rhs)))
        down = self.where(self.float_equal(down, 0.0), self.float_copysign(down, quotient), down)
        return self.where(self.float_equal(rhs, 0.0), quotient, down)

    def _is_rounded_up(self, remainder: Array, rhs: Array) -> Array:
        """Does this remainder belong to a quotient that was rounded up?"""
        opposed = self.bool_xor(self.float_less(remainder, 0.0), self.float_less(rhs, 0.0))
        return self.bool_and(opposed, self.bool_not(self.float_equal(remainder, 0.0)))

    # --- floats: signs and bounds

    def float_signbit(self, x: Array) -> Array:
        """Is it less than zero, or minus zero? NaN is not."""
        below_zero = self.float_less(self.float_div(1.0, x), 0.0)
        return self.bool_or(self.float_less(x, 0.0), self.bool_and(self.float_equal(x, 0.0), below_zero))

    def float_copysign(self, x: Array, sign: Any) -> Array:
        """|x| with the sign of `sign`; NaN counts as positive."""
        x, sign = self._floats(x, sign)
        size = self.float_abs(x)
        return self.where(self.float_signbit(sign), self.float_neg(size), size)

    def float_clip(self, x: Array, low: Any, high: Any) -> Array:
        """Bound below, then above, each by a number or an array, or not at all (None); NaN stays NaN."""
        if low is not None:
            x = self.float_maximum(x, low)
        return x if high is None else self.float_minimum(x, high)

    def int_clip(self, x: Array, low: Any, high: Any) -> Array:
        """Bound below, then above, each by a number or an array, or not at all (None)."""
        if low is not None:
            x = self.int_maximum(x, low)
        return x if high is None else self.int_minimum(x, high)

    # --- comparison

    def float_not_equal(self, lhs: Array, rhs: Any) -> Array:
        """NaN differs from everything, itself too."""
        return self.bool_not(self.float_equal(lhs, rhs))

    def float_greater(self, lhs: Array, rhs: Any) -> Array:
        """Is the left greater?"""
        return self.float_less(rhs, lhs)

    def float_greater_equal(self, lhs: Array, rhs: Any) -> Array:
        """Is the left greater or equal?"""
        return self.float_less_equal(rhs, lhs)

    def float_isnan(self, x: Array) -> Array:
        """Is it not a number?"""
        return self.float_not_equal(x, x)

    def float_isinf(self, x: Array) -> Array:
        """Is it an infinity?"""
        return self.float_equal(self.float_abs(x), math.inf)

    def float_isfinite(self, x: Array) -> Array:
        """Is it neither an infinity nor NaN?"""
        return self.float_less(self.float_abs(x), math.inf)

    def float_isclose(self, lhs: Array, rhs: Any, rtol: float, atol: float, equal_nan: bool) -> Array:
        """|lhs - rhs| <= atol + rtol |rhs|; an infinity is close only to itself, and NaN to NaN if `equal_nan`."""
        lhs, rhs = self._floats(lhs, rhs)
        # Infinities are left out, since their difference would be NaN, and everything would be close to them.
        finite = self.bool_and(self.float_isfinite(lhs), self.float_isfinite(rhs))
        x, y = self.where(finite, lhs, 0.0), self.where(finite, rhs, 0.0)
        tolerance = self.float_add(self.float_mul(self.float_abs(y), rtol), atol)
        within = self.float_less_equal(self.float_abs(self.float_sub(x, y)), tolerance)
        close = self.bool_or(self.float_equal(lhs, rhs), self.bool_and(finite, within))
        return self.bool_or(close, self.bool_and(self.float_isnan(lhs), self.float_isnan(rhs))) if equal_nan else close

    def int_not_equal(self, lhs: Array, rhs: Any) -> Array:
        """Do they differ?"""
        return self.bool_not(self.int_equal(lhs, rhs))

    def int_greater(self, lhs: Array, rhs: Any) -> Array:
        """Is the left greater?"""
        return self.int_less(rhs, lhs)

    def int_greater_equal(self, lhs: Array, rhs: Any) -> Array:
        """Is the left greater or equal?"""
        return self.int_less_equal(rhs, lhs)

    def bool_equal(self, lhs: Array, rhs: Any) -> Array:
        """Are they the same?"""
        return self.bool_not(self.bool_xor(lhs, rhs))

    def bool_not_equal(self, lhs: Array, rhs: Any) -> Array:
        """Do they differ?"""
        return self.bool_xor(lhs, rhs)

    # --- ints: products and bits, of two's complement

    def int_square(self, x: Array) -> Array:
        """x * x."""
        return self.int_mul(x, x)

    def int_matmul(self, lhs: Array, rhs: Array) -> Array:
        """`[..., m, k] @ [..., k, n]`, both of rank two or more; batch axes broadcast."""
        rows, columns = len(self.shape(lhs)), len(self.shape(rhs))
        products = self.int_mul(self.expand_dims(lhs, (rows,)), self.expand_dims(rhs, (columns - 2,)))
        return self.int_sum(products, (len(self.shape(products)) - 2,), False)

    def int_and(self, lhs: Array, rhs: Any) -> Array:
        """The bits that both have."""
        return self._bits(np.bitwise_and, lhs, rhs)

    def int_or(self, lhs: Array, rhs: Any) -> Array:
        """The bits that either has."""
        return self._bits(np.bitwise_or, lhs, rhs)

    def int_xor(self, lhs: Array, rhs: Any) -> Array:
        """The bits that only one of them has."""
        return self._bits(np.bitwise_xor, lhs, rhs)

    def _bits(self, function: Callable[[Any, Any], Any], lhs: Any, rhs: Any) -> Array:
        return self.on_host(Int, function, *self._ints(lhs, rhs))

    def int_not(self, x: Array) -> Array:
        """Every bit inverted: -1 - x."""
        return self.int_sub(-1, x)

    def int_left_shift(self, lhs: Array, rhs: Any) -> Array:
        """lhs * 2^rhs; zero for a shift by at least the width of the element, or by a negative number."""
        lhs, rhs = self._ints(lhs, rhs)
        widths, inside = self._shift_widths(rhs)
        return self.where(inside, self.int_mul(lhs, self.int_pow(2, widths)), 0)

    def int_right_shift(self, lhs: Array, rhs: Any) -> Array:
        """lhs // 2^rhs; only the sign is left for a shift by at least the element's width, or by a negative number.

        Then the result is -1 for negative numbers, 0 for others.
        """
        lhs, rhs = self._ints(lhs, rhs)
        widths, _ = self._shift_widths(rhs)
        first = self.int_floordiv(widths, 2)  # in two steps, since the greatest power of two is no integer
        halved = self.int_floordiv(lhs, self.int_pow(2, first))
        return self.int_floordiv(halved, self.int_pow(2, self.int_sub(widths, first)))

    def _shift_widths(self, by: Array) -> tuple[Array, Array]:
        """By how many bits to shift, and whether any bit stays."""
        last = INT_RANGES[self.int_element][1].bit_length()
        inside = self.bool_and(self.int_less_equal(0, by), self.int_less_equal(by, last))
        return self.where(inside, by, last), inside

"""The operations that a backend must provide: plain functions on its own arrays, one for each kind.

An entry here is a declaration; a backend gives it a value (`float_add = staticmethod(np.add)`) or defines a method.
An operation that it leaves out is *unsupported*: using it raises an error that names the operation and the backend.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from phlox.backend.contract.types import ArgReduction, Array, Arrays, Axes, Binary, Index, Reduction, Scan, Shape, Unary
from phlox.backend.device import Device


class ShapeOps:
    """Shapes and slices; the same function for every kind."""

    reshape: Callable[[Array, Shape], Array]
    permute_dims: Callable[[Array, Axes], Array]
    broadcast_to: Callable[[Array, Shape], Array]
    flip: Callable[[Array, Axes], Array]
    concat: Callable[[Arrays, int], Array]
    pad: Callable[[Array, tuple[tuple[int, int], ...], float], Array]
    """`(x, widths, value)`: one pair (before, after) for each axis."""
    index: Callable[[Array, Index], Array]
    """Basic indexing; integers remove their axis."""
    take: Callable[[Array, Array, int], Array]
    """`(x, indices, axis)`: the axis is replaced by the axes of `indices`; an index out of range is IndexRangeError."""
    take_along_axis: Callable[[Array, Array, int], Array]
    where: Callable[[Array, Any, Any], Array]
    """`(condition, if_true, if_false)`, broadcast."""


class FloatOps:
    """Real numbers."""

    float_full: Callable[[Shape, float, Device], Array]
    float_add: Binary
    float_sub: Binary
    float_mul: Binary
    float_div: Binary
    float_pow: Binary
    float_maximum: Binary
    """NaN wins."""
    float_minimum: Binary

    float_neg: Unary
    float_abs: Unary
    float_sign: Unary
    float_floor: Unary
    float_ceil: Unary
    float_round: Unary
    """Half to even."""
    float_exp: Unary
    float_expm1: Unary
    float_log: Unary
    float_log1p: Unary
    float_sqrt: Unary
    float_sin: Unary
    float_cos: Unary
    float_tanh: Unary
    float_erf: Unary

    float_equal: Binary
    float_less: Binary
    float_less_equal: Binary

    float_sum: Reduction
    float_prod: Reduction
    float_max: Reduction
    """NaN wins; of an empty axis: ShapeError."""
    float_min: Reduction
    float_argmax: ArgReduction
    float_argmin: ArgReduction
    float_cumsum: Scan
    float_matmul: Callable[[Array, Array], Array]
    """`[..., m, k] @ [..., k, n]`, both of rank two or more; batch axes broadcast."""

    float_into_int: Unary
    """Rounded toward zero; NaN and values out of range raise RangeError if values are known (not for tracers)."""
    float_into_bool: Unary


class IntOps:
    """Integers in two's complement: arithmetic wraps around."""

    int_full: Callable[[Shape, int, Device], Array]
    int_arange: Callable[[int, int, int, Device], Array]
    int_add: Binary
    int_sub: Binary
    int_mul: Binary
    int_floordiv: Binary
    """Rounded toward minus infinity, as in Python; division by zero is an error if values are known."""
    int_mod: Binary
    """With the divisor's sign, as in Python."""
    int_pow: Binary
    int_maximum: Binary
    int_minimum: Binary
    int_neg: Unary
    int_abs: Unary
    int_sign: Unary
    int_equal: Binary
    int_less: Binary
    int_less_equal: Binary
    int_sum: Reduction
    int_prod: Reduction
    int_max: Reduction
    int_min: Reduction
    int_argmax: ArgReduction
    int_argmin: ArgReduction
    int_cumsum: Scan
    int_into_float: Unary
    int_into_bool: Unary


class BoolOps:
    """Truth values."""

    bool_full: Callable[[Shape, bool, Device], Array]
    bool_and: Binary
    bool_or: Binary
    bool_xor: Binary
    bool_not: Unary
    bool_any: Reduction
    bool_all: Reduction
    bool_into_int: Unary
    bool_into_float: Unary


class RandomOps:
    """Draws of the counter-based generator; `state` is three 32-bit words: the key's two and the draw's position.

    A `RowGroup` may follow the device; the result is then this process's rows of a draw for the whole batch, see
    `phlox.backend.parallel`. A backend that never trains in several processes need not support it.
    """

    random_uniform: Callable[[Array, Shape, Device], Array]
    """Floats in [0, 1), with 24 random bits."""
    random_normal: Callable[[Array, Shape, Device], Array]
    random_bernoulli: Callable[[Array, Shape, int, Device], Array]
    """`(state, shape, threshold, device)`: true with probability threshold / 65536."""
    random_integers: Callable[[Array, Shape, int, int, Device], Array]
    """`(state, shape, low, high, device)`: integers in [low, high)."""
    random_permutation: Callable[[Array, int, Device], Array]

"""The error function, which NumPy lacks."""

from __future__ import annotations

from typing import Any

import numpy as np

from phlox.backend.contract.special import ERF_DENOMINATOR, ERF_LIMIT, ERF_NUMERATOR, ERFC
from phlox.backend.numpy.blocks import Block, by_blocks

_NEAR = (
    -4.2320376764874592e-12, 8.7097552328517897e-11, -1.2164764337224506e-9, 1.4792435426962471e-8,
    -1.6364645854816388e-7, 1.6462045711013025e-6, -1.4925647581008593e-5, 0.00012055332903350668,
    -0.00085483270219454273, 0.0052239776254234544, -0.026866170645129854, 0.1128379167095512, -0.37612638903183752,
    1.1283791670955126,
)  # fmt: skip
"""In double precision: erf(x) / x in powers of x^2, for |x| <= 1; beyond, it is one minus `erfc`."""


def erf(x: Any) -> Any:
    """The error function, to 4e-7 in float32 and to a few roundings in float64."""
    x = np.asarray(x)
    return by_blocks(_single if x.dtype == np.float32 else _double, x)


def _horner(coefficients: tuple[float, ...], x: Block, out: Block) -> Block:
    """A polynomial, from the highest power to the lowest, into `out`, which must not be `x`."""
    out[...] = coefficients[0]
    for coefficient in coefficients[1:]:
        out *= x
        out += coefficient
    return out


def _single(x: Block, out: Block) -> None:
    clipped = np.clip(x, -ERF_LIMIT, ERF_LIMIT)
    square = clipped * clipped
    _horner(ERF_NUMERATOR, square, out)
    out *= clipped
    out /= _horner(ERF_DENOMINATOR, square, np.empty_like(out))


def _double(x: Block, out: Block) -> None:
    size = np.minimum(np.abs(x), 7.0)
    far = _horner(ERFC, 1.0 - 6.0 / (size + 3.0), np.empty_like(out))
    far *= np.exp(-size * size)
    far /= 2.0 * size + 1.0
    np.copysign(1.0 - far, x, out=out)
    near = np.abs(x) < 1.0
    few = x[near]
    out[near] = few * _horner(_NEAR, few * few, np.empty_like(few))

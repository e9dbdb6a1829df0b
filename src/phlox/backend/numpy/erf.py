"""The error function, which NumPy lacks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

# erf(x) = x P(x^2) / Q(x^2) on [-LIMIT, LIMIT], beyond which it rounds to one in float32; the minimax coefficients that
# Eigen and XLA use, highest power first.
_LIMIT = 3.832506856900711
_P = (
    -2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05,
    -7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02,
)  # fmt: skip
_Q = (
    -1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03, -1.42647390514189e-02,
)  # fmt: skip

_exact = np.frompyfunc(math.erf, 1, 1)


def erf(x: Any) -> Any:
    """The error function: by a rational function in float32 (to 4e-7), by the C library in float64."""
    x = np.asarray(x)
    if x.dtype != np.float32:
        return np.asarray(_exact(x), x.dtype).reshape(x.shape)
    flat = x.reshape(-1)
    out = np.empty_like(flat)
    for start in range(0, flat.size, BLOCK):
        erf_block(flat[start : start + BLOCK], out[start : start + BLOCK])
    return out.reshape(x.shape)


BLOCK = 16384
"""Elements a block: the temporaries of a blocked composite stay in the second-level cache."""


def erf_block(x: np.ndarray[Any, Any], out: np.ndarray[Any, Any]) -> None:
    """erf of a float32 block into `out`, which must not be `x`."""
    clipped = np.clip(x, -_LIMIT, _LIMIT)
    square = clipped * clipped
    q = np.full_like(square, _Q[0])
    for coefficient in _Q[1:]:
        q *= square
        q += coefficient
    out[...] = _P[0]
    for coefficient in _P[1:]:
        out *= square
        out += coefficient
    out *= clipped
    out /= q

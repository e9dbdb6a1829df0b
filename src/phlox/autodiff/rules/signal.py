"""Fourier transforms and frames: linear maps, whose derivatives are their transposes."""

from __future__ import annotations

from typing import Any

from phlox.autodiff.build import General, Rule
from phlox.backend.contract import Backend
from phlox.backend.contract.signal import multiplicity
from phlox.backend.contract.types import Array, Gradients


def _counts(B: Backend, like: Array, n: int) -> Array:
    """How often each frequency counts: twice if it stands for a conjugate pair, else once."""
    return B.reshape(multiplicity(B, like, n), (n // 2 + 1, 1))


def _rfft(B: Backend, n: int, g: Array, needed: object) -> Gradients:
    """The real part of a sum over half of the frequencies; the division undoes the double counting of `irfft`."""
    return (B.irfft(B.float_div(g, _counts(B, g, n)), n),)


def _irfft(B: Backend, saved: Any, g: Array, needed: object, n: int) -> Gradients:
    return (B.float_mul(B.rfft(g), _counts(B, g, n)),)


SIGNAL: dict[str, Rule] = {
    "rfft": General(1, lambda B, x: (B.rfft(x), B.shape(x)[-1]), _rfft),
    "irfft": General(1, lambda B, x, n: (B.irfft(x, n), None), _irfft),
    "fft": General(
        1,
        lambda B, x, inverse: (B.fft(x, inverse), None),
        lambda B, saved, g, needed, inverse: (B.fft(g, not inverse),),
    ),
    "frame": General(
        1,
        lambda B, x, length, hop: (B.frame(x, length, hop), B.shape(x)[-1]),
        lambda B, size, g, needed, length, hop: (B.overlap_add(g, hop, size),),
    ),
    "overlap_add": General(
        1,
        lambda B, x, hop, size: (B.overlap_add(x, hop, size), B.shape(x)),
        lambda B, shape, g, needed, hop, size: (B.frame(g, shape[-1], hop),),
    ),
}

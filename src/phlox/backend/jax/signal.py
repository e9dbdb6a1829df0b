"""Fourier transforms on JAX."""

# JAX's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from phlox.backend.contract import Backend
from phlox.backend.contract.signal import SignalOps
from phlox.backend.contract.types import Array
from phlox.backend.jax.ops import op
from phlox.backend.jax.sizes import is_symbolic


def _complex(x: Array) -> Array:
    return lax.complex(x[..., 0], x[..., 1])


def _pairs(x: Array) -> Array:
    return jnp.stack([x.real, x.imag], -1)


@op()
def _rfft(x: Array) -> Array:
    return _pairs(jnp.fft.rfft(x))


@op(1)
def _irfft(x: Array, n: int) -> Array:
    return jnp.fft.irfft(_complex(x), n, norm="forward")


@op(1)
def _fft(x: Array, inverse: bool) -> Array:
    z = _complex(x)
    return _pairs(jnp.fft.ifft(z, norm="forward") if inverse else jnp.fft.fft(z))


_frame = op(0, 2, 3)(SignalOps.frame)
_overlap_add = op(0, 2, 3)(SignalOps.overlap_add)


class Signal(Backend):
    """See `phlox.backend.contract.signal`."""

    # JAX transforms only axes of a known size; for symbolic sizes, the contract's matrix products are used.

    def rfft(self, x: Array) -> Array:
        return super().rfft(x) if is_symbolic(x.shape[-1]) else _rfft(x)

    def irfft(self, x: Array, n: int) -> Array:
        return super().irfft(x, n) if is_symbolic(n) else _irfft(x, n)

    def fft(self, x: Array, inverse: bool) -> Array:
        return super().fft(x, inverse) if is_symbolic(x.shape[-2]) else _fft(x, inverse)

    def frame(self, x: Array, length: int, hop: int) -> Array:
        return _frame(self, x, length, hop)

    def overlap_add(self, x: Array, hop: int, size: int) -> Array:
        return _overlap_add(self, x, hop, size)

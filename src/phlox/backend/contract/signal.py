"""Fourier transforms and frames, derived.

The definitions by products with matrices of cosines and sines take n^2 operations; every engine has a fast transform.
"""

from __future__ import annotations

import math

from phlox.backend.contract.linalg import LinalgOps
from phlox.backend.contract.matrices import last
from phlox.backend.contract.types import Array
from phlox.backend.tracing.dimension import ratio


def multiplicity(B: LinalgOps, like: Array, n: int) -> Array:
    """How often each of the n // 2 + 1 frequencies of a real signal occurs among all n: [n // 2 + 1]."""
    k = B.int_arange(0, n // 2 + 1, 1, B.device_of(like))
    alone = B.bool_or(B.int_equal(k, 0), B.int_equal(B.int_mul(k, 2), n))
    return B.where(alone, 1.0, 2.0)


class SignalOps(LinalgOps):
    """Transforms and frames of signals; a complex number is a pair (real, imaginary) along a last axis of size two."""

    # --- transforms, none of which is scaled

    def rfft(self, x: Array) -> Array:
        """X_k = sum of x_t exp(-2 pi i k t / n) for k = 0, ..., n // 2: real [..., n] to complex [..., n // 2 + 1]."""
        n = self.shape(x)[-1]
        count = n // 2 + 1
        cos, sin = self._waves(x, n, count)
        return self._pair(self._product(x, cos), self.float_neg(self._product(x, sin)))

    def irfft(self, x: Array, n: int) -> Array:
        """x_t = sum of X_k exp(2 pi i k t / n) over all n values of k, which follow from the half [..., n // 2 + 1].

        The imaginary part of X_0 (and of X_{n/2}, for even n) has no effect.
        """
        real, imaginary = self._real_and_imag(x)
        cos, sin = self._waves(x, n, n // 2 + 1)
        weights = multiplicity(self, x, n)
        real, imaginary = self.float_mul(real, weights), self.float_mul(imaginary, weights)
        return self.float_sub(self._times_transposed(real, cos), self._times_transposed(imaginary, sin))

    def fft(self, x: Array, inverse: bool) -> Array:
        """X_k = sum of x_t exp(-2 pi i k t / n), or with the other sign: complex [..., n] to complex [..., n]."""
        real, imaginary = self._real_and_imag(x)
        n = self.shape(real)[-1]
        cos, sin = self._waves(x, n, n)
        if inverse:
            sin = self.float_neg(sin)
        return self._pair(
            self.float_add(self._product(real, cos), self._product(imaginary, sin)),
            self.float_sub(self._product(imaginary, cos), self._product(real, sin)),
        )

    # --- frames

    def frame(self, x: Array, length: int, hop: int) -> Array:
        """Windows of a signal [..., t], one every `hop` samples: [..., count, length]."""
        *batch, t = self.shape(x)
        count, blocks = (t - length) // hop + 1, -(-length // hop)
        needed = (count + blocks - 1) * hop
        if t > needed:
            x = self.index(x, last((*batch, t), slice(0, needed, 1)))
        elif t < needed:
            x = self.pad(x, (*((0, 0),) * len(batch), (0, needed - t)), 0.0)
        x = self.reshape(x, (*batch, count + blocks - 1, hop))
        shape = self.shape(x)
        parts = [self.index(x, last(shape, slice(i, i + count, 1), slice(0, hop, 1))) for i in range(blocks)]
        frames = parts[0] if blocks == 1 else self.concat(parts, len(batch) + 1)
        return self.index(frames, last(self.shape(frames), slice(0, length, 1)))

    def overlap_add(self, x: Array, hop: int, size: int) -> Array:
        """The sum [..., size] of frames [..., count, length], one every `hop` samples: the transpose of `frame`.

        The last frame ends fewer than `hop` samples before the end of the signal.
        """
        *batch, count, length = self.shape(x)
        blocks = -(-length // hop)
        untouched = ((0, 0),) * len(batch)
        x = self.pad(x, (*untouched, (0, 0), (0, blocks * hop - length)), 0.0)
        shape = self.shape(x)
        total: Array = None
        for block in range(blocks):
            part = self.index(x, last(shape, slice(block * hop, (block + 1) * hop, 1)))
            part = self.pad(part, (*untouched, (block, blocks - 1 - block), (0, 0)), 0.0)
            total = part if total is None else self.float_add(total, part)
        length = (count + blocks - 1) * hop
        total = self.reshape(total, (*batch, length))
        if size < length:
            total = self.index(total, last((*batch, length), slice(0, size, 1)))
        return self.pad(total, (*untouched, (0, size - length)), 0.0) if size > length else total

    # --- parts of the definitions

    def _pair(self, real: Array, imaginary: Array) -> Array:
        rank = len(self.shape(real))
        return self.concat((self.expand_dims(real, (rank,)), self.expand_dims(imaginary, (rank,))), rank)

    def _real_and_imag(self, x: Array) -> tuple[Array, Array]:
        shape = self.shape(x)
        return self.index(x, last(shape, 0)), self.index(x, last(shape, 1))

    def _product(self, x: Array, waves: Array) -> Array:
        return self.float_dot_general(x, waves, ((), ()), ((len(self.shape(x)) - 1,), (0,)))

    def _times_transposed(self, x: Array, waves: Array) -> Array:
        return self.float_dot_general(x, waves, ((), ()), ((len(self.shape(x)) - 1,), (1,)))

    def _waves(self, like: Array, n: int, count: int) -> tuple[Array, Array]:
        """The cosines and sines of 2 pi k t / n: [n, count], for t and k."""
        device = self.device_of(like)
        t = self.reshape(self.int_arange(0, n, 1, device), (n, 1))
        k = self.reshape(self.int_arange(0, count, 1, device), (1, count))
        # Full turns are subtracted as integers, which is exact.
        angle = self.float_mul(self.int_into_float(self.int_mod(self.int_mul(t, k), n)), ratio(2.0 * math.pi, n))
        return self.float_cos(angle), self.float_sin(angle)

"""Fourier transforms on PyTorch."""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from typing import Any

import torch

from phlox.backend.contract import Backend
from phlox.backend.contract.types import Array
from phlox.backend.torch.sizes import is_empty

_fft: Any = torch.fft


def _complex(x: Array) -> Array:
    return torch.view_as_complex(x.contiguous())


def _real(x: Array) -> Array:
    return torch.view_as_real(x)


class Signal(Backend):
    """See `phlox.backend.contract.signal`. Torch's transforms fail on empty arrays, which are not transformed."""

    def rfft(self, x: Array) -> Array:
        return _real(_fft.rfft(x)) if not is_empty(x) else x.new_zeros(*x.shape[:-1], x.shape[-1] // 2 + 1, 2)

    def irfft(self, x: Array, n: int) -> Array:
        return _fft.irfft(_complex(x), n, norm="forward") if not is_empty(x) else x.new_zeros(*x.shape[:-2], n)

    def fft(self, x: Array, inverse: bool) -> Array:
        if is_empty(x):
            return x
        z = _complex(x)
        return _real(_fft.ifft(z, norm="forward") if inverse else _fft.fft(z))

    def frame(self, x: Array, length: int, hop: int) -> Array:
        return x.unfold(-1, length, hop)

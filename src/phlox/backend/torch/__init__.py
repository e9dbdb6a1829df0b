"""The PyTorch backend: its kernels without its autograd. Importing it imports torch."""

from __future__ import annotations

from phlox.errors import EngineNotInstalledError

try:
    import torch as _torch
except ImportError as error:
    raise EngineNotInstalledError(
        "the backend Torch needs PyTorch, which is not installed; install Phlox with the extra 'torch'"
    ) from error
else:
    del _torch

from phlox.backend.torch.backend import Torch

__all__ = ["Torch"]

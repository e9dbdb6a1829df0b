"""PyTorch's state dict files, read by a pickle interpreter that can only build plain data."""

from __future__ import annotations

from phlox.record.formats.pytorch.reader import PyTorchReader as PyTorchReader

"""PyTorch's files of state dicts, read by an interpreter of pickles that can do nothing but build plain data."""

from __future__ import annotations

from phlox.record.formats.pytorch.reader import PyTorchReader as PyTorchReader

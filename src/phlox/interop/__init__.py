"""Models and weights of other libraries: PyTorch state dicts, Hugging Face folders, Orbax checkpoints, ONNX files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phlox.lazy import lazily

if TYPE_CHECKING:
    from phlox.interop import huggingface as huggingface
    from phlox.interop import onnx as onnx
    from phlox.interop import orbax as orbax
    from phlox.interop import pytorch as pytorch
    from phlox.interop.adapter import Adapter as Adapter

__all__ = [
    "Adapter",
    "huggingface",
    "onnx",
    "orbax",
    "pytorch",
]

__getattr__, __dir__ = lazily(
    __name__, {"adapter": "Adapter", "huggingface": "", "onnx": "", "orbax": "", "pytorch": ""}
)

"""Models and weights of other libraries: PyTorch, Hugging Face, GGUF and ONNX files, Orbax checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phlox.lazy import lazily

if TYPE_CHECKING:
    from phlox.interop import equinox as equinox
    from phlox.interop import flax as flax
    from phlox.interop import gguf as gguf
    from phlox.interop import huggingface as huggingface
    from phlox.interop import onnx as onnx
    from phlox.interop import orbax as orbax
    from phlox.interop import pytorch as pytorch
    from phlox.interop.adapter import Adapter as Adapter

__getattr__, __dir__ = lazily(
    __name__,
    {
        "adapter": "Adapter",
        "equinox": "",
        "flax": "",
        "gguf": "",
        "huggingface": "",
        "onnx": "",
        "orbax": "",
        "pytorch": "",
    },
)

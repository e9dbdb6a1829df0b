"""Models and weights of other libraries: PyTorch state dicts, Hugging Face folders, and Orbax checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phlox.lazy import lazily

if TYPE_CHECKING:
    from phlox.interop import huggingface as huggingface
    from phlox.interop import orbax as orbax
    from phlox.interop import pytorch as pytorch
    from phlox.interop.adapter import Adapter as Adapter

__all__ = [
    "Adapter",
    "huggingface",
    "orbax",
    "pytorch",
]

__getattr__, __dir__ = lazily(__name__, {"adapter": "Adapter", "huggingface": "", "orbax": "", "pytorch": ""})

"""Hugging Face models: loading a folder that `transformers` saved as a Phlox model, and saving one.

Each family of models has its own file. No code from a folder is ever run.
"""

from __future__ import annotations

from phlox.interop.huggingface.folder import adapter_for as adapter_for
from phlox.interop.huggingface.folder import config_from as config_from
from phlox.interop.huggingface.folder import load as load
from phlox.interop.huggingface.folder import save as save
from phlox.interop.huggingface.speech import load_speech as load_speech
from phlox.lazy import lazily

__all__ = [
    "adapter_for",
    "config_from",
    "load",
    "load_speech",
    "save",
]

__getattr__, __dir__ = lazily(__name__, {})

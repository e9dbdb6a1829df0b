"""Models in GGUF files, the format of llama.cpp: loaded as Phlox models, and saved.

Each architecture has its own file. No code from a file is ever run.
"""

from __future__ import annotations

from phlox.interop.gguf.model_file import load as load
from phlox.interop.gguf.model_file import read_metadata as read_metadata
from phlox.interop.gguf.model_file import save as save
from phlox.lazy import lazily

__all__ = ["load", "read_metadata", "save"]

__getattr__, __dir__ = lazily(__name__, {})

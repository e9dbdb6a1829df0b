"""Models of the Hugging Face world: a folder that `transformers` saved becomes a model of ours, and the other way.

What is known of each kind of models stands in a file of its own. No code from a folder is ever run.
"""

from __future__ import annotations

from phlox.interop.huggingface.folder import adapter_for as adapter_for
from phlox.interop.huggingface.folder import config_from as config_from
from phlox.interop.huggingface.folder import load as load
from phlox.interop.huggingface.folder import save as save
from phlox.lazy import lazily

__all__ = [
    "adapter_for",
    "config_from",
    "load",
    "save",
]

__getattr__, __dir__ = lazily(__name__, {})

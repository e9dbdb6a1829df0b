"""Hugging Face models: loading a folder that `transformers` saved as a Phlox model, and saving one.

Each family of models has its own file. No code from a folder is ever run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from phlox.interop.huggingface.folder import adapter_for as adapter_for
from phlox.interop.huggingface.folder import add_family as add_family
from phlox.interop.huggingface.folder import config_from as config_from
from phlox.interop.huggingface.folder import load as load
from phlox.interop.huggingface.folder import save as save
from phlox.lazy import lazily

if TYPE_CHECKING:
    from phlox.interop.huggingface.images import *
    from phlox.interop.huggingface.sentences import *
    from phlox.interop.huggingface.speech import *

__getattr__, __dir__ = lazily(
    __name__,
    {"images": "image_processor", "sentences": "load_sentence_encoder save_sentence_encoder", "speech": "load_speech"},
    here="adapter_for add_family config_from load save",
)

"""Text as tokens: tokenizers, their files, and chat templates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phlox.lazy import lazily

if TYPE_CHECKING:
    from phlox.text.byte_pairs import *
    from phlox.text.chat_template import *
    from phlox.text.folder import *
    from phlox.text.tokenizer import *
    from phlox.text.tokenizer_file import *

__getattr__, __dir__ = lazily(
    __name__,
    {
        "byte_pairs": "BytePairTokenizer",
        "chat_template": "ChatTemplate",
        "folder": "load_tokenizer",
        "tokenizer": "TextDecoder Tokenizer",
        "tokenizer_file": "TokenizerFile",
    },
)

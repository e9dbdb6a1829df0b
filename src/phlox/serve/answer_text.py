"""The decoder of an answer: tokens without text, and special tokens that are text all the same."""

from __future__ import annotations

from phlox.serve.tools import MARKERS
from phlox.text import Tokenizer


class AnswerDecoder:
    """Decodes the tokens of one answer, for `StopText`.

    Args:
        tokenizer: the tokenizer.
        shows_markers: whether special tokens that begin a call of a function are text.
    """

    def __init__(self, tokenizer: Tokenizer, *, shows_markers: bool = False) -> None:
        self._tokenizer, self._shows_markers = tokenizer, shows_markers
        self._decoder = tokenizer.decoder()

    def add(self, token: int) -> str:
        """The text that is certain after one more token."""
        if token >= self._tokenizer.size:  # the vocabulary of a model may be larger, to be a round number
            return ""
        if self._shows_markers and token in self._tokenizer.special:
            marker = self._tokenizer.decode([token], special=True).strip()
            if marker in MARKERS:
                text = self._decoder.end() + marker
                self._decoder = self._tokenizer.decoder()
                return text
        return self._decoder.add(token)

    def end(self) -> str:
        """The rest of the text."""
        return self._decoder.end()

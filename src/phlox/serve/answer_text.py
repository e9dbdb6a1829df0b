"""The text of an answer, as its tokens come: without stop strings, and never a part of one."""

from __future__ import annotations

from collections.abc import Sequence

from phlox.serve.tools import MARKERS, first_of
from phlox.text import Tokenizer


class AnswerText:
    """Decodes the tokens of one answer, and finds the strings that end it, also across tokens.

    Args:
        tokenizer: the tokenizer.
        stops: the strings that end the answer. They are not part of it.
        shows_markers: whether special tokens that begin a call of a function are text.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = (), *, shows_markers: bool = False) -> None:
        self._tokenizer, self._stops = tokenizer, stops
        self._decoder = tokenizer.decoder()
        self._shows_markers = shows_markers
        self._held = ""
        """The end of the text so far that may be the beginning of a stop string."""
        self.is_stopped = False
        """Has a stop string been written?"""

    def add(self, token: int) -> str:
        """The text that is certain after one more token."""
        if token >= self._tokenizer.size:  # the vocabulary of a model may be larger, to be a round number
            return ""
        if self._shows_markers and token in self._tokenizer.special:
            marker = self._tokenizer.decode([token], special=True).strip()
            if marker in MARKERS:
                piece = self._decoder.end() + marker
                self._decoder = self._tokenizer.decoder()
                return self._certain(piece)
        return self._certain(self._decoder.add(token))

    def end(self) -> str:
        """The rest of the text."""
        if self.is_stopped:
            return ""
        piece = self._certain(self._decoder.end()) + self._held
        self._held = ""
        return piece

    def _certain(self, piece: str) -> str:
        text = self._held + piece
        begin = first_of(text, self._stops)
        self.is_stopped = any(text.startswith(stop, begin) for stop in self._stops)
        self._held = "" if self.is_stopped else text[begin:]
        return text[:begin]

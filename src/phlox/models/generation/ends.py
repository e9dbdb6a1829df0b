"""Where texts end: at stop tokens, at strings, or where a grammar is complete."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from phlox.backend import Device, Float
from phlox.models.generation.prompts import Tokens
from phlox.tensor import Tensor, tensor


class IncrementalDecoder(Protocol):
    """Decodes tokens one by one."""

    def add(self, token: int, /) -> str:
        """The text that has become certain with this token."""
        ...

    def end(self) -> str:
        """The rest of the text."""
        ...


class StopText:
    """The text of the new tokens of one row, up to the first of some strings.

    `add` returns only text that cannot be part of such a string, and `end` returns what is left.

    >>> class Letters:  # a decoder of a tokenizer whose tokens are characters
    ...     def add(self, token):
    ...         return chr(token)
    ...     def end(self):
    ...         return ""
    >>> text = StopText(Letters(), ["end"])
    >>> [text.add(ord(letter)) for letter in "been end"], text.is_complete
    (['b', '', 'e', '', 'en ', '', '', ''], True)
    """

    def __init__(self, decoder: IncrementalDecoder, strings: Sequence[str] = ()) -> None:
        self._decoder, self._strings = decoder, tuple(strings)
        self._held: str = ""
        self.is_complete = False
        """Has one of the strings appeared?"""

    def add(self, token: int) -> str:
        """The text that is certain with the next token."""
        return self._release(self._decoder.add(token))

    def end(self) -> str:
        """The rest of the text: no more tokens follow."""
        text = self._release(self._decoder.end())
        held, self._held = self._held, ""
        return text + held

    def _release(self, text: str) -> str:
        if self.is_complete:
            return ""
        text = self._held + text
        begin = first_of(text, self._strings)
        self.is_complete = any(text.startswith(string, begin) for string in self._strings)
        self._held = "" if self.is_complete else text[begin:]
        return text[:begin]


def first_of(text: str, strings: Sequence[str]) -> int:
    """Where the first of some strings begins, or may begin at the end of the text; its length if there is none."""
    begins = [begin for begin in map(text.find, strings) if begin >= 0]
    if begins:
        return min(begins)
    sizes = [size for string in strings for size in range(len(string)) if text.endswith(string[:size])]
    return len(text) - max(sizes, default=0)


class Matcher(Protocol):
    """The state of a grammar for one text, see `phlox.models.Grammar`."""

    @property
    def is_complete(self) -> bool:
        """Can nothing follow?"""
        ...

    def allowed(self) -> np.ndarray[Any, Any]:
        """Bool [vocabulary]: the tokens that may follow."""
        ...

    def add(self, token: int) -> None:
        """The next token."""
        ...


class End(NamedTuple):
    """How a text ended."""

    length: int
    """The number of its new tokens."""
    token: int | None
    """The stop token, which does not count, or None."""


class TextEnds:
    """Where the texts of a batch end."""

    def __init__(
        self,
        rows: int,
        stops: frozenset[int] = frozenset(),
        *,
        vocabulary: int = 0,
        min_new_tokens: int = 0,
        texts: Sequence[StopText] = (),
        matchers: Sequence[Matcher | None] = (),
    ) -> None:
        self.rows, self.stops = rows, np.asarray(sorted(stops), np.int64)
        self.ended: dict[int, End] = {}
        """The end of each row that has ended."""
        self.pieces: list[str] = []
        """The text of each row that has become certain with the last token, if there is a tokenizer."""
        self.count = 0
        """The number of tokens that were added."""
        self._vocabulary, self._min_new_tokens = vocabulary, min_new_tokens
        self._texts, self._matchers = texts, matchers

    @property
    def masks(self) -> bool:
        """Are there tokens that may not follow, sometimes?"""
        return bool(self._matchers or (self._min_new_tokens and self.stops.size))

    @property
    def all_ended(self) -> bool:
        """Has each row ended?"""
        return len(self.ended) == self.rows

    def add(self, tokens: Tokens) -> None:
        """Note which texts end with the next tokens [batch, 1]."""
        self.count += 1
        if not (self.stops.size or self._texts or self._matchers):
            return
        drawn = tokens.numpy()[:, 0]
        for row in np.flatnonzero(np.isin(drawn, self.stops)).tolist():
            self.ended.setdefault(row, End(self.count - 1, int(drawn[row])))
        self.pieces = [""] * self.rows
        for row in range(self.rows) if self._texts or self._matchers else ():
            if row not in self.ended:
                self._add_to_row(row, int(drawn[row]))
            elif self._texts:
                self.pieces[row] = self._texts[row].end()

    def _add_to_row(self, row: int, token: int) -> None:
        if self._texts:
            self.pieces[row] = self._texts[row].add(token)
            if self._texts[row].is_complete:
                self.ended[row] = End(self.count, None)
        matcher = self._matchers[row] if self._matchers else None
        if matcher is not None:
            matcher.add(token)
            if matcher.is_complete:
                self.ended.setdefault(row, End(self.count, None))
                self.finish(row)

    def finish(self, row: int) -> None:
        """No more tokens follow in a row: all its text is certain."""
        if self._texts and not self._texts[row].is_complete:
            self.pieces[row] += self._texts[row].end()

    def mask(self, device: Device) -> Tensor[Any, Any, Float] | None:
        """What is added to the logits of the next tokens: minus infinity for a token that may not follow.

        [batch, vocabulary], or [1, vocabulary] for all rows; None if all tokens may always follow.
        """
        if not self.masks:
            return None
        mask = np.zeros((self.rows if self._matchers else 1, self._vocabulary), np.float32)
        for row, matcher in enumerate(self._matchers):
            if matcher is not None and row not in self.ended:
                mask[row, ~matcher.allowed()] = -math.inf
        if self.count < self._min_new_tokens:
            mask[:, self.stops] = -math.inf
        return tensor(mask, device=device)

    def length(self, row: int) -> int:
        """The number of new tokens of a row."""
        return self.ended[row].length if row in self.ended else self.count

    def cut(self, values: Tensor[Any, Any, Any], n: int, rest: float | None) -> Any:
        """Values [batch, n + new] of the texts; after its end, a text is filled with `rest`, or its stop token."""
        if not self.ended:
            return values
        longest = max(self.length(row) for row in range(self.rows))
        rows = values.numpy()[:, : n + longest].copy()
        for row, (length, token) in self.ended.items():
            rows[row, n + length :] = (token or 0) if rest is None else rest
        return tensor(rows, device=values.device)

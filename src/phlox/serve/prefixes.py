"""The keys and values of texts that were computed before, for requests that begin like them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from phlox.serve.steps import Columns


class Prefixes:
    """The columns of the texts that were used last, with at most `capacity` tokens together.

    A chat sends its whole text with each message: all but the end of it was computed before.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.n_tokens = 0
        self._texts: OrderedDict[tuple[int, ...], Columns] = OrderedDict()

    def lookup(self, tokens: Sequence[int]) -> tuple[int, Columns]:
        """The largest number of tokens that a text begins with, too, and the columns of that text."""
        best = max(self._texts, key=lambda text: _common(text, tokens), default=())
        n = _common(best, tokens)
        if not n:
            return 0, ()
        self._texts.move_to_end(best)
        return n, self._texts[best]

    def store(self, tokens: Sequence[int], columns: Columns) -> None:
        """Keep the columns of a text; texts that begin it go, as do those that have not been used for the longest.

        The columns may be for more tokens than the text has.
        """
        key = tuple(tokens)
        if len(key) > self.capacity or any(text[: len(key)] == key for text in self._texts):
            return
        for text in [text for text in self._texts if key[: len(text)] == text]:
            self._remove(text)
        self._texts[key] = columns
        self.n_tokens += len(key)
        while self.n_tokens > self.capacity:
            self._remove(next(iter(self._texts)))

    def clear(self) -> None:
        """Forget all texts."""
        self._texts.clear()
        self.n_tokens = 0

    def _remove(self, text: tuple[int, ...]) -> None:
        del self._texts[text]
        self.n_tokens -= len(text)


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """The number of equal tokens at the beginning."""
    for index, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return index
    return min(len(a), len(b))

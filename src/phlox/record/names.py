"""Near-miss names for error texts, in bounded time whatever the names are."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from itertools import islice

_MAX_LENGTH = 200
_MAX_NAMES = 2000


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The one of `names` most similar to `name`, or None where none is similar enough to have been meant.

    >>> nearest("encoder.nrom.weight", ["encoder.norm.weight", "decoder.bias"])
    'encoder.norm.weight'
    """
    if len(name) > _MAX_LENGTH:
        return None
    candidates = [other for other in islice(names, _MAX_NAMES) if len(other) <= _MAX_LENGTH]
    return next(iter(difflib.get_close_matches(name, candidates, n=1, cutoff=0.75)), None)

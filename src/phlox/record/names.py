"""Names: near misses for error texts, in bounded time whatever they are, and the fingerprint of an order of them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

_MAX_LENGTH = 200
_MAX_NAMES = 2000
_MAX_TRIED = 30
_CUTOFF = 0.75


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The one of `names` most similar to `name`, or None where none is similar enough to have been meant.

    >>> nearest("encoder.nrom.weight", ["encoder.norm.weight", "decoder.bias"])
    'encoder.norm.weight'
    """
    if len(name) > _MAX_LENGTH:
        return None
    from difflib import SequenceMatcher  # only for what is wrong: it is not small

    matcher = SequenceMatcher()
    matcher.set_seq2(name)
    likely: list[tuple[float, str]] = []
    for other in islice(names, _MAX_NAMES):
        matcher.set_seq1(other)
        if len(other) <= _MAX_LENGTH and matcher.real_quick_ratio() >= _CUTOFF:
            likely.append((matcher.quick_ratio(), other))
    best: tuple[float, str | None] = (0.0, None)
    # The true ratio takes milliseconds where names are made to be slow. The other is never below it.
    for bound, other in sorted(likely, key=lambda item: -item[0])[:_MAX_TRIED]:
        if bound > best[0]:
            matcher.set_seq1(other)
            if (ratio := matcher.ratio()) >= _CUTOFF:
                best = max(best, (ratio, other), key=lambda item: item[0])
    return best[1]


def fingerprint_of(paths: Iterable[str]) -> str:
    """16 hexadecimal digits that tell one ordered structure of `paths` from another: BLAKE2b, 8 bytes.

    A positional file carries that of the names it was written without.

    >>> fingerprint_of(["weight", "bias"]) == fingerprint_of(["bias", "weight"])
    False
    """
    from hashlib import blake2b

    digest = blake2b(digest_size=8)
    for path in paths:
        name = path.encode()
        digest.update(len(name).to_bytes(4, "little") + name)
    return digest.hexdigest()

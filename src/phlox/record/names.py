"""Names: similar names for error messages, in bounded time, and the fingerprint of an ordered list of names."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

_MAX_LENGTH = 200
_MAX_NAMES = 2000
_MAX_TRIED = 30
_CUTOFF = 0.75


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The most similar of `names`, or None if none is similar enough.

    >>> nearest("encoder.nrom.weight", ["encoder.norm.weight", "decoder.bias"])
    'encoder.norm.weight'
    """
    if len(name) > _MAX_LENGTH:
        return None
    from difflib import SequenceMatcher  # imported only after an error: it is slow to import

    matcher = SequenceMatcher()
    matcher.set_seq2(name)
    likely: list[tuple[float, str]] = []
    for other in islice(names, _MAX_NAMES):
        matcher.set_seq1(other)
        if len(other) <= _MAX_LENGTH and matcher.real_quick_ratio() >= _CUTOFF:
            likely.append((matcher.quick_ratio(), other))
    best: tuple[float, str | None] = (0.0, None)
    # `ratio` takes milliseconds for adversarial names; `quick_ratio` is an upper bound.
    for bound, other in sorted(likely, key=lambda item: -item[0])[:_MAX_TRIED]:
        if bound > best[0]:
            matcher.set_seq1(other)
            if (ratio := matcher.ratio()) >= _CUTOFF:
                best = max(best, (ratio, other), key=lambda item: item[0])
    return best[1]


def fingerprint_of(paths: Iterable[str]) -> str:
    """A fingerprint of an ordered list of `paths`: 16 hexadecimal digits of BLAKE2b.

    A positional file stores the fingerprint of its omitted names.

    >>> fingerprint_of(["weight", "bias"]) == fingerprint_of(["bias", "weight"])
    False
    """
    from hashlib import blake2b

    digest = blake2b(digest_size=8)
    for path in paths:
        name = path.encode()
        digest.update(len(name).to_bytes(4, "little") + name)
    return digest.hexdigest()


def listed(paths: Iterable[str], most: int = 5) -> str:
    """The first of some paths, which may come from an untrusted file, and the number of the others.

    >>> listed(["a", "b", "c"], most=2)
    "'a', 'b' and 1 more"
    """
    names = list(paths)
    shown = ", ".join([repr(path[:200]) for path in names[:most]])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"

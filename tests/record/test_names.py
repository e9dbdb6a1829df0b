"""Near misses against difflib's own search, and fingerprints against BLAKE2b by hand."""

from __future__ import annotations

import difflib
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phlox.record.names import fingerprint_of, nearest

NAMES = ["encoder.norm.weight", "encoder.norm.bias", "decoder.norm.weight", "embedding.weight", "head.bias", "x"]


@pytest.mark.parametrize(
    "name", ["encoder.nrom.weight", "encodernormweight", "head.bais", "embeding.weight", "x", "y", "", "head", "zzz"]
)
def test_it_is_the_one_that_difflib_finds(name: str) -> None:
    found = difflib.get_close_matches(name, NAMES, 1, 0.75)
    assert nearest(name, NAMES) == (found[0] if found else None)


@given(st.text("abc.", max_size=8), st.lists(st.text("abc.", max_size=8), max_size=6, unique=True))
def test_no_other_is_nearer(name: str, names: list[str]) -> None:
    def ratio(other: str) -> float:
        return difflib.SequenceMatcher(None, other, name).ratio()

    found = nearest(name, names)
    best = max(map(ratio, names), default=0.0)
    assert (found is None) == (best < 0.75)
    assert found is None or ratio(found) == best


def test_its_time_is_bounded() -> None:
    assert nearest("a" * 201, ["a" * 201]) is None
    assert nearest("name", [*(f"other{i}" for i in range(2000)), "name"]) is None
    assert nearest("name", ["name" * 100, "nane"]) == "nane"


@given(st.lists(st.text(max_size=300), max_size=4))
def test_fingerprints(paths: list[str]) -> None:
    paths = [path for path in paths if path.isprintable()]
    whole = b"".join(len(path.encode()).to_bytes(4, "little") + path.encode() for path in paths)
    assert fingerprint_of(paths) == hashlib.blake2b(whole, digest_size=8).hexdigest()


def test_where_a_name_ends_matters() -> None:
    assert len({fingerprint_of(paths) for paths in (["ab", "c"], ["a", "bc"], ["abc"], ["c", "ab"], [])}) == 5

"""Patterns of paths: what they choose, and what is said where they choose nothing."""

from __future__ import annotations

from typing import Any

import pytest

from phlox.errors import RecordError
from phlox.record.patterns import Finder, matches, matches_exactly, selected

PATHS = ["encoder.0.weight", "encoder.0.bias", "encoder.1.weight", "head.weight", "step"]


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        ("encoder", PATHS[:3]),
        ("encoder.*.weight", [PATHS[0], PATHS[2]]),
        (["**.weight", "!head"], [PATHS[0], PATHS[2]]),
        ("!encoder", PATHS[3:]),
        (["!encoder", "encoder.1"], PATHS[2:]),
        ("st*", ["step"]),
        ((), []),
        ("**", PATHS),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_is_chosen(patterns: Any, expected: list[str]) -> None:
    assert sorted(selected(patterns, PATHS)) == sorted(expected)


def test_a_key_is_chosen_by_any_of_its_names() -> None:
    assert selected("head", {"embed": ["embed", "head"], "norm": ["norm"]}) == {"embed"}
    assert selected("!head", {"embed": ["embed", "head"], "norm": ["norm"]}) == {"norm"}


@pytest.mark.parametrize(
    ("patterns", "said"),
    [
        ("encodr", "no path matches `encodr`; did you mean `encoder`?"),
        ("weight", "no path matches `weight`; did you mean `**.weight`?"),
        (["**", "!zzz"], "no path matches `zzz`; the paths are encoder.0.weight, "),
        ([3], "3 is not a pattern"),
        ([["encoder"]], r"\['encoder'\] is not a pattern"),
    ],
    ids=["near", "deeper", "nothing", "number", "list"],
)
def test_what_chooses_nothing_is_an_error(patterns: Any, said: str) -> None:
    with pytest.raises(RecordError, match=said if "\\" in said else said.replace("*", r"\*").replace("?", r"\?")):
        selected(patterns, PATHS)


def test_names_of_strangers_do_not_confuse_it() -> None:
    assert matches("a", "a\nb") is False and matches("*", "a\nb") and matches("x", "x.a\nb")
    assert not matches("a+", "aa") and matches("a+", "a+")


@pytest.mark.parametrize(
    "pattern, path, expected",
    [
        ("blocks.*.mlp", "blocks.0.mlp", True),
        ("blocks.*.mlp", "blocks.0.mlp.layers.0", False),
        ("blocks.*", "blocks.0.mlp", False),
        ("**.layers.*", "blocks.0.mlp.layers.2", True),
        ("**", "blocks.0", True),
        ("b*k*.0", "blocks.0", True),
        ("b*x*.0", "blocks.0", False),
        ("ab*ba.0", "aba.0", False),
        ("**", "", True),
        ("*", "", False),
        ("", "", True),
        ("", "blocks", False),
    ],
)
def test_a_path_itself(pattern: str, path: str, expected: bool) -> None:
    assert matches_exactly(pattern, path) == expected


@pytest.mark.parametrize(
    "pattern",
    ["encoder", "encoder.0", "encoder.0.weight", "encoder.", ".encoder", "enc", "", ".", "step", "a..b", "a.", "x.y.z"],
)
def test_a_pattern_without_wildcards_is_looked_up(pattern: str) -> None:
    paths = [*PATHS, "", "a..b.c", "a.", ".a", "encoderx", "x.y", "a\nb"]
    segments = pattern.split(".")
    expected = [path for path in paths if path.split(".")[: len(segments)] == segments]
    assert [path for path in paths if matches(pattern, path)] == expected
    assert Finder({path: [path] for path in paths})(pattern) == expected
    named = {"one": paths[:3], "two": [], "three": paths[2:]}
    assert Finder(named)(pattern) == [key for key, each in named.items() if set(each) & set(expected)]

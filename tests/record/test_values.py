"""Plain values: what is one, what is none and where, and that JSON gives each back as it was."""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from enum import IntEnum
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phlox.errors import RecordError
from phlox.record.values import checked_text, checked_value, from_json, to_json

SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text("a$é😀", max_size=5)
KEYS = st.sampled_from(["$float", "$dict", "a", ""])
VALUES = st.recursive(SCALARS, lambda inside: st.lists(inside, max_size=3) | st.dictionaries(KEYS, inside, max_size=2))


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def same(a: Any, b: Any) -> bool:
    """Equal, of the same types, NaN being NaN and -0.0 not 0.0."""
    return repr(a) == repr(b)


@given(VALUES)
def test_they_come_back_from_strict_json(value: Any) -> None:
    assert same(checked_value(value, "a"), value)
    text = json.dumps(to_json(value), allow_nan=False)
    assert same(from_json(json.loads(text)), value)


def test_they_become_plain_types() -> None:
    class Color(IntEnum):
        RED = 1

    class Name(str):
        __slots__ = ()

    found: Any = checked_value(OrderedDict(a=Color.RED, b=[Name("x"), np.float64(0.5)]), "a")
    assert found == {"a": 1, "b": ["x", 0.5]}
    assert [type(one) for one in (found, found["a"], *found["b"])] == [dict, int, str, float]


def test_they_are_copies() -> None:
    given: Any = {"a": [1]}
    found: Any = checked_value(given, "a")
    given["a"].append(2)
    assert found == {"a": [1]}


@pytest.mark.parametrize(
    "value, message",
    [
        (2**64, "the int does not fit 64 bits"),
        (-(2**63) - 1, "the int does not fit 64 bits"),
        ([[2**64]], "the int does not fit 64 bits"),
        ((1, 2), "a value of .*tuple.* is not a plain value"),
        (1j, "is not a plain value"),
        (np.float32(1.0), "is not a plain value"),
        ({1: 2}, "the key 1 of a dict is not a str"),
        ("\ud800", "holds a lone surrogate"),
        ({"\ud800": 1}, "holds a lone surrogate"),
        (nested(65), "nests at most 64 levels deep"),
    ],
)
def test_what_is_none_is_told_with_its_path(value: Any, message: str) -> None:
    with pytest.raises(RecordError, match=f"layers.0.*{message}"):
        checked_value(value, "layers.0")


def test_the_deepest_that_is_allowed() -> None:
    assert checked_value(nested(64), "a") == nested(64)


@pytest.mark.parametrize("data", [{"$float": 1}, {"$float": "NaN"}, {"$dict": 3}, {"a": [{"$float": "x"}]}])
def test_tags_that_are_never_written(data: Any) -> None:
    with pytest.raises(RecordError, match=r"the tag '\$"):
        from_json(data)


def test_numbers_that_json_does_not_have() -> None:
    assert to_json([math.inf, -math.inf, 1.5]) == [{"$float": "inf"}, {"$float": "-inf"}, 1.5]
    assert to_json({"$float": 1.0}) == {"$dict": {"$float": 1.0}}
    assert checked_text("é", "a") == "é"

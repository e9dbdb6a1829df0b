from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox.distributed.processes.objects import broadcast_object, decode, encode, gather_objects
from phlox.errors import DistributedError


class Color(IntEnum):
    RED = 3


@pytest.mark.parametrize(
    "x",
    [None, True, -3, 2.5, "é", b"\0", [1, [2, (3, "a")]], (), {"a": (1, {2: None})}, float("inf"), 2**60],
)
def test_plain_data_comes_back_as_it_was(x: Any) -> None:
    assert decode(encode(x)) == x and type(decode(encode(x))) is type(x)


def test_arrays_and_subclasses() -> None:
    array = np.arange(6, dtype=np.int16).reshape(2, 3)[:, ::2]
    found = decode(encode({"x": array, "n": np.float32(0.1), "c": Color.RED, "s": np.str_("a")}))
    np.testing.assert_array_equal(found["x"], array)
    assert found["x"].dtype == np.int16 and found["n"].dtype == np.float32 and found["n"] == np.float32(0.1)
    assert found["c"] == 3 and type(found["s"]) in (str, np.str_)


ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize(
    "x",
    [object(), {1, 2}, [px.ones(2)], np.array([object()]), 2**70, ENDLESS, "\ud800", {np.int64(1): 2}],
    ids=lambda x: type(x).__name__,
)
def test_what_cannot_be_sent_is_named(x: Any) -> None:
    with pytest.raises(DistributedError, match="cannot be sent to other processes"):
        encode(x)


def test_alone() -> None:
    thing = object()
    assert broadcast_object(thing) is thing and gather_objects(thing) == [thing]
    with pytest.raises(DistributedError, match="root=1 is not the rank of a process"):
        broadcast_object(1, root=1)

"""`renamed`: regular expressions and functions, aliases, collisions, and what is no path."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from phlox.errors import RecordError
from phlox.record import BinaryRecorder, LazyTensor, Record, renamed
from tests.record.support import records


def fail() -> np.ndarray:
    raise AssertionError("read")


RECORD = Record(
    {"module.embed": LazyTensor.from_function((2,), np.float32, fail), "module.step": 3, "lr": 0.5},
    {"about": "text"},
    aliases={"module.head": "module.embed"},
)


@pytest.mark.parametrize(
    ("remap", "paths", "aliases"),
    [
        ({r"^module\.": ""}, ["embed", "step", "lr"], {"head": "embed"}),
        ({r"^module": "net", r"^net\.embed": "first"}, ["first", "net.step", "lr"], {"net.head": "first"}),
        (
            {r"\.(\w+)$": r".new.\1"},
            ["module.new.embed", "module.new.step", "lr"],
            {"module.new.head": "module.new.embed"},
        ),
        ({r"(\w+)$": lambda m: m[1].upper()}, ["module.EMBED", "module.STEP", "LR"], {"module.HEAD": "module.EMBED"}),
        (lambda path: None if "embed" in path else path, ["module.step", "lr", "module.head"], {}),
        (lambda path: None if "head" in path else path, ["module.embed", "module.step", "lr"], {}),
        (lambda path: "tied" if path[-2:] in ("ed", "ad") else path, ["tied", "module.step", "lr"], {}),
        ({}, ["module.embed", "module.step", "lr"], {"module.head": "module.embed"}),
        ({"nothing": "x"}, ["module.embed", "module.step", "lr"], {"module.head": "module.embed"}),
    ],
    ids=["prefix", "in-order", "group", "callable", "drop-entry", "drop-alias", "merge", "empty", "unused"],
)
def test_other_names(remap: Any, paths: list[str], aliases: dict[str, str]) -> None:
    record = renamed(RECORD, remap)
    assert sorted(record.paths()) == sorted(paths) and dict(record.aliases) == aliases
    assert dict(record.metadata) == {"about": "text"} and len(record.tensors) == 1


@pytest.mark.parametrize(
    ("remap", "words"),
    [
        ({r"^.+$": "x"}, ["'module.embed'", "'module.step'", "'x'", "drop one"]),
        ({r"^module\.step$": "module.head"}, ["'module.step'", "'module.head'"]),
        ({"(": "x"}, ["'('", "not a regular expression"]),
        ({3: "x"}, ["3", "not a regular expression"]),
        ({"lr": r"\9"}, [r"'\\9'", "'lr'", "fails"]),
        ({"lr": 3}, ["replacement 3", "'lr'"]),
        ({"lr": ""}, ["'lr' becomes ''", "not a path"]),
        (lambda path: path + ".", ["'module.embed' becomes 'module.embed.'"]),
        (lambda path: 3, ["becomes 3"]),
        (3, ["expected a dict", "got 3"]),
    ],
    ids=[
        "one-name",
        "alias",
        "bad-pattern",
        "number",
        "bad-group",
        "bad-replacement",
        "empty",
        "dot",
        "int",
        "neither",
    ],
)
def test_what_gives_no_record(remap: Any, words: list[str]) -> None:
    with pytest.raises(RecordError) as caught:
        renamed(RECORD, remap)
    assert all(word in str(caught.value) for word in ["remap", *words]), str(caught.value)


def test_a_positional_record_has_no_names() -> None:
    recorder = BinaryRecorder(names=False)
    with pytest.raises(RecordError, match="positional"):
        renamed(recorder.from_bytes(recorder.to_bytes(Record({"a": np.ones(1)}))), {"0": "a"})


@given(records())
def test_there_and_back(record: Record) -> None:
    moved = renamed(record, {"^": "below."})
    assert moved.paths() == [f"below.{path}" for path in record.paths()]
    back = renamed(moved, lambda path: re.sub(r"^below\.", "", path))
    assert back.paths() == record.paths() and dict(back.aliases) == dict(record.aliases)
    assert dict(moved.select("below").aliases) == dict(record.aliases)

"""What a field may hold: what each annotation accepts and refuses, and that JSON gives back what was stored.

Serves: phlox/config/annotations.py
"""

from __future__ import annotations

import json
import math
import string
from collections.abc import Callable, Mapping, MutableSequence, Sequence
from enum import Enum, Flag, IntEnum
from pathlib import Path
from typing import Annotated, Any, Literal, NewType, Optional, Union

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import TypeAliasType

from phlox.config import Config, FrozenDict, FrozenList
from phlox.errors import ConfigError


class Colour(Enum):
    RED = (255, 0, 0)
    BLUE = "b"


class Level(IntEnum):
    LOW = 1


class Bits(Flag):
    A = 1


Size = NewType("Size", int)
Sizes = TypeAliasType("Sizes", list[int])
Activation = Literal["gelu", "relu"]


class Inner(Config):
    x: int = 0


def config_with(annotation: object) -> Any:
    return type("Net", (Config,), {"__annotations__": {"field": annotation}, "__module__": __name__})


ACCEPTED: list[tuple[object, object, object, object]] = [  # annotation, given, held, stored
    (int, 3, 3, 3),
    (int, -(10**30), -(10**30), -(10**30)),
    (int, np.int64(3), 3, 3),
    (int, Level.LOW, 1, 1),
    (float, 1, 1.0, 1.0),
    (float, 0.1, 0.1, 0.1),
    (float, np.float32(0.5), 0.5, 0.5),
    (float, np.float64(0.1), 0.1, 0.1),
    (float, math.inf, math.inf, "inf"),
    (float, -math.inf, -math.inf, "-inf"),
    (bool, True, True, True),
    (bool, np.bool_(False), False, False),
    (str, "é\n", "é\n", "é\n"),
    (str, "nan", "nan", "nan"),
    (None, None, None, None),
    (Optional[int], None, None, None),  # noqa: UP045
    (Union[int, str], "a", "a", "a"),  # noqa: UP007
    (int | float, 1, 1, 1),
    (float | int, 1, 1, 1),
    (float | int, 1.0, 1.0, 1.0),
    (bool | int, True, True, True),
    (float | None, 2, 2.0, 2.0),
    (str | Path, "a", "a", "a"),
    (Literal["gelu", "relu"], "relu", "relu", "relu"),
    (Literal[1, True, None], True, True, True),
    (Literal["auto"] | float, 1, 1.0, 1.0),
    (Literal["auto"] | float, "auto", "auto", "auto"),
    (Colour, Colour.RED, Colour.RED, "RED"),
    (Path, Path("a") / "b", Path("a/b"), "a/b"),
    (list[int], (1, 2), [1, 2], [1, 2]),
    (list[float], [1, math.inf], [1.0, math.inf], [1.0, "inf"]),
    (MutableSequence[int], range(2), [0, 1], [0, 1]),
    (tuple[int, ...], [1, 2], (1, 2), [1, 2]),
    (tuple[()], (), (), []),
    (tuple[int, str], (1, "a"), (1, "a"), [1, "a"]),
    (Sequence[int], [1], (1,), [1]),
    (Sequence[Sequence[str]], [["a"], []], (("a",), ()), [["a"], []]),
    (dict[str, int], {"b": 1, "a": 2}, {"b": 1, "a": 2}, {"b": 1, "a": 2}),
    (Mapping[Colour, Path], {Colour.RED: Path("x")}, {Colour.RED: Path("x")}, {"RED": "x"}),
    (dict[Literal["a", "b"], float], {"a": 1}, {"a": 1.0}, {"a": 1.0}),
    (list[int] | dict[str, int] | int, {"a": 1}, {"a": 1}, {"a": 1}),
    (Inner, Inner(3), Inner(3), {"x": 3}),
    (list[Inner | None], [Inner(), None], [Inner(), None], [{"x": 0}, None]),
    (Annotated[int, "metres"], 3, 3, 3),
    (Size, 3, 3, 3),
    (Sizes, [3], [3], [3]),
    ("Activation", "gelu", "gelu", "gelu"),
    ("list['Inner']", [Inner()], [Inner()], [{"x": 0}]),
]


@pytest.mark.parametrize("annotation, given, held, stored", ACCEPTED)
def test_accepted(annotation: object, given: object, held: object, stored: object) -> None:
    cls = config_with(annotation)
    config = cls(given)
    frozen = {list: FrozenList, dict: FrozenDict}
    assert config.field == held and type(config.field) is frozen.get(type(held), type(held))
    text = config.to_json()
    assert json.loads(text, parse_constant=pytest.fail) == {"field": stored} == config.to_dict()
    again = cls.from_json(text)
    assert again == config and type(again.field) is type(config.field) and hash(again) == hash(config)
    assert again.to_json() == text and config.replace() == config


REFUSED: list[tuple[object, object, str]] = [
    (int, True, "field: expected int, got bool True"),
    (int, 1.0, "field: expected int, got float 1.0"),
    (int, "1", "field: expected int, got str '1'"),
    (int, None, "field: expected int, got None"),
    (int, np.float32(1), "field: expected int, got float 1.0"),
    (float, False, "field: expected float, got bool False"),
    (float, "nan", "field: expected float, got str 'nan'"),
    (float, 2**53 + 1, "which is not exactly a float"),
    (float, 10**400, "which is not exactly a float"),
    (bool, 1, "field: expected bool, got int 1"),
    (str, b"a", "field: expected str, got bytes"),
    (str, "\ud800", "not valid Unicode"),
    (None, 0, "field: expected None, got int 0"),
    (int | None, "x", "field: expected int | None, got str 'x'"),
    (None | str, 1, "field: expected str | None, got int 1"),
    (Literal["gelu", "relu"], "gleu", "expected 'gelu' | 'relu', got 'gleu'; did you mean `gelu`?"),
    (Literal[1], True, "expected 1, got bool True"),
    (Literal["gelu"] | None, "gleu", "did you mean `gelu`?"),
    (Colour, "RED", "field: expected Colour, got str 'RED'"),
    (Path, "a", "field: expected Path, got str 'a'"),
    (list[int], "12", "field: expected list[int], got str '12'"),
    (list[int], {1}, "field: expected list[int], got set {1}"),
    (
        list[int],
        [1, "a", 2, None],
        "2 errors:\n  field.1: expected int, got str 'a'\n  field.3: expected int, got None",
    ),
    (tuple[int, ...], 3, "field: expected tuple[int, ...], got int 3"),
    (tuple[int, str], (1,), "field: expected tuple[int, str], got tuple (1,), which has 1 items"),
    (tuple[int, str], (1, 2), "field.1: expected str, got int 2"),
    (dict[str, int], [("a", 1)], "field: expected dict[str, int], got list"),
    (dict[str, int], {"a": "x", "b": 1}, "field.a: expected int, got str 'x'"),
    (dict[str, int], {1: 1}, "field.1: expected str, got int 1"),
    (list[int] | None, ["x"], "field.0: expected int, got str 'x'"),
    (Inner, {"x": 1}, "field: expected Inner, got dict {'x': 1}"),
    (Inner, Inner, "field: expected Inner, got type"),
    (str | Path, Path("a"), "as str | Path, PosixPath('a') would be read back from JSON as 'a'"),
    (Path | str, Path("a"), "would be read back"),
    (float | str, math.nan, "as float | str, nan would be read back from JSON as 'nan'"),
    (Literal["RED"] | Colour, Colour.RED, "would be read back"),
]


@pytest.mark.parametrize("annotation, given, message", REFUSED)
def test_refused(annotation: object, given: object, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_with(annotation)(given)
    assert message.replace("PosixPath", type(Path()).__name__) in str(caught.value)


REFUSED_STORED: list[tuple[object, object, str]] = [
    (int, 1.0, "expected int, got float 1.0"),
    (float, "NaN", "expected float, got str 'NaN'"),
    (float, None, "expected float, got None"),
    (Colour, "PURPLE", "expected the name of one of Colour (RED, BLUE), got 'PURPLE'"),
    (Colour, "BLU", "did you mean `BLUE`?"),
    (Colour, "b", "expected the name of one of Colour"),
    (Path, 3, "expected Path, got int 3"),
    (Inner, [1], "field: expected an object (Inner), got list [1]"),
    (Inner, {"y": 1, "x": "a"}, "2 errors:\n  field.y: unknown key\n  field.x: expected int, got str 'a'"),
    (dict[str, Inner], {"a": {"x": None}}, "field.a.x: expected int, got None"),
    (list[Inner] | None, [{}, {"x": 1.5}], "field.1.x: expected int, got float 1.5"),
    (dict[Path, int], {"a": 1, "a/": 2}, "field.a/: duplicates another key"),
]


@pytest.mark.parametrize("annotation, stored, message", REFUSED_STORED)
def test_refused_in_json(annotation: object, stored: object, message: str) -> None:
    cls = config_with(annotation)
    with pytest.raises(ConfigError) as caught:
        cls.from_json(json.dumps({"field": stored}))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "annotation",
    [
        Any, object, bytes, complex, set[int], frozenset[int], list, dict, tuple, Callable[[int], int], np.ndarray,
        type, Bits, dict[int, str], dict[float, str], dict[tuple[int, int], str], dict[str | int, int], Literal[b"a"],
        Literal[Colour.RED], list[Any], int | bytes, type[Inner], "Callable[[int], int]", 3,
    ],
)  # fmt: skip
def test_unsupported_annotations_name_the_field(annotation: object) -> None:
    with pytest.raises(ConfigError, match=r"^Net\.field: "):
        config_with(annotation)


def test_from_dict_takes_python_values_too() -> None:
    cls = config_with(list[Inner] | Path | None)
    assert cls.from_dict({"field": (Inner(2),)}) == cls([Inner(2)])
    assert cls.from_dict({"field": Path("a")}) == cls(Path("a"))


def test_the_dict_is_the_callers_own() -> None:
    config = config_with(dict[str, list[int]])({"a": [1]})
    config.to_dict()["field"]["a"].append(2)
    assert config.field == {"a": [1]}


# ------------------------------------------------------------------------------------------------ random nested configs


class Leaf(Config):
    number: float
    name: str | None = None
    colour: Colour = Colour.RED


class Branch(Config):
    sizes: list[int]
    pair: tuple[float, bool]
    table: dict[str, float | None]
    mode: Literal["a", "b"] | int
    paths: Sequence[Path] = ()
    leaf: Leaf | None = None
    children: tuple[Branch | Leaf, ...] = ()


floats = st.floats(allow_nan=True, allow_infinity=True)
paths = st.lists(st.text(string.ascii_letters, min_size=1), max_size=3).map(lambda parts: Path(*parts))
leaves = st.builds(Leaf, floats, st.none() | st.text(), st.sampled_from(Colour))


def branches(children: st.SearchStrategy[Branch | Leaf]) -> st.SearchStrategy[Branch]:
    return st.builds(
        Branch,
        st.lists(st.integers(), max_size=3),
        st.tuples(floats, st.booleans()),
        st.dictionaries(st.text(), st.none() | floats, max_size=3),
        st.sampled_from(["a", "b"]) | st.integers(),
        st.lists(paths, max_size=2),
        st.none() | leaves,
        st.lists(children, max_size=3).map(tuple),
    )


configs = branches(st.recursive(leaves, lambda inner: branches(inner), max_leaves=6))


@settings(max_examples=150)
@given(configs)
def test_json_gives_back_any_config(config: Branch) -> None:
    text = config.to_json()
    json.loads(text, parse_constant=pytest.fail)  # standard JSON: no bare NaN
    again = Branch.from_json(text)
    assert again == config and hash(again) == hash(config) and again.to_json() == text
    assert Branch.from_dict(config.to_dict()) == config
    assert Branch(**vars(config)) == config


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150)
@given(
    st.dictionaries(st.sampled_from(["sizes", "pair", "table", "mode", "leaf", "children", "type", "x"]), json_values)
)
def test_any_json_is_read_or_refused_with_config_error(data: dict[str, Any]) -> None:
    try:
        config = Branch.from_json(json.dumps(data))
    except ConfigError as error:
        assert str(error).startswith("Branch")
    else:
        assert Branch.from_json(config.to_json()) == config

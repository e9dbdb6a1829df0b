"""Fields that hold configs of several classes: the name of the class in JSON, and which classes count.

Serves: phlox/config/{reading,schema}.py
"""

from __future__ import annotations

import abc
import gc
import re
import weakref
from typing import Any, ClassVar

import pytest

from phlox.config import BaseConfig, Config
from phlox.errors import ConfigError


class Schedule(Config):
    """Base of schedules; has values of its own."""

    rate: float = 0.1


class Cosine(Schedule):
    steps: int = 100


class Warmup(Schedule):
    after: Schedule = Cosine()


class Sgd(Config):
    momentum: float = 0.0


class Adam(Config):
    betas: tuple[float, float] = (0.9, 0.999)


class Train(Config):
    schedule: Schedule = Schedule()
    optimizer: Sgd | Adam = Adam()
    stages: dict[str, Schedule | Sgd | None] = {}  # noqa: RUF012


class Shape(Config, abc.ABC):
    """Abstract."""

    @abc.abstractmethod
    def area(self) -> float: ...


class Square(Shape):
    side: float

    def area(self) -> float:
        return self.side**2


class Drawing(Config):
    shape: Shape


class Anything(Config):
    value: Config


def refused(message: str) -> pytest.RaisesExc[ConfigError]:
    return pytest.RaisesExc(ConfigError, check=lambda error: message in str(error))


def test_the_class_is_stored_where_the_annotation_leaves_it_open() -> None:
    config = Train(Warmup(after=Cosine(0.5)), Sgd(), {"a": Sgd(), "b": None, "c": Schedule()})
    assert config.to_dict() == {
        "schedule": {
            "type": "Warmup",
            "rate": 0.1,
            "after": {"type": "Cosine", "rate": 0.5, "steps": 100},
        },
        "optimizer": {"type": "Sgd", "momentum": 0.0},
        "stages": {
            "a": {"type": "Sgd", "momentum": 0.0},
            "b": None,
            "c": {"type": "Schedule", "rate": 0.1},
        },
    }
    again = Train.from_json(config.to_json())
    assert again == config and type(again.schedule) is Warmup and type(again.schedule.after) is Cosine


def test_the_annotated_class_itself_needs_no_name() -> None:
    assert Train().to_dict()["schedule"] == {"rate": 0.1}
    assert Train.from_dict({"schedule": {"rate": 1.0}}).schedule == Schedule(1.0)
    assert Train.from_dict({"schedule": {"type": "Schedule", "rate": 1.0}}).schedule == Schedule(1.0)


def test_loading_through_a_base_class() -> None:
    assert Schedule.from_dict({"type": "Cosine", "steps": 3}) == Cosine(steps=3)
    assert BaseConfig.from_dict({"type": "Square", "side": 2.0}) == Square(2.0)
    with refused("Cosine: type: unknown class 'Schedule'; expected one of Cosine"):
        Cosine.from_dict({"type": "Schedule"})


@pytest.mark.parametrize(
    "data, message",
    [
        ({"optimizer": {}}, "Train: optimizer.type: missing; expected one of Adam, Sgd"),
        ({"optimizer": {"type": "Adma"}}, "optimizer.type: unknown class 'Adma'; did you mean `Adam`?"),
        ({"optimizer": {"type": "Cosine"}}, "optimizer.type: unknown class 'Cosine'; expected one of Adam, Sgd"),
        ({"optimizer": {"type": ["Adam"]}}, "optimizer.type: unknown class ['Adam']"),
        ({"optimizer": {"type": "Adam", "betas": [0.9, "x"]}}, "Train: optimizer.betas.1: expected float, got str 'x'"),
        ({"schedule": {"type": "Sgd"}}, "unknown class 'Sgd'; expected one of Cosine, Schedule, Warmup"),
        ({"schedule": {"type": "Warmup", "after": {"steps": 1}}}, "schedule.after.steps: unknown key"),
        (
            {"stages": {"x": {"type": "Sgd", "momentums": 1}}},
            "stages.x.momentums: unknown key; did you mean `momentum`?",
        ),
        ({"stages": {"x": 3}}, "stages.x: expected Schedule | Sgd | None, got int 3"),
        ({"optimizer": None}, "optimizer: expected an object (Sgd | Adam), got None"),
    ],
)
def test_errors_name_the_path(data: dict[str, Any], message: str) -> None:
    with refused(message):
        Train.from_dict(data)


def test_a_value_of_another_class_is_refused() -> None:
    with refused("optimizer: expected Sgd | Adam, got Cosine"):
        Train(optimizer=Cosine())  # pyright: ignore[reportArgumentType]


def test_validate_is_reported_with_the_path_of_its_config() -> None:
    class Part(Config):
        size: int

        def validate(self) -> None:
            if self.size < 0:
                raise ValueError(f"size must not be negative, got {self.size}")

    class Whole(Config):
        part: Part | None = None
        parts: tuple[Part, ...] = ()

    with pytest.raises(ConfigError) as caught:
        Whole.from_dict({"part": {"size": -1}, "parts": [{"size": 1}, {"size": -2}]})
    assert str(caught.value).splitlines()[1:] == [
        "  part: size must not be negative, got -1",
        "  parts.1: size must not be negative, got -2",
    ]


def test_abstract_bases_always_name_the_class() -> None:
    drawing = Drawing(Square(2.0))
    assert drawing.to_dict() == {"shape": {"type": "Square", "side": 2.0}}
    assert Drawing.from_json(drawing.to_json()) == drawing
    with refused("shape.type: missing; expected one of Square"):
        Drawing.from_dict({"shape": {"side": 2.0}})
    with refused("shape.type: unknown class 'Shape'; expected one of Square"):
        Drawing.from_dict({"shape": {"type": "Shape"}})


@pytest.mark.full
def test_a_field_may_hold_any_config() -> None:
    for value in (Sgd(), Cosine(), Train(), Anything(Sgd())):
        assert Anything.from_json(Anything(value).to_json()) == Anything(value)
    with refused("value.type: missing; expected one of ") as found:
        Anything.from_dict({"value": {}})
    assert re.search(r"\bAdam, ", str(found.value))
    with refused("unknown class 'Config'"):
        Anything.from_dict({"value": {"type": "Config"}})


def test_two_classes_of_one_name() -> None:
    def make() -> type[Schedule]:
        class Twin(Schedule):
            pass

        return Twin

    one, two = make(), make()
    for twin in (one, two):
        with refused("Twin cannot be stored: Twin names 2 classes"):
            Train(twin()).to_dict()
    with refused("schedule.type: Twin names 2 classes (") as caught:
        Train.from_dict({"schedule": {"type": "Twin"}})
    assert "make.<locals>.Twin" in str(caught.value)
    del one, caught
    assert type(Train.from_dict({"schedule": {"type": "Twin"}}).schedule) is two  # the other is gone


def test_a_class_defined_again_takes_the_place_of_the_first() -> None:
    def define() -> type[Schedule]:
        body: dict[str, Any] = {"__module__": __name__, "__qualname__": "Again"}  # as in a notebook or after a reload
        return type("Again", (Schedule,), body)

    old, new = define(), define()
    assert type(Train.from_json(Train(old()).to_json()).schedule) is new


def test_classes_are_not_kept_alive() -> None:
    def define() -> tuple[weakref.ref[type], weakref.ref[Any]]:
        class Payload:
            pass

        payload = Payload()

        class Passing(Schedule):
            part: Sgd = Sgd()
            constant: ClassVar[Any] = payload

        class Unresolved(Schedule):
            part: Missing = None  # noqa: F821  # pyright: ignore[reportUndefinedVariable]

        Passing.from_json(Passing().to_json())
        return weakref.ref(Passing), weakref.ref(payload)

    references = define()
    gc.collect()
    assert [reference() for reference in references] == [None, None]
    with refused("unknown class 'Passing'"):
        Train.from_dict({"schedule": {"type": "Passing"}})

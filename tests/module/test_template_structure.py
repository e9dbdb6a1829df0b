"""What a module that was built from another one is made of: known without a walk, and right after every change."""

from __future__ import annotations

from typing import Any

import pytest

import phlox as px
from phlox import nn
from phlox.errors import ModuleError
from phlox.module.structure import Structure


class Parts(px.Module):
    """Modules in plain containers, a module that stands twice, and a tied parameter."""

    def __init__(self) -> None:
        self.layers = [nn.Linear(2, 2), {"a": nn.Linear(2, 3), "b": (nn.Linear(3, 2), 7)}]
        self.again = self.layers[0]
        self.tied = self.layers[1]["a"].weight
        self.name = "parts"


class Odd(px.Module):
    """Assigns in its own way, so that its fields may change without a word."""

    def __init__(self) -> None:
        self.layer = nn.Linear(2, 2)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


def twice(_: str, param: px.Param) -> px.Param:
    return param.map(lambda value: value * 2.0)


def told(structure: Structure) -> tuple[Any, ...]:
    return structure.paths, structure.aliases, structure.skeleton, [id(param) for param in structure.params]


@pytest.mark.parametrize("make", [Parts, Odd, lambda: nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))])
def test_it_is_what_a_walk_finds(make: Any) -> None:
    built = make().init(0).map(twice).map(twice)
    assert told(built.structure()) == told(Structure(built))
    assert built.structure().is_unchanged()


def test_it_is_not_walked_over(monkeypatch: pytest.MonkeyPatch) -> None:
    built = Parts().init(0).map(twice)
    monkeypatch.setattr(Structure, "__init__", None)
    assert built.map(twice).structure().paths == built.structure().paths


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.layers.append(nn.Linear(2, 2)),
        lambda model: model.layers[1].update(c=nn.Linear(2, 2)),
        lambda model: setattr(model.layers[1]["b"][0], "extra", px.Param(px.ones((2,)))),
        lambda model: vars(model).update(extra=px.Param(px.ones((2,)))),
        lambda model: delattr(model, "tied"),
        lambda model: setattr(model, "again", nn.Linear(2, 2)),
    ],
    ids=["list", "dict", "inner field", "handed out", "deleted", "untied"],
)
def test_changes_are_seen(change: Any) -> None:
    model = Parts().init(0).map(twice)
    before = model.structure()
    change(model)
    assert model.structure() is not before
    assert told(model.structure()) == told(Structure(model))


def test_fields_that_change_without_a_word_are_seen() -> None:
    model = Odd().init(0).map(twice)
    assert len(model.params()) == 2
    model.layer = nn.Linear(2, 2, bias=False)
    assert len(model.params()) == 1


def test_sets_are_compared() -> None:
    model: Any = Parts()
    model.kinds = {1, 2}
    built = model.init(0).map(twice)
    before = built.structure()
    built.kinds.add(3)
    assert built.structure() is not before
    assert model.kinds == {1, 2}


def test_parameters_that_a_mapper_ties_are_tied() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).init(0)
    shared = px.Param(px.ones((2, 2)))
    built = model.map(lambda path, param: shared if path.endswith("weight") else param)
    assert len(built.params()) == 3
    assert told(built.structure()) == told(Structure(built))


def test_parameters_that_functions_hold_are_refused() -> None:
    model = nn.Linear(2, 2).init(0)
    weight = px.Param(px.ones((2, 2)))
    model.later = lambda: weight
    with pytest.raises(ModuleError, match="`later` is a function that holds a Param, where it is not found"):
        model.map(lambda path, param: weight if path == "weight" else param)

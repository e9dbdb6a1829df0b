"""Containers of tensors: taken apart and put together, against `jax.tree` where it knows them."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

import phlox as px
from phlox import nn, optim
from phlox.transform.tree import map_parts, map_tensors, parts_of, tensors_of, with_parts


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass(frozen=True)
class State:
    value: Any
    name: str = "state"
    made: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.made.append(1)


@dataclass
class Setting:
    rate: float = 0.1


def x(value: float) -> px.Tensor:
    return px.tensor([value])


STRUCTURES: dict[str, Any] = {
    "nested": [x(1.0), (x(2.0), {"b": x(3.0), "a": [x(4.0)]})],
    "named tuple": Pair(x(1.0), [Pair(x(2.0), x(3.0))]),
    "ordered": OrderedDict(b=x(1.0), a=x(2.0)),
    "default": defaultdict(list, {"k": x(1.0)}),
    "a tensor": x(1.0),
    "nothing": [(), {}, []],
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_mapped_as_jax_maps(name: str) -> None:
    value = STRUCTURES[name]
    ours = map_tensors(lambda one: one + 1.0, value)
    theirs = jax.tree.map(lambda one: one.numpy() + 1.0, value, is_leaf=lambda one: isinstance(one, px.Tensor))
    as_arrays = jax.tree.map(lambda one: one.numpy(), ours, is_leaf=lambda one: isinstance(one, px.Tensor))
    assert jax.tree.structure(as_arrays) == jax.tree.structure(theirs)
    for one, other in zip(jax.tree.leaves(as_arrays), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_array_equal(one, other)
    assert type(ours) is type(value)


def test_in_the_order_in_which_they_are_held() -> None:
    assert [one.item() for one in tensors_of({"b": x(1.0), "a": [x(2.0), 3, x(4.0)]})] == [1.0, 2.0, 4.0]


def test_paths() -> None:
    labels = {name: [label for label, _ in parts_of(value) or []] for name, value in STRUCTURES.items()}
    assert labels["nested"] == ["[0]", "[1]"] and labels["ordered"] == ["['b']", "['a']"]
    assert labels["named tuple"] == ["[0]", "[1]"] and labels["a tensor"] == []
    assert parts_of(State(x(1.0)))[0][0] == ".value"  # type: ignore[index]
    seen: list[str] = []
    map_parts(lambda part, path: seen.append(path), {"a": 1, "b": [2]}, "x")
    assert seen == ["x['a']", "x['b']"]


def test_a_dataclass_is_a_container_if_it_holds_tensors() -> None:
    state = State({"deep": x(1.0)})
    mapped = map_tensors(lambda one: one * 2.0, state)
    assert isinstance(mapped, State) and mapped.value["deep"].item() == 2.0 and mapped.name == "state"
    assert mapped.made == [1], "it is not made again"
    assert parts_of(Setting()) is None and parts_of(State) is None
    setting = Setting()
    assert map_tensors(lambda one: one, setting) is setting


def test_modules_keep_the_ids_of_their_parameters() -> None:
    layer = nn.Linear(2, 1).init(0)
    mapped = map_tensors(lambda one: one * 0.0, {"layer": layer})["layer"]
    assert [param.id for param in mapped.params()] == [param.id for param in layer.params()]
    assert all((param.val().numpy() == 0.0).all() for param in mapped.params())
    assert any((param.val().numpy() != 0.0).any() for param in layer.params())
    assert len(tensors_of([layer, x(1.0)])) == 3


def test_gradients() -> None:
    layer = nn.Linear(2, 1).train()
    gradients = optim.GradientsParams.from_grads(layer(px.ones((3, 2))).sum().backward(), layer)
    doubled = map_tensors(lambda one: one * 2.0, gradients)
    assert isinstance(doubled, optim.GradientsParams) and list(doubled) == list(gradients)
    for id, gradient in gradients.items():
        found = doubled.get(id)
        assert found is not None
        np.testing.assert_array_equal(found.numpy(), 2.0 * gradient.numpy())


def test_what_is_no_container_stays() -> None:
    thing = object()
    assert parts_of(thing) is None and map_parts(lambda part, path: 0, thing, "x") is thing
    assert with_parts((1, 2), [3, 4]) == (3, 4)

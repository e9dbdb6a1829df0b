"""The cached structure of a module: never stale, whatever is changed and how, and not made anew without need.

Serves: phlox/module/fields.py
"""

from __future__ import annotations

import dataclasses
import functools
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

import phlox as px
from phlox import nn
from phlox.backend import NumPy
from phlox.module import ParamId, structure
from phlox.module.structure import Structure
from phlox.module.template import aux_of
from phlox.nn import Constant


def param() -> px.Param:
    return px.Param(px.ones((1,)))


class Box(px.Module):
    def __init__(self, **fields: Any) -> None:
        for name, value in fields.items():
            setattr(self, name, value)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


places = st.integers(0, 4)


class Changes(RuleBasedStateMachine):
    """Every way to change a module; after each the cached structure is what a fresh walk finds."""

    boxes = Bundle("boxes")

    def __init__(self) -> None:
        super().__init__()
        self.known: list[Any] = []

    @rule(target=boxes)
    def make(self) -> Any:
        box = Box(
            p=param(), items=[param(), [1]], table=OrderedDict(a=param(), b={"c": 1}), pair=([param()], 2), tags={1}
        )
        self.known.append(box)
        return box

    @rule(target=boxes, outer=boxes, how=st.sampled_from(["attribute", "list", "dict", "nested"]))
    def nest(self, outer: Any, how: str) -> Any:
        box = self.make()
        match how:
            case "attribute":
                outer.child = box
            case "list":
                outer.items.append(box)
            case "dict":
                outer.table[f"box{len(self.known)}"] = box
            case _:
                outer.pair[0].append({"deep": (box,)})
        return box

    @rule(box=boxes, place=places)
    def list_entries(self, box: Any, place: int) -> None:
        if box.items:
            box.items[place % len(box.items)] = param() if place % 2 else place

    @rule(box=boxes, how=st.sampled_from(["append", "pop", "reverse", "clear", "extend", "replace", "slice"]))
    def list_whole(self, box: Any, how: str) -> None:
        items = box.items
        match how:
            case "append":
                items.append([param()])
            case "pop" if items:
                items.pop(0)
            case "replace":
                box.items = [param() for _ in items]
            case "slice":
                items[:] = list(reversed(items))
            case "extend":
                items += [2, "x"]
            case "reverse" | "clear":
                getattr(items, how)()
            case _:
                pass

    @rule(box=boxes, how=st.sampled_from(["move", "rename", "inner", "new", "equal"]))
    def dicts(self, box: Any, how: str) -> None:
        table = box.table
        match how:
            case "move":
                table.move_to_end(next(iter(table)))
            case "rename":
                table[f"r{len(table)}"] = table.pop(next(iter(table)))
            case "inner" if isinstance(table.get("b"), dict):
                table["b"]["c"] = param()
            case "new":
                table["a"] = param()
            case _:
                table["b"] = {"c": 1}

    @rule(box=boxes, place=places)
    def attributes(self, box: Any, place: int) -> None:
        setattr(box, f"f{place}", [param(), None, 1, 1.0, True][place])

    @rule(box=boxes, place=places)
    def deleted(self, box: Any, place: int) -> None:
        if hasattr(box, f"f{place}"):
            delattr(box, f"f{place}")

    @rule(box=boxes, place=places)
    def behind_its_back(self, box: Any, place: int) -> None:
        vars(box)[f"v{place}"] = param()
        vars(box).pop(f"v{(place + 1) % 5}", None)

    @rule(box=boxes, place=places)
    def sets(self, box: Any, place: int) -> None:
        box.tags.symmetric_difference_update({place})

    @rule(box=boxes, other=boxes)
    def tied(self, box: Any, other: Any) -> None:
        box.tie = other.p

    @rule(box=boxes)
    def replaced(self, box: Any) -> None:
        box.p = param()

    @rule(box=boxes, trained=st.booleans())
    def marked(self, box: Any, trained: bool) -> None:
        box.p.set_trained(trained)

    @rule(box=boxes)
    def renamed_id(self, box: Any) -> None:
        box.p.set_id(param().id)

    @rule(box=boxes, element=st.sampled_from(["f32", "f64"]))
    def computed_elsewhere(self, box: Any, element: Any) -> None:
        box.p.set(px.ones((1,), device=NumPy(element).device()))

    @rule(box=boxes, place=places)
    def made_when_first_needed(self, box: Any, place: int) -> None:
        if place % 2:
            box.late = px.Param.deferred((1,), Constant(2.0), device="numpy")
        elif hasattr(box, "late"):
            box.late.init()

    @rule(box=boxes, training=st.sampled_from([True, False, None]))
    def mode(self, box: Any, training: bool | None) -> None:
        box.training = training

    @invariant()
    def the_cache_is_what_a_fresh_walk_finds(self) -> None:
        for box in self.known:
            known, fresh = box.structure(), Structure(box)
            assert (known.paths, known.aliases, known.skeleton) == (fresh.paths, fresh.aliases, fresh.skeleton)
            assert all(a is b for a, b in zip(known.params, fresh.params, strict=True))
            assert aux_of(known) == aux_of(fresh) and aux_of(known).ids == aux_of(fresh).ids
            rebuilt = aux_of(known).template.build([p.leaf for p in known.params], aux_of(known).ids)
            assert Structure(rebuilt).skeleton == fresh.skeleton


TestChanges = Changes.TestCase
TestChanges.settings = settings(max_examples=40, stateful_step_count=15, deadline=None)


def test_walks_are_made_only_where_something_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    walks = 0
    walk = structure._Walk

    def counted(root: Any) -> Any:
        nonlocal walks
        walks += 1
        return walk(root)

    monkeypatch.setattr(structure, "_Walk", counted)
    one, other = Box(p=param(), items=[Box(q=param()), 1]), Box(p=param(), items=[Box(q=param())])

    def found() -> int:
        nonlocal walks
        walks = 0
        for _ in range(3):
            one.params()
            other.params()
        return walks

    assert found() == 2 and found() == 0
    one.name = "x"
    assert found() == 1
    one.items[0].q = param()
    assert found() == 1
    one.items[0].q.set(px.zeros((1,)))  # a value is no structure
    Box(p=one.p, child=one.items[0]).params()  # nor is it changed by what else its parts are put into
    one.train()
    one.freeze()
    one.to_device("numpy")
    one.init(0)
    repr(one)
    one.into_record()
    assert found() == 0
    one.items[1] = 2
    assert found() == 1
    vars(one)
    vars(one.items[0])  # from now on it is compared, too
    assert found() == 1 and found() == 0


def test_a_parameter_that_changes_is_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that loading, making and freezing cost no walk; what JAX is told of the parameter is found out anew."""
    late = px.Param.deferred((1,), Constant(2.0), device="numpy")
    model = Box(p=param(), inner=Box(late=late))
    known = aux_of(model.inner.structure()), aux_of(model.structure())
    late = model.inner.late
    monkeypatch.setattr(structure, "_Walk", None)
    assert (aux_of(model.inner.structure()), aux_of(model.structure())) == known

    def marks_of(module: Any) -> Any:
        return aux_of(module.structure()).template.marks[-1]

    for change in (
        lambda: late.set_trained(False),
        lambda: late.set_trained(True),
        lambda: late.set(px.ones((1,), device=NumPy("f64").device())),
    ):
        before = late.mark
        change()
        assert late.mark != before
        assert marks_of(model) == marks_of(model.inner) == late.mark
    late.set_id(ParamId("of a file"))
    assert aux_of(model.structure()).ids == (model.p.id, late.id) and aux_of(model.inner.structure()).ids == (late.id,)
    late.set_id(model.p.id)  # no two of a module have one
    assert aux_of(model.structure()).ids == (model.p.id, late.id) and aux_of(model.inner.structure()).ids == (late.id,)
    assert late.id == "of a file" != model.p.id
    model.p.set(px.zeros((1,)))  # a value is nothing that JAX is told
    assert model.structure().aux is aux_of(model.structure())


@dataclasses.dataclass(frozen=True)
class Fixed(px.Module):
    layer: nn.Linear
    rate: float = 0.5


class Own(px.Module):
    def __init__(self) -> None:
        self.layer = param()

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @functools.cached_property
    def doubled(self) -> px.Tensor:
        return self.layer.val() * 2.0


def test_classes_that_set_their_fields_in_their_own_way() -> None:
    fixed = Fixed(nn.Linear(2, 2))
    assert len(fixed.params()) == 2
    object.__setattr__(fixed, "layer", nn.Linear(2, 2, bias=False))
    assert len(fixed.params()) == 1
    own = Own()
    assert len(own.params()) == 1
    own.extra = param()
    assert len(own.params()) == 2


def test_what_a_cached_property_keeps_is_no_field() -> None:
    own = Own()
    assert own.doubled.item() == 2.0 and own.structure().skeleton.keys == ("layer",)
    changed = own.map(lambda path, p: p.map(lambda t: t * 3.0))
    assert changed.doubled.item() == 6.0 and own.doubled.item() == 2.0


def test_a_set_is_each_modules_own() -> None:
    jax = pytest.importorskip("jax")
    box = Box(p=param(), tags={1}, more=frozenset([2]))
    twin = jax.tree.map(lambda leaf: leaf, box)
    box.tags.add(3)
    assert twin.tags == {1} and jax.tree.map(lambda leaf: leaf, box).tags == {1, 3}
    again = Box(p=param(), tags={1}, more=frozenset([2]))
    assert jax.tree.structure(again) == jax.tree.structure(twin) != jax.tree.structure(box)
    assert jax.tree.structure(Box(p=param(), tags={True}, more=frozenset([2]))) != jax.tree.structure(again)

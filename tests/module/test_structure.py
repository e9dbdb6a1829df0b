"""What a module is made of: paths, nesting, ties, static fields, and a cache that never goes stale."""

from __future__ import annotations

import copy
import dataclasses
import gc
import pickle
import sqlite3
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import phlox as px
from phlox import nn
from phlox.backend import NumPy
from phlox.errors import ModuleError
from phlox.module.structure import Structure
from phlox.module.template import aux_of


def param(value: float = 1.0) -> px.Param:
    return px.Param(px.full((2,), value))


class Box(px.Module):
    def __init__(self, **fields: Any) -> None:
        for name, value in fields.items():
            setattr(self, name, value)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass
class Declared(px.Module):
    layer: nn.Linear
    rate: float = 0.5
    names: list[str] = dataclasses.field(default_factory=list)

    def __call__(self, x: px.Tensor) -> px.Tensor:
        return self.layer(x) * self.rate


@dataclasses.dataclass(frozen=True)
class Fixed(px.Module):
    layer: nn.Linear


class Shadowing(px.Module):
    scale = 1.0

    def __init__(self) -> None:
        self.scale = px.Param(px.ones((2,)))


class Delegating(px.Module):
    def __init__(self) -> None:
        self.wrapped = nn.Linear(2, 3)
        self.name = "outer"

    def __getattr__(self, name: str) -> Any:
        if name == "wrapped":
            raise AttributeError(name)
        return getattr(self.wrapped, name)


def paths(module: px.Module) -> list[str]:
    return [path for path, _ in module.named_params()]


def test_paths_follow_the_order_of_declaration_through_all_containers() -> None:
    box = Box(
        a=param(),
        b=[param(), "text", (param(), None, {"x": param(), 3: param()})],
        c=OrderedDict(z=param(), y=param()),
        d=Pair(param(), Box(inner=[Box(w=param())])),
        e=7,
    )
    assert paths(box) == [
        "a", "b.0", "b.2.0", "b.2.2.x", "b.2.2.3", "c.z", "c.y", "d.0", "d.1.inner.0.w",
    ]  # fmt: skip
    twin = box.map(lambda path, p: p)
    assert isinstance(twin.c, OrderedDict) and isinstance(twin.d, Pair) and isinstance(twin.b[2], tuple)
    assert paths(twin) == paths(box)
    assert box.num_params() == 18
    seen: list[str] = []
    box.visit(lambda path, p: seen.append(path))
    assert seen == paths(box)


def test_anything_may_be_a_static_field() -> None:
    lock, database = threading.Lock(), sqlite3.connect(":memory:")
    box = Box(
        p=param(), f=len, lock=lock, db=database, nothing=None, g=lambda x: x, kinds={1, 2}, plain=["a", {"b": 2}]
    )
    moved = box.to_device(NumPy(float="f64")).train().valid()
    assert moved.f is len and moved.lock is lock and moved.db is database and moved.nothing is None
    assert moved.kinds == {1, 2} and moved.plain == ["a", {"b": 2}]
    assert moved.p.val().backend is NumPy(float="f64")
    database.close()


def test_an_array_as_static_field_is_an_error_only_where_it_must_be_compared() -> None:
    jax = pytest.importorskip("jax")
    box = Box(layers=[Box(p=param(), table=np.zeros(10_000))])
    assert box.map(lambda path, p: p).layers[0].table is box.layers[0].table
    with pytest.raises(ModuleError, match=r"`layers\.0\.table` is of type ndarray.*make it a phlox\.Buffer"):
        jax.tree.leaves(box)


def test_tied_parameters_and_shared_modules_stay_tied() -> None:
    linear, p = nn.Linear(2, 2).init(0), param()
    box = Box(first=linear, again=[linear], p=p, q=p, w=linear.weight)
    assert paths(box) == ["first.weight", "first.bias", "p"]
    for twin in (
        box.map(lambda path, p: p.map(lambda t: t * 2.0)),
        box.to_device(NumPy(float="f64")),
        box.train(),
        copy.deepcopy(box),
        pickle.loads(pickle.dumps(box)),  # noqa: S301
        box.freeze(),
        Box(first=linear, again=[linear], p=p, q=p, w=linear.weight).to_device(NumPy(float="f64")),
    ):
        assert twin.first is twin.again[0] and twin.first is not box.first
        assert twin.p is twin.q and twin.w is twin.first.weight and twin.p is not p
        assert [p.id for p in twin.params()] == [p.id for p in box.params()]


def test_mutation_in_place_is_always_seen() -> None:
    inner = Box(w=param())
    box = Box(items=[inner], table={"a": param()}, nest=([param()],))
    assert paths(box) == ["items.0.w", "table.a", "nest.0.0"]
    box.items.append(param())
    assert paths(box) == ["items.0.w", "items.1", "table.a", "nest.0.0"]
    box.table["b"] = box.table.pop("a")  # same value under another key
    assert paths(box) == ["items.0.w", "items.1", "table.b", "nest.0.0"]
    inner.v = param()
    assert "items.0.v" in paths(box)
    del inner.w
    assert paths(box) == ["items.0.v", "items.1", "table.b", "nest.0.0"]
    box.nest[0].clear()
    box.items.reverse()
    assert paths(box) == ["items.0", "items.1.v", "table.b"]
    box.items[0] = inner
    assert paths(box) == ["items.0.v", "table.b"]


def test_a_rename_of_a_key_is_seen_by_transformations() -> None:
    jax = pytest.importorskip("jax")
    box = Box(table={"a": param()}).to_device("jax")
    before = jax.tree.structure(box)
    box.table["b"] = box.table.pop("a")
    assert jax.tree.structure(box) != before
    assert list(jax.tree.map(lambda x: x, box).table) == ["b"]


def test_the_structure_is_kept_until_a_part_changes() -> None:
    one, other = Box(p=param()), Box(p=param(), child=Box(q=param()))
    known = other.structure()
    one.p = param()
    one.extra = 1
    assert other.structure() is known
    other.child.q.set(px.zeros((2,)))  # a value is not structure
    assert other.structure() is known
    other.child.q.set_trained(False)  # nor is what JAX is told of a parameter
    assert other.structure() is known
    other.child.q = param()
    assert other.structure() is not known


def test_watching_does_not_pile_up() -> None:
    box = Box(p=param(), count=0)
    for count in range(50):
        box.count = count
        box.structure()
    del box.count
    gc.collect()
    box.structure()
    assert len(box.p._phlox_watchers) <= 2


def test_a_module_that_contains_itself_is_an_error() -> None:
    box = Box(a=[1, {"b": None}])
    box.a[1]["b"] = box
    with pytest.raises(ModuleError, match=r"`a\.1\.b` contains itself"):
        box.params()
    assert "..." in repr(box)
    loop: list[Any] = [param()]
    loop.append(loop)
    with pytest.raises(ModuleError, match=r"`items\.1` contains itself"):
        Box(items=loop).params()


def test_two_parameters_under_one_path_are_an_error() -> None:
    with pytest.raises(ModuleError, match=r"the path `table\.1`"):
        Box(table={1: param(), "1": param()}).params()


@pytest.mark.parametrize("hidden", [{0: 1}.__class__, set, frozenset])
def test_parameters_where_they_would_not_be_found_are_an_error(hidden: Any) -> None:
    class Strange(dict[str, Any]):
        pass

    held = Strange(x=param()) if hidden is dict else hidden([param()])
    with pytest.raises(ModuleError, match="`odd` holds a Param"):
        Box(odd=held).params()


def test_slots_are_refused() -> None:
    with pytest.raises(ModuleError, match="__slots__"):

        class Slotted(px.Module):
            __slots__ = ("weight",)


def test_static_values_that_are_equal_but_not_alike_are_told_apart() -> None:
    jax = pytest.importorskip("jax")
    for one, other in ((0.0, -0.0), (1, 1.0), (1, True), ((1,), (True,)), ({1: "x"}, {True: "x"})):
        left, right = Box(p=param(), s=one), Box(p=param(), s=other)
        assert jax.tree.structure(left) != jax.tree.structure(right), (one, other)
        for box, value in ((left, one), (right, other)):
            assert repr(jax.tree.map(lambda x: x, box).s) == repr(value)
    nan = Box(p=param(), s=float("nan")), Box(p=param(), s=float("nan"))
    assert jax.tree.structure(nan[0]) == jax.tree.structure(nan[1])


def lazily(module: Any) -> Any:
    """The module as it comes out of a transformation, not yet built."""
    jax = pytest.importorskip("jax")
    return jax.tree.map(lambda leaf: leaf, module)


def test_an_object_that_is_not_yet_built_behaves_like_one_that_is() -> None:
    box = Box(p=param(3.0), s="text", items=[1, param()])
    assert list(vars(lazily(box))) == ["p", "s", "items"]
    assert set(dir(lazily(box))) >= {"p", "s", "items"}
    assert lazily(box).s == "text" and isinstance(lazily(box), Box)
    assert repr(lazily(box)) == repr(box)
    assert hasattr(lazily(box), "p") and not hasattr(lazily(box), "q")
    with pytest.raises(AttributeError, match="'Box' object has no attribute 'nothing'"):
        _ = lazily(box).nothing
    for twin in (copy.copy(lazily(box)), copy.deepcopy(lazily(box)), pickle.loads(pickle.dumps(lazily(box)))):  # noqa: S301
        assert type(twin) is Box and paths(twin) == ["p", "items.1"] and twin.p.id == box.p.id
        np.testing.assert_array_equal(twin.p.val().numpy(), [3.0, 3.0])
    changed = lazily(box)
    changed.s = "other"
    assert changed.s == "other" and paths(changed) == ["p", "items.1"]
    without = lazily(box)
    del without.p
    assert paths(without) == ["items.1"]


def test_declared_modules() -> None:
    module = Declared(nn.Linear(2, 2).init(0), names=["a"])
    twin = lazily(module)
    assert isinstance(twin, Declared) and twin.rate == 0.5 and twin.names == ["a"]
    other = dataclasses.replace(module, rate=0.25)
    assert lazily(other).rate == 0.25 and lazily(module).rate == 0.5
    assert module(px.ones((1, 2))).shape == (1, 2)
    fixed = lazily(Fixed(nn.Linear(2, 2)))
    assert paths(fixed) == ["layer.weight", "layer.bias"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        fixed.layer = None


def test_fields_that_shadow_class_attributes_and_classes_that_look_up_themselves() -> None:
    assert isinstance(lazily(Shadowing()).scale, px.Param)
    twin = lazily(Delegating())
    assert twin.name == "outer" and twin.weight.shape == (2, 3)


def test_an_object_is_built_once_when_many_threads_ask() -> None:
    for _ in range(20):
        twin = lazily(Box(items=[Box(w=param()) for _ in range(30)], last="end"))
        seen: list[Any] = []
        barrier = threading.Barrier(6)

        def ask(twin: Any = twin, seen: list[Any] = seen, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            try:
                seen.append((twin.last, id(twin.items[29].w)))
            except AttributeError as error:
                seen.append(error)

        threads = [threading.Thread(target=ask) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(seen)) == 1 and seen[0][0] == "end"


def test_copies_are_independent() -> None:
    box = Box(p=param(1.0))
    deep = copy.deepcopy(box)
    deep.p.set(px.zeros((2,)))
    assert box.p.val().tolist() == [1.0, 1.0] and deep.p.id == box.p.id


def test_display() -> None:
    layers: list[Any] = [nn.Linear(3, 2), nn.Relu(), Box(child={"a": Box(p=px.Param(px.ones((1,)), trained=False))})]
    text = repr(nn.Sequential(layers))
    assert "layers.0: Linear(weight [3, 2] deferred, bias [2] deferred)" in text
    assert "layers.1: Relu()" in text and "child.a: Box(p [1] not trained)" in text


@st.composite
def changes(draw: st.DrawFn) -> list[tuple[str, int, int]]:
    names = st.sampled_from(["append", "pop", "reverse", "key", "rename", "set", "delete", "nest", "tie", "freeze"])
    return draw(st.lists(st.tuples(names, st.integers(0, 5), st.integers(0, 5)), max_size=12))


def change(boxes: list[Any], name: str, which: int, place: int) -> None:
    box = boxes[which % len(boxes)]
    match name:
        case "append":
            box.items.append(param())
        case "pop" if box.items:
            box.items.pop(place % len(box.items))
        case "reverse":
            box.items.reverse()
        case "key":
            box.table[f"k{place}"] = param()
        case "rename" if box.table:
            box.table["renamed"] = box.table.pop(next(iter(box.table)))
        case "set":
            setattr(box, f"f{place}", param() if place % 2 else place)
        case "delete" if hasattr(box, f"f{place}"):
            delattr(box, f"f{place}")
        case "nest":
            boxes.append(Box(items=[param()], table={}))
            box.items.append(boxes[-1])
        case "tie" if boxes[0].params():
            box.items.append(boxes[0].params()[place % len(boxes[0].params())])
        case "freeze" if box.params():
            box.params()[place % len(box.params())].set_trained(bool(place % 2))
        case _:
            pass


@given(changes())
@settings(max_examples=60)
def test_a_cached_structure_is_what_a_fresh_walk_finds(steps: list[tuple[str, int, int]]) -> None:
    boxes: list[Any] = [Box(items=[param()], table={"a": param()})]
    for name, which, place in steps:
        change(boxes, name, which, place)
        for box in boxes:
            known, fresh = box.structure(), Structure(box)
            assert (known.paths, known.aliases, known.skeleton) == (fresh.paths, fresh.aliases, fresh.skeleton)
            assert all(a is b for a, b in zip(known.params, fresh.params, strict=True))
            assert known.aux is None or known.aux.template.marks == tuple(p.mark for p in fresh.params)
            aux_of(known)

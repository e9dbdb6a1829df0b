"""Modules built or used in a way that they cannot be: each error names the path and the remedy.

Serves: phlox/module/{misplaced_params,foreign_leaf}.py
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import pickle
from collections import OrderedDict, UserList, deque
from collections.abc import Callable
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import phlox as px
from phlox import nn
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch
from phlox.errors import ModuleError
from phlox.module.structure import Structure
from phlox.module.template import aux_of, unflatten

JAX = Jax().device()


def param(device: Any = None) -> px.Param:
    return px.Param(px.ones((2,), device=device))


class Box(px.Module):
    def __init__(self, **fields: Any) -> None:
        for name, value in fields.items():
            setattr(self, name, value)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


# --- structure


def test_a_module_that_contains_itself() -> None:
    directly, chained, listed = Box(p=param()), Box(a=Box(b=Box())), Box(table={"x": []})
    directly.me = directly
    chained.a.b.c = chained.a
    listed.table["x"].append(listed)
    for box, path, whole in (
        (directly, "me", "the module"),
        (chained, "a.b.c", "`a`"),
        (listed, "table.x.0", "the mod"),
    ):
        with pytest.raises(ModuleError, match=rf"`{path}` contains itself: it is {whole}.*must be a tree"):
            box.params()
        with pytest.raises(ModuleError, match="contains itself"):
            jax.tree.leaves(box)


def test_two_parameters_under_one_path() -> None:
    for table in ({"a.b": param(), "a": {"b": param()}}, {1: param(), "1": param()}):
        with pytest.raises(ModuleError, match=r"two parameters have the path `table\.(a\.b|1)`; rename"):
            Box(table=table).params()
    tied = param()
    assert len(Box(table={"a.b": tied, "a": {"b": tied}}).params()) == 1  # one and the same may


@dataclasses.dataclass
class Plain:
    weight: Any


class Holder:
    def __init__(self, **parts: Any) -> None:
        vars(self).update(parts)


class Strange(dict[str, Any]):
    pass


@pytest.mark.parametrize(
    ("held", "said"),
    [
        ({1, 2}, None),
        (lambda: {param()}, "in a set"),
        (lambda: frozenset([nn.Linear(2, 2)]), "a Linear in a frozenset"),
        (lambda: deque([param()]), "in a deque"),
        (lambda: Strange(x=param()), "in a Strange"),
        (lambda: MappingProxyType({"x": param()}), "in a mappingproxy"),
        (lambda: UserList([param()]), "in a UserList"),
        (lambda: OrderedDict(x=[param()]), None),
        (lambda: Plain(param()), r"a Param in a Plain \(its weight\).*phlox.Module"),
        (lambda: Plain([param()]), r"its weight"),
        (lambda: Holder(layer=nn.Linear(2, 2)), r"a Linear in a Holder \(its layer\)"),
        (lambda: Holder(table={"x": param()}), "its table"),
        (lambda: Holder(name="x", table={"x": 1}), None),
    ],
)
def test_parameters_where_they_would_not_be_found(held: Any, said: str | None) -> None:
    box = Box(inner=[Box(odd=held() if callable(held) else held)])
    if said is None:
        box.params()
    else:
        with pytest.raises(ModuleError, match=rf"`inner\.0\.odd` holds .*{said}"):
            box.params()


class Choosing(px.Module):
    def __init__(self, how: str) -> None:
        self.layer = nn.Linear(2, 2)
        layer = self.layer
        self.act: Any = {
            "method": self.forward,
            "child": layer.__call__,
            "closure": lambda x: layer(x) * 2.0,
            "self": lambda x: self.layer(x),
            "default": lambda x, weight=layer.weight: x @ weight.val(),
            "partial": functools.partial(Choosing.forward, self),
            "jit": jax.jit(self.forward),
            "object": Holder(step=self.forward),
        }[how]

    def forward(self, x: px.Tensor) -> px.Tensor:
        return self.layer(x)


@pytest.mark.parametrize("how", ["method", "child", "closure", "self", "default", "partial", "jit", "object"])
def test_functions_that_keep_hold_of_the_module(how: str) -> None:
    """After an update they would still use the old parameters."""
    with pytest.raises(ModuleError, match="`act` is a function that holds the .* in every copy of the module"):
        Choosing(how).params()


def numbered(model: px.Module) -> Any:
    yield model


def in_array(model: px.Module) -> Any:
    array = np.empty(2, object)
    array[1] = model
    return array


class Slotted:
    __slots__ = ("model",)

    def __init__(self, model: px.Module) -> None:
        self.model = model


HIDDEN: dict[str, Callable[[Any], Any]] = {
    "a closure": lambda teacher: lambda x: teacher(x),
    "a default": lambda teacher: lambda x, model=teacher: model(x),
    "a keyword default": lambda teacher: lambda x, *, model=teacher: model(x),
    "partial": lambda teacher: functools.partial(lambda model, x: model(x), teacher),
    "partial of partial": lambda teacher: functools.partial(functools.partial(max, teacher.weight), 1),
    "a bound method": lambda teacher: teacher.__call__,
    "a bound method of a list": lambda teacher: [teacher].append,
    "a list of functions": lambda teacher: [len, lambda x: teacher(x)],
    "jit": lambda teacher: jax.jit(lambda x: teacher(x)),
    "values": lambda teacher: {"a": teacher}.values(),
    "items": lambda teacher: {"a": teacher}.items(),
    "an object array": in_array,
    "a deque": lambda teacher: deque([teacher]),
    "a generator": numbered,
    "a generator expression": lambda teacher: (one for one in [teacher]),
    "an iterator": lambda teacher: iter([teacher]),
    "map": lambda teacher: map(id, [teacher]),
    "zip": lambda teacher: zip([teacher], [1], strict=True),
    "a frozen set": lambda teacher: frozenset([teacher]),
    "slots": Slotted,
}


@pytest.mark.parametrize("how", HIDDEN)
def test_models_hidden_in_a_field(how: str) -> None:
    teacher = nn.Linear(2, 2)
    box = Box(p=param(), inner={"odd": HIDDEN[how](teacher)})
    with pytest.raises(
        ModuleError, match=r"`inner\.odd(\.1)?` (is a function that )?holds a (Linear|Param).*is not found"
    ):
        box.params()
    if how != "partial of partial":
        assert Box(p=param(), inner={"odd": HIDDEN[how](px.reference(teacher))}).num_params() == 2


def test_what_looks_like_it_is_left_alone() -> None:
    fields = [np.arange(2).astype(object), iter([1, 2]), {"a": 1}.values(), functools.partial(max, 1), [].append]
    assert Box(p=param(), odd=fields, g=(i for i in range(3)), f=abs).num_params() == 2


class Touchy:
    def __init__(self, how: str) -> None:
        self.how = how

    def __eq__(self, other: object) -> Any:
        if self.how == "array":
            return np.array([True, False])
        if self.how == "eq":
            raise RuntimeError("not today")
        return NotImplemented

    def __hash__(self) -> int:
        if self.how == "hash":
            raise RuntimeError("no hash today")
        return 1


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (np.zeros(10_000), "ndarray, which cannot be compared .*80000 bytes, and only"),
        (np.array([object()]), "ndarray, which cannot be compared .*of objects"),
        (Plain(3), "Plain.*frozen dataclass"),
        (bytearray(b"x"), "bytearray"),
        (Touchy("hash"), "Touchy.*RuntimeError: no hash today"),
        (Touchy("eq"), "Touchy.*== fails with RuntimeError: not today"),
        (Touchy("array"), "Touchy.*== fails with ValueError"),
    ],
)
def test_static_fields_that_cannot_be_compared(value: Any, said: str) -> None:
    kept = [Box(inner={"odd": [copy.copy(value)]}, name="x", f=len, p=param()) for _ in range(2)]
    with pytest.raises(ModuleError, match=rf"the static field `inner\.odd\.0` is of type {said}"):
        jax.tree.leaves(kept)
    assert kept[0].map(lambda path, p: p).inner["odd"][0] is kept[0].inner["odd"][0]  # but it may be there
    kept[0].to_device(NumPy(float="f64")).train()


def test_mappers_and_visitors_that_fail_name_the_path() -> None:
    model = nn.Sequential([nn.Linear(2, 2), nn.Linear(2, 3)]).init(0)

    def check(path: str, p: px.Param) -> px.Param:
        if p.shape == (3,):
            raise ValueError("three")
        return p

    for name in ("map", "visit"):
        with pytest.raises(ValueError, match="three") as caught:
            getattr(model, name)(check)
        assert "`layers.1.bias`" in "".join(caught.value.__notes__)
    with pytest.raises(px.errors.ShapeError) as failed:
        model.map(lambda path, p: p.map(lambda t: t @ px.ones((9,))))
    assert "`layers.0.weight`" in "".join(failed.value.__notes__)


# --- what PyTree functions give


BACKENDS: list[Backend] = [NumPy(), Jax(), Torch(), Autodiff(Jax())]


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
@pytest.mark.parametrize(
    ("give", "said"),
    [
        (lambda leaf: (leaf, leaf), "gave it a tuple"),
        (lambda leaf: 1, "gave it an int"),
        (lambda leaf: None, "gave it a NoneType"),
        (lambda leaf: "decay", "gave it a str"),
        (lambda leaf: np.asarray(leaf, np.float64), r"float64 \(2, 3\); keep the element type"),
        (lambda leaf: np.asarray(leaf).astype(np.int32), r"int32 \(2, 3\); keep the element type"),
        (lambda leaf: np.asarray(leaf) > 0, r"bool \(2, 3\)"),
        (
            lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), np.float32),
            r"abstract: float32 \(2, 3\) without values",
        ),
    ],
)
def test_a_leaf_that_is_no_array_of_the_backend(backend: Backend, give: Any, said: str) -> None:
    import re

    model = nn.Sequential([nn.Linear(2, 3)]).init(0, device=backend)
    odd = jax.tree.map(give, model)
    assert len(jax.tree.leaves(odd)) in (0, 2, 4)  # PyTree functions may use modules as trees of whatever they like
    assert "weight" in repr(odd) and repr(odd.layers[0].weight)
    path = rf"weight` is a Float parameter on {re.escape(repr(backend))} \(float32\)"
    if isinstance(backend, NumPy) and "float64" in said:  # a cast
        assert odd.layers[0].weight.val().backend == NumPy(float="f64")
        return
    uses: list[Any] = [lambda: odd.layers[0].weight.val(), lambda: odd(px.ones((1, 2), device=backend))]
    assert jax.tree.structure(pickle.loads(pickle.dumps(odd))) == jax.tree.structure(odd)  # noqa: S301
    for number, use in enumerate([*uses, odd.into_record]):
        with pytest.raises(ModuleError, match=f"{path}.*{said}") as caught:
            use()
        assert number == 0 or "layers.0" in str(caught.value)  # alone, it does not know where it is
    restored = odd.load_record(model.into_record()) if odd.layers[0].weight.has_shape else None
    if restored is not None:  # what is wrong can be put right
        np.testing.assert_array_equal(restored.layers[0].weight.val().numpy(), model.layers[0].weight.val().numpy())


def test_arrays_of_numpy_are_taken_as_they_are_needed() -> None:
    model = nn.Sequential([nn.Linear(2, 3)]).init(0, device=JAX)
    fetched = jax.device_get(model)
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(fetched))
    x = px.ones((4, 2), device=JAX)
    np.testing.assert_array_equal(fetched(x).numpy(), model(x).numpy())
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(fetched))


def test_arrays_of_another_engine() -> None:
    model = nn.Linear(2, 3).init(0)
    with pytest.raises(ModuleError, match=r"`weight` .* on NumPy\(\).* gave it an ArrayImpl of float32.*to_device"):
        jax.tree.map(jnp.asarray, model).weight.val()
    with pytest.raises(ModuleError, match=r"`weight` .*Tracer.*to_device"):
        jax.jit(lambda m: m.weight.val().primitive)(model)


def test_other_shapes_are_no_error() -> None:
    model = nn.Linear(2, 3).init(0, device=JAX)
    ensemble = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), model)
    assert ensemble.weight.shape == (2, 2, 3)
    assert jax.tree.map(lambda leaf: leaf[0], ensemble).weight.shape == (2, 3)


def test_a_wrong_number_of_leaves() -> None:
    model = nn.Linear(2, 3).init(0, device=JAX)
    leaves, structure = jax.tree.flatten(model)
    for wrong in (leaves[:1], [*leaves, leaves[0]]):
        with pytest.raises(ValueError, match="leaves for PyTreeDef"):  # JAX counts them itself
            jax.tree.unflatten(structure, wrong)
        with pytest.raises(ModuleError, match=r"a Linear is built from 2 arrays \(weight, bias\), got [13]"):
            _ = unflatten(aux_of(Structure(model)), wrong).weight


def test_structures_that_differ_are_told_apart_by_name() -> None:
    one, other = (nn.Sequential([nn.Dropout(rate), nn.Linear(2, 2)]).init(0) for rate in (0.1, 0.2))
    with pytest.raises(ValueError, match=r"rate=0\.2") as caught:
        jax.tree.map(lambda a, b: a, one, other)
    assert "layers[0]" in str(caught.value) and "rate=0.1" in str(caught.value)


# --- values that outlive a transformation


def grad_of(fn: Any) -> Any:
    return jax.grad(fn)


def vmap_of(fn: Any) -> Any:
    return lambda x: jax.vmap(fn)(jnp.stack([x, x]))


@pytest.mark.parametrize("transform", [jax.jit, grad_of, vmap_of, jax.checkpoint])
def test_a_value_that_outlives_its_transformation(transform: Any) -> None:
    held: dict[str, Any] = {}
    model = nn.Linear(2, 3).init(0, device=JAX)

    def leak(x: Any) -> Any:
        held["tensor"] = px.Tensor.from_primitive(x * 2.0, Jax())
        held["module"] = jax.tree.map(lambda leaf: leaf * x[0], model)
        inside = Box(p=param(JAX), s=held["tensor"])
        jax.tree.leaves(inside)  # inside it is as good as any
        held["static"] = inside
        return x.sum()

    transform(leak)(jnp.ones(2))
    boxes = [
        (Box(a=[Box(q=px.Param(held["tensor"]))], p=param(JAX)), "a.0.q"),
        (held["module"], "weight"),
        (held["static"], "s"),
    ]
    for box, path in boxes:
        said = rf"`{path}` holds a value from inside a JAX transformation .* that has ended; return"
        if transform is not grad_of:  # there it cannot be told from what JAX itself takes apart
            with pytest.raises(ModuleError, match=said):
                jax.tree.leaves(box)
            with pytest.raises(ModuleError, match=said):
                jax.jit(lambda m: 1)(box)
        if path != "s":
            assert "leaked from a transformation that has ended" in repr(box)
            with pytest.raises(ModuleError, match=said):
                box.into_record()
    assert "leaked" in repr(held["static"])


def test_a_module_cannot_be_saved_while_it_is_traced() -> None:
    model = nn.Linear(2, 3).init(0, device=JAX)
    with pytest.raises(ModuleError, match="`weight` has no value while a program is being traced"):
        jax.jit(lambda m: [m.into_record(), 1][1])(model)


def test_donated_modules_say_so() -> None:
    model = nn.Linear(2, 3).init(0, device=JAX)
    jax.jit(lambda m: jax.tree.map(lambda leaf: leaf + 1, m), donate_argnums=0)(model)
    assert "weight [2, 3] donated and used up" in repr(model) and "donated" in repr(model.weight)


@pytest.mark.parametrize("backend", [Jax(), Torch(), NumPy(float="f64")], ids=repr)
def test_init_moves_what_was_declared_with_a_value(backend: Backend) -> None:
    class Scaled(px.Module):
        def __init__(self) -> None:
            self.layer = nn.Linear(3, 2)
            self.scale = px.Param(px.tensor([1.0, 2.0, 3.0]))
            self.count = px.Param(px.tensor(0), trained=False)

        def __call__(self, x: Any) -> Any:
            return self.layer(x * self.scale.val())

    model = Scaled().init(3, device=backend)
    assert {param.backend for param in model.params()} == {backend}
    assert model.scale.val().tolist() == [1.0, 2.0, 3.0]
    x = px.ones((1, 3), device=backend)
    np.testing.assert_allclose(px.compile(model)(x).numpy(), model(x).numpy(), rtol=1e-6)
    loaded = Scaled()
    loaded.scale.set(px.tensor([4.0, 5.0, 6.0]))
    assert loaded.init(3, device=backend).scale.backend == NumPy()

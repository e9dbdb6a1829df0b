"""Tensors in notebooks, on every backend and in every state; how much of them is read."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import phlox as px
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch
from phlox.tensor import pages as module
from phlox.tensor.observing import observed_operations
from tests.markup import Markup, read

PLAIN = [NumPy(), NumPy(float="f16"), Jax(), Jax(float="bf16"), Torch(), Torch(float="bf16"), Torch(float="f64")]
BACKENDS = [*PLAIN, Autodiff(NumPy()), Autodiff(Autodiff(Jax())), Autodiff(Torch())]
RANDOM = np.random.default_rng(0)

VALUES: dict[str, Any] = {
    "scalar": 2.5, "vector": [1.0, 2.0, 3.0], "matrix": RANDOM.normal(size=(3, 4)), "empty": np.zeros((0, 3)),
    "empty last": np.zeros((3, 0)), "long": RANDOM.normal(size=100), "large": RANDOM.normal(size=(40, 50)),
    "four axes": RANDOM.normal(size=(2, 3, 9, 10)), "ints": np.arange(-50, 50), "bools": RANDOM.normal(size=(9, 9)) > 0,
    "one bool": True, "image": RANDOM.random((12, 10, 3)), "channels first": RANDOM.random((3, 8, 9)),
    "nan": [[math.nan, 1.0], [math.inf, -math.inf]], "all nan": np.full((9, 9), math.nan), "zeros": np.zeros((9, 9)),
    "six axes": np.zeros((1, 2, 1, 2, 1, 2)), "largest": np.full((9, 9), 6e4),
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
def test_values_on_every_backend(backend: Backend, name: str) -> None:
    with np.errstate(over="ignore"):
        x = px.tensor(VALUES[name], device=backend)
    found = read(x)
    assert found.texts[0] == "Tensor" and x.kind.__name__ in found.text and str(x.device) in found.text
    assert f"({', '.join(map(str, x.shape))}" in found.text
    if 0 in x.shape:
        assert "no elements" in found.text and found.rows == []
    assert ("img" in found.tags) == (len(x.shape) >= 2 and (min(x.shape[-2:]) >= 8 or "image" in name))


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
def test_the_table_has_the_values_at_their_places(backend: Backend) -> None:
    whole = RANDOM.integers(-100, 100, (30, 20)).astype(np.float32)
    found = read(px.tensor(whole, device=backend))
    head, *rows = found.rows[:10]
    assert head == ["", "0", "1", "2", "3", "…", "16", "17", "18", "19"]
    assert [row[0] for row in rows] == ["0", "1", "2", "3", "⋮", "26", "27", "28", "29"]
    for row in rows:
        for place, cell in zip(head[1:], row[1:], strict=True):
            if place != "…" and row[0] != "⋮":
                assert float(cell) == whole[int(row[0]), int(place)]
    facts = dict(row for row in found.rows[10:] if len(row) == 2)
    assert float(facts["min"]) == whole.min() and float(facts["max"]) == whole.max()
    assert float(facts["mean"]) == pytest.approx(whole.mean(), rel=1e-4)
    assert float(facts["std"]) == pytest.approx(whole.std(), rel=1e-4)


def test_of_further_axes_the_first_entries_are_shown() -> None:
    found = read(px.arange(24).reshape(2, 3, 2, 2))
    assert "[0, 0, :, :]" in found.text and found.rows[1:3] == [["0", "0", "1"], ["1", "2", "3"]]


def test_what_is_not_finite_is_counted() -> None:
    found = read(px.tensor([math.nan, math.nan, math.inf, *range(10)], device=NumPy()))
    assert ["NaN", "2 of 13"] in found.rows and ["infinite", "1 of 13"] in found.rows
    assert ["min", "0"] in found.rows and ["max", "9"] in found.rows and ["zeros", "7.7%"] in found.rows
    assert read(px.tensor([True] * 3 + [False] * 9)).rows[-1] == ["true", "25.0%"]


@pytest.mark.parametrize("backend", [NumPy(), Jax(), Torch(), Autodiff(NumPy())], ids=repr)
def test_of_a_huge_tensor_little_is_read(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    x = px.zeros((1500, 4, 1000), device=backend).at[0, 0, -1].set(7.0).at[0, 3, 999].set(-3.0)
    if backend.differentiates:
        x = x.require_grad()
    engine: Any = x.inner().backend if backend.differentiates else backend
    amount, whole = [0], type(engine).to_host

    def to_host(self: Any, array: Any) -> Any:
        host = whole(self, array)
        amount[0] += host.size
        return host

    monkeypatch.setattr(type(engine), "to_host", to_host)
    found = read(x)
    assert 0 < amount[0] < 200_000, "of six million elements"
    assert "of a sample of" in found.text and "6,000,000 elements" in found.text
    assert found.rows[1][-1] == "7" and found.rows[4][-1] == "-3"
    assert len(x._repr_html_()) < 20_000


# --- without values


def shown_in(run: Callable[[Callable[[Any], Any]], Any]) -> tuple[Markup, str]:
    """What is shown of an argument inside of a transformation, and its repr there."""
    found: list[Any] = []

    def look(x: Any) -> Any:
        found.append((x._repr_html_(), repr(x)))
        return (x * 2.0).sum()

    run(look)
    return Markup(found[-1][0]), found[-1][1]


@pytest.mark.parametrize("name", ["px.compile on Jax", "px.compile on Torch", "px.compile on NumPy", "jit", "vmap",
                                  "grad", "eval_shape"])  # fmt: skip
def test_inside_of_transformations(name: str) -> None:
    x = px.ones((4, 3), device=Jax())
    runs: dict[str, Callable[[Callable[[Any], Any]], Any]] = {
        "px.compile on Jax": lambda look: px.compile(look)(x),
        "px.compile on Torch": lambda look: px.compile(look)(px.ones((4, 3), device=Torch())),
        "px.compile on NumPy": lambda look: px.compile(look)(px.ones((4, 3), device=NumPy())),
        "jit": lambda look: jax.jit(look)(x),
        "vmap": lambda look: px.vmap(look)(x),
        "grad": lambda look: px.grad(look)(x),
        "eval_shape": lambda look: px.eval_shape(look, px.TensorSpec((4, 3), device="jax")),
    }
    found, text = shown_in(runs[name])
    assert not found.is_fallback and "Float f32" in found.text
    if "traced" in text:
        assert "traced" in found.badges and found.rows == []
    elif name == "vmap":
        assert "one of 4 examples" in found.badges and "(3,)" in found.text and found.rows == []
    else:
        assert found.rows != []


@pytest.mark.parametrize("backend", [Jax(), Torch()], ids=repr)
def test_a_constant_of_a_program_adds_nothing_to_it(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    constant = px.ones((30, 30), device=backend)
    monkeypatch.setattr(module, "READ", 100)
    found: list[str] = []

    def look(x: px.Tensor) -> px.Tensor:
        found.append(constant._repr_html_())
        return x * 2.0

    px.compile(look)(px.ones((2,), device=backend))
    assert "values are not read while a function is traced" in Markup(found[0]).text


def test_looking_is_no_operation_and_leaves_no_node() -> None:
    x = px.ones((3000, 2000), device=Autodiff(NumPy())).require_grad()
    y = x * 2.0
    with observed_operations(lambda ops, name, arguments, result: names.append((ops.backend, name))):
        names: list[Any] = []
        y._repr_html_()
    assert all(not backend.differentiates for backend, _ in names)
    assert x.grad(y.sum().backward()) is not None
    assert "requires grad" in read(y).badges and "requires grad" not in read(y.detach()).badges


def test_after_donation_and_after_the_end_of_a_trace() -> None:
    x = px.ones((4,), device=Jax())
    step = px.compile(lambda x: x + 1.0, donate=("x",))
    step(x)
    if "donated" in repr(x):
        assert "donated" in read(x).badges
    kept: list[Any] = []
    jax.jit(lambda x: (kept.append(x), x * 1.0)[1])(px.ones((2,), device=Jax()))
    assert "leaked from a transformation that has ended" in read(kept[0]).badges


def test_something_that_is_no_array() -> None:
    found = jax.tree.map(lambda leaf: "<script>", px.ones((2,), device=Jax()))
    assert "&lt;script&gt;" in found._repr_html_() and "<script>" not in found._repr_html_()
    read(found, fallback=True)


def test_gradients_of_a_backward_pass() -> None:
    x = px.ones((2, 3), device=Autodiff(NumPy())).require_grad()
    found = read((x * x).sum().backward())
    assert "of 1 leaves" in found.text and ["(2, 3)", "24 B"] in found.rows


def test_shards_of_several_processes_are_not_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    x = px.ones((30, 30), device=NumPy())
    engine: Any = NumPy
    monkeypatch.setattr(engine, "is_here", lambda self, array: False)
    monkeypatch.setattr(engine, "to_host", lambda self, array: pytest.fail("it is read"))
    found = read(x)
    assert "in shards of several processes" in found.badges and "(30, 30)" in found.text and found.rows == []
    grads = px.GradientsParams({"id": x})  # pyright: ignore[reportArgumentType]
    assert "norm" not in read(grads).text

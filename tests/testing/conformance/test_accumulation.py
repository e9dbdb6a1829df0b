"""Whatever adds up does so wide enough: the table of `conformance.rows.accumulation` on every engine.

Serves: phlox/testing/conformance/rows/accumulation.py

NumPy and PyTorch are compared on all of it at each precision. On JAX, which compiles every operation of every row, each
precision takes some of the rows, and a row of large numbers f16; `python -m phlox.testing` takes all.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox.backend import Autodiff, Jax, NumPy, Torch
from phlox.backend.contract import reduction
from phlox.backend.contract.widening import ATTENTION, delicate
from phlox.errors import RangeError, UnsupportedError
from phlox.testing import check_backend
from phlox.testing.conformance.accumulation import Accumulation, check
from phlox.testing.conformance.rows.accumulation import ROWS
from tests.backend.plain import Plain

ELEMENTS: tuple[Any, ...] = ("f32", "bf16", "f16")
BY_NAME = {row.name: row for row in ROWS}
HALF: list[Any] = [engine(float=element) for engine in (NumPy, Jax, Torch) for element in ("bf16", "f16")]


def fails(row: Accumulation, backend: Any) -> str | None:
    try:
        check(row, backend)
    except AssertionError as error:
        return f"{backend!r}: {error}"
    return None


def test_names_are_told_apart() -> None:
    assert len(BY_NAME) == len(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=str)
@pytest.mark.parametrize("engine", [NumPy, Torch])
def test_adds_up_wide_enough(row: Accumulation, engine: Any) -> None:
    wrong = [fails(row, engine(float=element)) for element in ELEMENTS]
    assert not any(wrong), "\n".join(filter(None, wrong))


ON_JAX: list[tuple[str, Any]] = [
    *((name, "bf16") for name in (
        "sum over axis 0", "cumsum over axis 1", "mean of large numbers", "var of columns far from zero", "prod",
        "linear of sequences",
        "x + row", "concat of one", "take", "take_along_axis", "at[i].add of numbers",         "bincount with weights",
        "unfold of windows", "functional.fold", "conv2d by depth", "max_pool2d",         "layer_norm of many rows",
        "batch_norm far from zero", "nll_loss mean", "cross_entropy sum", "attention with large logits",
            )),
    *((name, "f16") for name in (
        "std of large numbers", "lerp of large numbers", "avg_pool2d of large numbers",
        "adaptive_avg_pool2d of large numbers",
        "interpolate area of large numbers", "layer_norm of large numbers", "rms_norm of large numbers",
        "group_norm of large numbers", "batch_norm_train of large numbers", "normalize of large numbers",
        "mse_loss of large numbers", "cosine_similarity of large numbers", "attention, masked, with large logits",
        "hypot of large numbers",
    )),
    *((name, "f32") for name in (
        "mean of long columns", "std of constant columns", "norms of long columns", "dot of long vectors",
        "linear of very many rows",
        "cumsum of a long axis",
    )),
]  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("name, element", ON_JAX)
def test_adds_up_wide_enough_on_jax(name: str, element: Any) -> None:
    check(BY_NAME[name], Jax(float=element))


@pytest.mark.parametrize("backend", HALF, ids=repr)
def test_what_accumulates_is_widened(backend: Any) -> None:
    """Whatever an engine does not add up soundly by itself is another precision's function."""
    sound = {"float_sum", "float_mean", "float_var"}
    names = {*delicate(type(backend)(int="i64" if backend.int_element == "i64" else "i32"), sound), *ATTENTION}
    narrow = [name for name in names if not hasattr(vars(backend).get(name), "widened")]
    assert [name for name in narrow if hasattr(type(backend), name)] == []


# --- on other paths: several rows in one program, and in a batch


def several(x: Any, w: Any, gamma: Any, i: Any) -> Any:
    """Gradients that are sums over thousands of rows, and a norm of large numbers."""

    def loss(w: Any, gamma: Any) -> Any:
        rows = px.functional.embedding(w, i)
        return (px.functional.layer_norm(x, gamma, gamma) + rows + w[i]).sum()

    return (
        px.grad(lambda w: loss(w, gamma))(w),
        px.grad(lambda gamma: loss(w, gamma))(gamma),
        (x * 300.0).norm(axis=0) / 64.0,
    )


@pytest.mark.parametrize("backend", [Jax(float="bf16"), Torch(float="bf16")], ids=repr)
def test_in_a_program(backend: Any) -> None:
    rows = 2000
    x = px.tensor(np.tile([1.0, -1.0], (rows, 1)), device=backend)
    w, gamma = px.zeros((3, 2), device=backend), px.ones((2,), device=backend)
    i = px.zeros((rows,), kind=px.Int, device=backend)
    w_slope, gamma_slope, norm = px.compile(several)(x, w, gamma, i)
    assert w_slope.tolist() == [[4000.0, 4000.0], [0.0, 0.0], [0.0, 0.0]]
    np.testing.assert_allclose(gamma_slope.to_full_precision().numpy(), [4000.0, 0.0], rtol=2.0**-7, atol=16.0)
    np.testing.assert_allclose(norm.to_full_precision().numpy(), 300.0 * np.sqrt(rows) / 64.0, rtol=2.0**-7)


def test_over_the_steps_of_a_loop() -> None:
    """What all steps use, from outside and in the carry, in a loop of a program."""
    backend = Jax(float="bf16")

    def looped(w: Any, x: Any) -> Any:
        return px.scan(lambda carry, one: (carry, w * one + carry), w * 0.5, x)[1].sum()

    w, x = px.ones((2,), device=backend), px.ones((1000, 2), device=backend)
    assert px.compile(px.grad(looped))(w, x).tolist() == [1504.0, 1504.0]  # 1500, rounded once


@pytest.mark.parametrize("backend", [NumPy(float="bf16"), Torch(float="bf16"), Jax(float="bf16")], ids=repr)
def test_in_a_batch(backend: Any) -> None:
    """Gradients of every example, and one of what all examples share."""
    i = px.zeros((2, 1000), kind=px.Int, device=backend)
    w = px.zeros((3, 2), device=backend)
    each = px.vmap(px.grad(lambda w, i: w.take(i, 0).sum()), in_axes=(None, 0))(w, i)
    assert each.tolist() == [[[1000.0, 1000.0], [0.0, 0.0], [0.0, 0.0]]] * 2
    shared = px.grad(lambda w: px.vmap(lambda i: w.take(i, 0).sum())(i).sum())(w)
    assert shared.tolist() == [[2000.0, 2000.0], [0.0, 0.0], [0.0, 0.0]]
    large = px.tensor([[300.0, -300.0, 100.0]] * 2, device=backend)
    y = px.vmap(lambda x: px.functional.batch_norm_train(x.expand_dims(1)).y)(large).to_full_precision().numpy()
    held = np.array([300.0, -300.0, 100.0])
    np.testing.assert_allclose(y[0, :, 0], (held - held.mean()) / held.std(), rtol=1e-2, atol=2e-3)


@pytest.mark.parametrize("engine", [NumPy, Torch, Jax])
def test_uses_add_up_in_a_checkpoint_and_in_second_derivatives(engine: Any) -> None:
    device = Autodiff(engine(float="bf16")).device()
    x = px.tensor([1.0, 0.5], device=device).require_grad()

    def many(x: Any) -> Any:
        return px.stack([x * 1.0 for _ in range(400)]).sum()

    found = x.grad((px.checkpoint(many)(x) + many(x)).backward())
    assert found is not None and found.tolist() == [800.0, 800.0]
    inner = px.tensor([2.0], device=engine(float="bf16"))
    second = px.grad(lambda x: px.grad(lambda x: px.stack([x * x for _ in range(300)]).sum())(x).sum())(inner)
    assert second.tolist() == [600.0]


def test_a_backend_of_required_operations_alone() -> None:
    """The contract's definitions are sound at f32 on an engine whose sums are."""
    backend = Plain()
    names = [
        "norm of large numbers",
        "var of columns far from zero",
        "embedding",
        "attention to many",
        "mse_loss mean",
        "dot of long vectors",
    ]
    assert [fails(BY_NAME[name], backend) for name in names if name in BY_NAME if fails(BY_NAME[name], backend)] == []


# --- the check itself, and counts


def test_a_backend_that_adds_up_narrowly_is_found() -> None:
    class Narrow(NumPy):
        def setup(self) -> None:
            super().setup()
            self.float_sum = lambda x, axes, keepdims: np.cumsum(x, axes[0], x.dtype).take(-1, axes[0])

    with pytest.raises(AssertionError, match="sum over axis 0: 3 of 3 elements are off"):
        check_backend(Narrow(float="bf16"), only="sum over axis 0", parts=["accumulation"])


@pytest.mark.parametrize("engine", [NumPy, Torch, Jax])
def test_counts_beyond_the_integers(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if integers ended at 3: the true end is beyond what a test can count."""
    assert px.ones((2, 3), device=engine(int="i64")).count_nonzero(0).numpy().dtype == np.int64
    backend = engine()
    three, five = (px.tensor([[1.0, 0.0, 2.0, 0.0, last, last, last]], device=backend) for last in (0.5, 3.0))
    three = three * px.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0], device=backend)
    monkeypatch.setitem(reduction.INT_RANGES, "i32", (-4, 3))
    assert three.count_nonzero().item() == 3 and three.count_nonzero(1, keepdims=True).tolist() == [[3]]
    fit = type(backend).fit

    def ends_at_three(self: Any, array: Any, kind: Any) -> Any:
        if np.max(array) > 3:
            raise RangeError(f"{array} does not fit")
        return fit(self, array, kind)

    monkeypatch.setattr(type(backend), "fit", ends_at_three)
    assert three.count_nonzero().item() == 3
    with pytest.raises(RangeError, match="count_nonzero: 5 does not fit"):
        five.count_nonzero()
    if backend.compiles:
        with pytest.raises(UnsupportedError, match="only eagerly"):
            px.compile(lambda x: x.count_nonzero())(five)

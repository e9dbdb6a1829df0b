"""Attention on JAX, whose queries go in chunks where there are many: as in one piece."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import functional
from phlox.backend import Autodiff, Jax, NumPy
from phlox.backend.jax import attention as on_jax

REFERENCE = Autodiff(NumPy(float="f64")).device()


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_jax, "_CHUNK", 3)
    monkeypatch.setattr(on_jax, "_WHOLE", 4)


def results(device: px.Device, arrays: dict[str, Any], **options: Any) -> list[Any]:
    tensors = {name: px.tensor(array, device=device) for name, array in arrays.items()}
    traced: dict[str, Any] = {name: x.require_grad() if x.kind is px.Float else x for name, x in tensors.items()}
    y = functional.attention(**traced, **options)
    grads = (y * y.cos()).sum().backward()
    return [y.numpy(), *(x.grad(grads).numpy() for x in traced.values() if x.kind is px.Float)]


@pytest.mark.parametrize(
    "extra, n, m, groups",
    [
        ("nothing", 11, 11, 2), ("causal", 13, 5, 1), ("causal", 5, 13, 2), ("mask", 11, 11, 1), ("bias", 13, 5, 2),
        ("row of bias", 5, 13, 1), ("dropout", 11, 11, 2),
    ],
)  # fmt: skip
def test_chunks_make_no_difference(extra: str, n: int, m: int, groups: int) -> None:
    rng = np.random.default_rng(n + m)
    shapes = {"query": (2, 2, n, 4), "key": (2, groups, m, 4), "value": (2, groups, m, 3)}
    arrays: dict[str, Any] = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    options: dict[str, Any] = {"causal": extra in ("causal", "dropout")}
    if extra == "mask":
        arrays["mask"] = rng.random((2, 1, n, m)) < 0.6
        arrays["mask"][0, :, 2] = False  # sees nothing
    elif extra.endswith("bias"):
        arrays["bias"] = rng.normal(size=(1, 2, 1 if "row" in extra else n, m))
    elif extra == "dropout":
        arrays["kept"], options["dropout"] = rng.random((2, 2, n, m)) < 0.75, 0.25
    assert len(on_jax._spans(n, m, False)) > 1
    found = results(Autodiff(Jax()).device(), arrays, **options)
    for one, expected in zip(found, results(REFERENCE, arrays, **options), strict=True):
        np.testing.assert_allclose(one, expected, rtol=2e-4, atol=2e-5)


def test_few_queries_are_one_piece() -> None:
    assert on_jax._spans(4, 9, True) == [(slice(0, 4), 4)]
    assert on_jax._spans(0, 9, True) == []

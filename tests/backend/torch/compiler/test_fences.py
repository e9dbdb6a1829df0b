"""Operations that Inductor is known to compile wrongly, each beside other uses of its operand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import phlox as px
from phlox.backend import Device, NumPy, Torch
from phlox.backend.torch.compiler.fences import FAULTS, FENCES

ROWS = np.array([0, 2, 0])
WRITES = ("add", "sub", "set", "mul", "min", "max")
READS: dict[str, Callable[[Any, Any], Any]] = {
    "sort": lambda x, rows: x.sort(0),
    "topk": lambda x, rows: x.topk(2, 0)[0],
    "take": lambda x, rows: x.take(rows, 1),
    "rows": lambda x, rows: x[rows],
    "take_along_axis": lambda x, rows: x.take_along_axis(x.argsort(1), 1),
    "take_along_axis, one": lambda x, rows: x.take_along_axis(x.argsort(1)[:, :1], 1),
    "max": lambda x, rows: x.max(0),
}


def _write(name: str, x: Any, rows: Any, updates: Any) -> Any:
    """A sum of what is written, and of what it was before."""
    old = x * 2.0
    new = getattr(old.at[rows], name)(updates)
    return (old * new).sum() + (new - old).square().sum() + old.diff(1, 0).square().sum()


def _read(name: str, x: Any, rows: Any) -> Any:
    """A sum of what is read, beside masked differences of neighbours."""
    step = (x.square() + 0.5).rsqrt().diff(1, 0)
    found = READS[name](x, rows)
    return (found * found.cos()).sum() + px.where(step > 0.0, step, step * 0.1).sum()


def _all(x: Any, rows: Any, updates: Any) -> list[Any]:
    """Values and gradients of all of them, in one program."""
    found: list[Any] = []
    for name in WRITES:
        value, gradients = px.value_and_grad(lambda x, u, name=name: _write(name, x, rows, u), argnums=(0, 1))(
            x, updates
        )
        found += [value, *gradients]
    return found + [px.grad(lambda x, name=name: _read(name, x, rows))(x) for name in READS]


def _arguments(device: Device) -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    x, updates = rng.normal(size=(2, 3, 4))
    return tuple(px.tensor(one, device=device) for one in (x, ROWS, updates))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own, as its compiler loads
@pytest.mark.parametrize("element", ["f32", "f64"])
def test_operands_keep_their_values_and_gradients_are_complete(element: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHLOX_TORCH_CODEGEN", "inductor")
    want = _all(*_arguments(NumPy(float="f64").device()))
    have = px.compile(_all)(*_arguments(Torch(float=element).device()))
    names = [f"{name}: {part}" for name in WRITES for part in ("value", "gradient", "gradient of updates")]
    for name, right, got in zip([*names, *READS], want, have, strict=True):
        np.testing.assert_allclose(got.numpy(), right.numpy(), rtol=1e-4, atol=1e-5, err_msg=name)


def test_every_fence_names_its_faults_and_takes_what_pytorch_takes() -> None:
    for fence in FENCES:
        assert fence.faults and set(fence.faults) <= set(FAULTS)
        name, overload = fence.target.split(".")
        ours = getattr(torch.ops.phlox, name).default._schema.arguments
        theirs = getattr(getattr(torch.ops.aten, name), overload)._schema.arguments
        assert [(one.name, str(one.type)) for one in ours] == [(one.name, str(one.type)) for one in theirs]

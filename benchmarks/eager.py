"""The overhead of an eager operation over its engine, and of a chain of them with its backward pass."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import torch

import phlox as px
from benchmarks.harness import Ratio, compare, measure
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch


def add() -> list[Ratio]:
    """a + b on 8 x 8 float32 matrices."""
    rows: list[Ratio] = []
    values = np.ones((8, 8), np.float32)
    raw = {"numpy": values, "torch": torch.from_numpy(values), "jax": jnp.asarray(values)}
    for name, backend in {"numpy": NumPy(), "torch": Torch(), "jax": Jax()}.items():
        a, b = raw[name], raw[name] * 2
        x, y = px.tensor(values, device=backend), px.tensor(values * 2, device=backend)
        times = measure({f"Tensor on {name}": lambda x=x, y=y: x + y, f"raw {name}": lambda a=a, b=b: a + b})
        target = 300.0 if name == "numpy" else None
        rows.append(compare("a + b, 8x8", times, f"Tensor on {name}", f"raw {name}", target=target, extra=True))
    return rows


def chain(length: int = 50) -> list[Ratio]:
    """A chain of `length` elementwise operations, forward and backward, on 8 x 8 matrices."""
    values = np.full((8, 8), 0.5, np.float32)
    leaf = torch.from_numpy(values.copy()).requires_grad_()

    def torch_own() -> object:
        y = leaf
        for _ in range(length // 2):
            y = (y * 0.9).tanh()
        (gradient,) = torch.autograd.grad(y.sum(), leaf)
        return gradient

    def with_tape(backend: Backend) -> Callable[[], object]:
        x = px.tensor(values, device=Autodiff(backend)).require_grad()

        def run() -> object:
            y = x
            for _ in range(length // 2):
                y = (y * 0.9).tanh()
            return x.grad(y.sum().backward())

        return run

    times = measure({
        "Autodiff(Torch)": with_tape(Torch()),
        "torch.autograd": torch_own,
        "Autodiff(NumPy)": with_tape(NumPy()),
    })  # fmt: skip
    workload = f"chain of {length} ops, forward and backward"
    return [
        compare(workload, times, "Autodiff(Torch)", "torch.autograd", target=1.0),
        compare(workload, times, "Autodiff(NumPy)", "torch.autograd"),
    ]


def run() -> list[Ratio]:
    """All rows of the table."""
    torch.set_num_threads(1)
    assert jax.default_backend()
    return add() + chain()

"""A few ratios of Phlox to its raw engine, timed in turn: what instructions and programs do not show.

They scatter, even so, by some per cent from run to run and by more from machine to machine. What seems to have moved is
measured once more before anybody is told that it has.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import numpy as np

import phlox as px
from benchmarks.guard.figures import Entry, Section, lacking
from benchmarks.guard.paths import CHAIN, PATHS, engine
from benchmarks.harness import compare, failure, measure

KEY = f"ratios, {platform.machine()}"

LEAVES = 150

Contestants = dict[str, Callable[[], Any]]


def _path(name: str) -> Callable[[], object]:
    return next(path for path in PATHS if path.name == name).make()


def add() -> Contestants:
    """a + b of small arrays, and NumPy's own."""
    a, b = np.ones((8, 8), np.float32), np.ones((8, 8), np.float32)
    return {"ours": _path("a + b on NumPy"), "theirs": lambda: a + b}


def chain() -> Contestants:
    """A chain of operations with its backward pass, and PyTorch's tape."""
    import torch

    torch.set_num_threads(1)
    leaf = torch.full((8, 8), 0.5, requires_grad=True)

    def theirs() -> object:
        y = leaf
        for _ in range(CHAIN // 2):
            y = (y * 0.9).tanh()
        return torch.autograd.grad(y.sum(), leaf)

    return {"ours": _path(f"chain of {CHAIN} operations, forward and backward, on PyTorch"), "theirs": theirs}


class Cells(px.Module):
    """Many small parameters."""

    def __init__(self, leaves: int, device: px.Device) -> None:
        self.cells = [px.Param(px.ones((4,), device=device)) for _ in range(leaves)]


def call() -> Contestants:
    """A donated call that changes many small arrays, and `jax.jit` of the arrays in a list."""
    import jax
    import jax.numpy as jnp

    def shrink(module: Cells) -> Cells:
        return module.map(lambda path, param: param.map(lambda x: x * 0.999))

    ours = px.compile(shrink, donate=("module",))
    theirs = jax.jit(lambda arrays: [x * 0.999 for x in arrays], donate_argnums=0)
    held: dict[str, Any] = {
        "ours": Cells(LEAVES, engine("JAX").device()),
        "theirs": [jnp.ones((4,)) for _ in range(LEAVES)],
    }

    def turn(name: str, run: Any) -> Callable[[], None]:
        def go() -> None:
            for _ in range(10):
                held[name] = run(held[name])
            jax.block_until_ready(held[name])

        return go

    return {"ours": turn("ours", ours), "theirs": turn("theirs", theirs)}


RATIOS: dict[str, tuple[tuple[str, ...], Callable[[], Contestants]]] = {
    "a + b on NumPy, over NumPy": (("numpy",), add),
    f"chain of {CHAIN} operations with backward on PyTorch, over PyTorch": (("torch",), chain),
    f"compiled call with {LEAVES} arrays on JAX, over jax.jit of a list": (("jax",), call),
}


def section(names: list[str] | None = None) -> Section:
    """The median of each ratio and its quartiles; of those named, or all."""
    entries: dict[str, Entry] = {}
    absent: dict[str, str] = {}
    for name, (needs, make) in RATIOS.items():
        if names is not None and name not in names:
            continue
        missing = lacking(needs)
        if missing is not None:
            absent[name] = missing
            continue
        row = compare(name, measure(make(), rounds=21, seconds=0.03), "ours", "theirs")
        if row.failed:
            raise RuntimeError(f"{name}: {failure(row)}")
        entries[name] = Entry({"lower": round(row.low, 3), "median": round(row.ratio, 3), "upper": round(row.high, 3)})
    return Section(KEY, entries, absent)

"""What it costs to call a compiled function with a module of 150 arrays, over the same arrays in flat lists."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import phlox as px
from benchmarks.harness import Ratio, compare, measure
from phlox.backend import Jax


class Cell(px.Module):
    """Two small parameters."""

    def __init__(self, device: px.Device) -> None:
        self.a = px.Param(px.ones((4,), device=device))
        self.b = px.Param(px.ones((4,), device=device))


class Stack(px.Module):
    """75 cells: 150 arrays."""

    def __init__(self, device: px.Device) -> None:
        self.cells = [Cell(device) for _ in range(75)]


def run() -> list[Ratio]:
    """A donated step which changes each of 150 small arrays."""
    device = Jax().device()

    def flat_step(arrays: list[jax.Array]) -> list[jax.Array]:
        return [x * 0.999 for x in arrays]

    def module_step(module: Stack) -> Stack:
        return jax.tree.map(lambda x: x * 0.999, module)

    def phlox_step(module: Stack) -> Stack:
        return module.map(lambda path, param: param.map(lambda x: x * 0.999))

    flat, jitted = jax.jit(flat_step, donate_argnums=0), jax.jit(module_step, donate_argnums=0)
    compiled = px.compile(phlox_step, donate=("module",))
    state: dict[str, Any] = {
        "flat": [jnp.ones((4,)) for _ in range(150)],
        "module": Stack(device),
        "compiled": Stack(device),
    }

    def turn(name: str, step: Any) -> Any:
        def go() -> None:
            state[name] = step(state[name])

        return go

    times = measure({
        "jax.jit of a module": turn("module", jitted),
        "phlox.compile": turn("compiled", compiled),
        "jax.jit of flat lists": turn("flat", flat),
    })  # fmt: skip
    workload = "call with 150 donated arrays"
    return [
        compare(workload, times, "jax.jit of a module", "jax.jit of flat lists", target=1.15),
        compare(workload, times, "phlox.compile", "jax.jit of flat lists", target=1.15),
    ]

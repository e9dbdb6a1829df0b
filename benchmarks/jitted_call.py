# pyright: reportMissingImports=false
# The other libraries are installed only for the benchmarks.
"""The cost of calling a compiled function, compared with arrays in flat lists and with modules of Equinox and Flax.

The step changes many small arrays a little, so that the call dominates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import phlox as px
from benchmarks.harness import Ratio, built, compare, measure
from phlox.backend import Jax

LEAVES = (150, 450, 1500)
CALLS = 10


class Cell(px.Module):
    """Two small parameters."""

    def __init__(self, device: px.Device) -> None:
        self.a = px.Param(px.ones((4,), device=device))
        self.b = px.Param(px.ones((4,), device=device))


class Stack(px.Module):
    """Cells, of two arrays each."""

    def __init__(self, cells: int, device: px.Device) -> None:
        self.cells = [Cell(device) for _ in range(cells)]


def changed(tree: Any) -> Any:
    """All arrays of a tree, a little smaller."""
    return jax.tree.map(lambda x: x * 0.999, tree)


def equinox_turn(cells: int) -> Callable[[], None]:
    """The same in Equinox."""
    import equinox as eqx

    class EquinoxCell(eqx.Module):
        a: jax.Array
        b: jax.Array

    class EquinoxStack(eqx.Module):
        cells: list[EquinoxCell]

    stack = EquinoxStack([EquinoxCell(jnp.ones((4,)), jnp.ones((4,))) for _ in range(cells)])
    return turn(eqx.filter_jit(changed, donate="all"), stack, CALLS)


def flax_turn(cells: int) -> Callable[[], None]:
    """The same in Flax NNX."""
    from flax import nnx

    class FlaxCell(nnx.Module):
        def __init__(self) -> None:
            self.a = nnx.Param(jnp.ones((4,)))
            self.b = nnx.Param(jnp.ones((4,)))

    class FlaxStack(nnx.Module):
        def __init__(self) -> None:
            self.cells = nnx.List([FlaxCell() for _ in range(cells)])

    @nnx.jit
    def flax_step(module: FlaxStack) -> None:
        nnx.update(module, changed(nnx.state(module)))

    def flax_go(module: FlaxStack) -> FlaxStack:
        flax_step(module)
        return module

    return turn(flax_go, FlaxStack(), CALLS)


def turn(step: Callable[[Any], Any], state: Any, calls: int) -> Callable[[], None]:
    """Make several calls of the step, each on the result of the previous one, and wait for the last."""
    held = [state]

    def go() -> None:
        now = held[0]
        for _ in range(calls):
            now = step(now)
        held[0] = jax.block_until_ready(now)

    return go


def calls(leaves: int) -> list[Ratio]:
    """A donated step that changes each of `leaves` small arrays."""
    device = Jax().device()

    def phlox_step(module: Stack) -> Stack:
        return module.map(lambda path, param: param.map(lambda x: x * 0.999))

    cells = leaves // 2
    module, compiled = "jax.jit of a module", "phlox.compile"
    flat, equinoxs, flax = "jax.jit of flat lists", "equinox.filter_jit", "nnx.jit"
    makers: dict[str, Callable[[], Callable[[], None]]] = {
        module: lambda: turn(jax.jit(changed, donate_argnums=0), Stack(cells, device), CALLS),
        compiled: lambda: turn(px.compile(phlox_step, donate=("module",)), Stack(cells, device), CALLS),
        flat: lambda: turn(jax.jit(changed, donate_argnums=0), [jnp.ones((4,)) for _ in range(2 * cells)], CALLS),
        equinoxs: lambda: equinox_turn(cells),
        flax: lambda: flax_turn(cells),
    }
    times = measure(built(makers), seconds=0.02)
    times = {name: [time / CALLS for time in found] for name, found in times.items()}
    workload = f"call with {leaves} donated arrays"
    return [
        compare(workload, times, module, flat, target=1.1),
        compare(workload, times, compiled, flat, target=1.15),
        compare(workload, times, compiled, equinoxs, target=0.25),
        compare(workload, times, compiled, flax, target=0.05),
    ]


def run() -> list[Ratio]:
    """A call with each number of arrays."""
    return [row for leaves in LEAVES for row in calls(leaves)]

# pyright: reportMissingImports=false, reportUnknownMemberType=false
# The other libraries are installed only for the benchmarks.
"""A training step on eight devices that one CPU simulates: the batch is sharded, parameters are replicated or sharded.

The contestants are those of the large table. Their state and batch are placed on the mesh, and XLA does the rest.
"""

from __future__ import annotations

import importlib
import math
import os
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.harness import Ratio, attempt, built, compare, measure, quick
from benchmarks.rows import rows_of
from benchmarks.workloads import Workload

DEVICES = 8

GPT = Workload(
    "gpt 2x128",
    "GPT 2x128, context 64, batch 16",
    "gpt",
    {"layers": 2, "width": 128, "heads": 4, "context": 64, "batch": 16, "vocabulary": 256},
)
MLP = Workload("mlp", "MLP 784-1024-1024-10, batch 256", "mlp", {"widths": (784, 1024, 1024, 10), "batch": 256})

SUBJECT = "Phlox compiled on JAX"
RAW, NNX, EQUINOX = "raw JAX and Optax", "Flax NNX", "Equinox"
PEERS = (RAW, NNX, EQUINOX)
REPLICATED, SHARDED = "parameters replicated", "parameters sharded"
LOSSES = 5
"""The number of losses of each contestant that must agree before anything is timed."""

Place = Callable[[Any], Any]
"""Puts the arrays of a tree on the mesh."""


def run() -> list[Ratio]:
    """All rows, from a process with eight simulated devices."""
    return rows_on_devices("benchmarks.devices")


def rows_on_devices(module: str) -> list[Ratio]:
    """The rows that the function `here` of a module returns in a process with eight simulated devices."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={DEVICES}".strip()
    # Use more threads than devices: with fewer, collectives that wait for each other deadlock.
    return rows_of(module, "here", {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "NPROC": "32"})


def mesh() -> Any:
    """All devices in one row."""
    import jax
    from jax.sharding import AxisType

    return jax.make_mesh((DEVICES,), ("data",), axis_types=(AxisType.Auto,))


def placed(parameters: str) -> tuple[Place, Place]:
    """The placement of the state on the mesh, and that of the batch."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    devices = mesh()

    def sharding(array: Any) -> NamedSharding:
        # Shard the largest axis that can be divided; replicate small arrays.
        axes = [axis for axis, size in enumerate(array.shape) if size % DEVICES == 0 and array.size >= 4096]
        if parameters == REPLICATED or not axes:
            return NamedSharding(devices, PartitionSpec())
        cut = max(axes, key=lambda axis: array.shape[axis])
        return NamedSharding(devices, PartitionSpec(*[None] * cut, "data"))

    def state(tree: Any) -> Any:
        return jax.tree.map(lambda x: jax.device_put(x, sharding(x)) if isinstance(x, jax.Array) else x, tree)

    def batch(tree: Any) -> Any:
        return jax.device_put(tree, NamedSharding(devices, PartitionSpec("data")))

    return state, batch


def phlox_and_jax(workload: Workload, parameters: str) -> dict[str, Any]:
    """Phlox, and JAX with Optax."""

    def phlox() -> Any:
        from benchmarks.libraries import with_phlox

        state, batch = placed(parameters)
        ours = with_phlox.Contestant(workload, "jax")
        ours.model, ours.x, ours.y = state(ours.model), batch(ours.x), batch(ours.y)
        return ours

    def jax() -> Any:
        from benchmarks.libraries import with_jax

        state, batch = placed(parameters)
        raw = with_jax.Contestant(workload, "")
        raw.state = state(raw.state)
        raw.arrays = (*batch(raw.arrays[:2]), raw.arrays[2])
        return raw

    return built({SUBJECT: phlox, RAW: jax})


def contestants(workload: Workload, parameters: str) -> dict[str, Any]:
    """All contestants that can be built, on the mesh."""

    def peer(library: str, variant: str) -> Any:
        module = importlib.import_module(f"benchmarks.libraries.{library}")
        state, batch = placed(parameters)
        contestant = module.Contestant(workload, variant)
        contestant.held = state(contestant.held)
        contestant.arrays = (*batch(contestant.arrays[:2]), contestant.arrays[2])
        return contestant

    makers = {NNX: partial(peer, "with_nnx", "split"), EQUINOX: partial(peer, "with_equinox", "")}
    return phlox_and_jax(workload, parameters) | built(makers)


def check(made: dict[str, Any]) -> None:
    """Check that all contestants compute the same first steps; those that fail are taken out."""
    found = {name: attempt(name, partial(contestant.losses, LOSSES)) for name, contestant in made.items()}
    expected = found.get(SUBJECT) or []
    for name, losses in found.items():
        if losses is None:
            del made[name]
        elif expected and not all(math.isclose(a, b, rel_tol=1e-3) for a, b in zip(losses, expected, strict=True)):
            raise AssertionError(f"{name}: losses {losses}, expected {expected}")


def rows(workload: Workload, parameters: str) -> list[Ratio]:
    """Phlox against each peer, the fastest first."""
    made = contestants(workload, parameters)
    check(made)
    # Wait now and then, as a loop that reads its losses does: otherwise the queues of eight devices grow long.
    times = measure(
        {name: lambda one=one: one.run(2) for name, one in made.items()}, rounds=3 if quick() else 7, seconds=0.1
    )
    times = {name: [seconds / 2 for seconds in found] for name, found in times.items()}
    peers = sorted(PEERS, key=lambda name: statistics.median(times.get(name, [math.inf])))
    title = f"{workload.title}: step on {DEVICES} simulated devices, {parameters}"
    return [compare(title, times, SUBJECT, peer, target=1.0 if peer == peers[0] else None) for peer in peers]


def here() -> list[Ratio]:
    """All rows, in a process that has the devices."""
    if quick():
        return rows(MLP, REPLICATED)
    return [*rows(MLP, REPLICATED), *rows(GPT, REPLICATED), *rows(GPT, SHARDED)]

# pyright: reportMissingImports=false, reportUnknownMemberType=false
# The peers are installed beside Phlox only where benchmarks are run.
"""A training step on eight devices, which one processor plays: the batch in shards, parameters everywhere or in shards.

The contestants are those of the large table; their state and batch are put on the mesh, and XLA does the rest for all.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.harness import Ratio, compare, measure, quick
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
EVERYWHERE, IN_SHARDS = "parameters everywhere", "parameters in shards"
LOSSES = 5
"""How many of each contestant must agree before anything is timed."""

Place = Callable[[Any], Any]
"""Puts the arrays of a tree on the mesh."""


def run() -> list[Ratio]:
    """All rows, found by a process that believes in eight devices."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={DEVICES}".strip()
    # More threads than devices: with fewer, collectives that wait for each other wait for ever.
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "NPROC": "32"}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.devices"], check=True, stdout=subprocess.PIPE, text=True, env=environment
    )
    return [Ratio(**row) for row in json.loads(done.stdout)]


def mesh() -> Any:
    """All devices in a row."""
    import jax
    from jax.sharding import AxisType

    return jax.make_mesh((DEVICES,), ("data",), axis_types=(AxisType.Auto,))


def placed(parameters: str) -> tuple[Place, Place]:
    """How the state is put on the mesh, and how the batch is."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    devices = mesh()

    def sharding(array: Any) -> NamedSharding:
        # The largest axis that can be cut; whatever is small stays whole.
        axes = [axis for axis, size in enumerate(array.shape) if size % DEVICES == 0 and array.size >= 4096]
        if parameters == EVERYWHERE or not axes:
            return NamedSharding(devices, PartitionSpec())
        cut = max(axes, key=lambda axis: array.shape[axis])
        return NamedSharding(devices, PartitionSpec(*[None] * cut, "data"))

    def state(tree: Any) -> Any:
        return jax.tree.map(lambda x: jax.device_put(x, sharding(x)) if isinstance(x, jax.Array) else x, tree)

    def batch(tree: Any) -> Any:
        return jax.device_put(tree, NamedSharding(devices, PartitionSpec("data")))

    return state, batch


def phlox_and_jax(workload: Workload, parameters: str) -> dict[str, Any]:
    """Those who need no package of the peers."""
    from benchmarks.libraries import with_jax, with_phlox

    state, batch = placed(parameters)
    ours = with_phlox.Contestant(workload, "jax")
    ours.model, ours.x, ours.y = state(ours.model), batch(ours.x), batch(ours.y)
    raw = with_jax.Contestant(workload, "")
    raw.state = state(raw.state)
    raw.arrays = (*batch(raw.arrays[:2]), raw.arrays[2])
    return {SUBJECT: ours, "raw JAX and Optax": raw}


def contestants(workload: Workload, parameters: str) -> dict[str, Any]:
    """All of them, on the mesh."""
    from benchmarks.libraries import with_equinox, with_nnx

    state, batch = placed(parameters)
    nnx, equinox = with_nnx.Contestant(workload, "split"), with_equinox.Contestant(workload, "")
    for one in (nnx, equinox):
        one.held = state(one.held)
        one.arrays = (*batch(one.arrays[:2]), one.arrays[2])
    return phlox_and_jax(workload, parameters) | {"Flax NNX": nnx, "Equinox": equinox}


def check(made: dict[str, Any]) -> None:
    """All make the same first steps."""
    found = {name: one.losses(LOSSES) for name, one in made.items()}
    for name, losses in found.items():
        if not all(math.isclose(a, b, rel_tol=1e-3) for a, b in zip(losses, found[SUBJECT], strict=True)):
            raise AssertionError(f"{name}: losses {losses}, expected {found[SUBJECT]}")


def rows(workload: Workload, parameters: str) -> list[Ratio]:
    """Phlox and each peer, the fastest of them first."""
    made = contestants(workload, parameters)
    check(made)
    # Awaited now and then, as by a loop that looks at its losses: queues of eight devices grow long otherwise.
    times = measure(
        {name: lambda one=one: one.run(2) for name, one in made.items()}, rounds=3 if quick() else 7, seconds=0.1
    )
    times = {name: [seconds / 2 for seconds in found] for name, found in times.items()}
    peers = sorted((name for name in made if name != SUBJECT), key=lambda name: statistics.median(times[name]))
    title = f"{workload.title}: step on {DEVICES} simulated devices, {parameters}"
    return [compare(title, times, SUBJECT, peer, target=1.0 if peer == peers[0] else None) for peer in peers]


def here() -> list[Ratio]:
    """All rows, in a process that has the devices."""
    if quick():
        return rows(MLP, EVERYWHERE)
    return [*rows(MLP, EVERYWHERE), *rows(GPT, EVERYWHERE), *rows(GPT, IN_SHARDS)]


if __name__ == "__main__":
    print(json.dumps([dataclasses.asdict(row) for row in here()]))

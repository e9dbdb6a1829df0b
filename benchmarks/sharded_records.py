# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# The other libraries are installed only for the benchmarks.
"""Saving and loading the weights of a transformer, 1 GB in float32 in eight shards, against Orbax.

Phlox calls fsync when it saves, and verifies checksums when it loads, for which it reads every byte. It loads into a
model without values, Orbax into a dictionary. Files are in the page cache.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.devices import DEVICES, rows_on_devices
from benchmarks.harness import Ratio, compare, quick, seconds_in_turn
from benchmarks.records import give_memory_back
from benchmarks.weights import QUICK_WIDTH, WIDTH, Arrays, Weights, arrays, module_of

PHLOX, ORBAX = "Phlox", "Orbax"


def run() -> list[Ratio]:
    """All rows, from a process with eight simulated devices."""
    return rows_on_devices("benchmarks.sharded_records")


def here() -> list[Ratio]:
    """All rows, in a process that has the devices."""
    host = arrays(QUICK_WIDTH if quick() else WIDTH)
    size = f"{sum(array.nbytes for array in host.values()) / 1e9:.2f} GB of f32"
    with tempfile.TemporaryDirectory() as folder:
        return measured(host, size, Path(folder))


def measured(host: Arrays, size: str, folder: Path) -> list[Ratio]:
    """Saving, loading into shards, and loading whole by NumPy."""
    import jax
    import orbax.checkpoint as ocp

    import phlox as px
    from phlox.backend import Jax, NumPy
    from phlox.distributed import Layout, Mesh

    mesh, layout = Mesh(data=-1, device="jax"), Layout(rest="data")
    shapes = {name: array.shape for name, array in host.items()}
    model = module_of(host, Jax().device()).shard(layout, mesh)
    tree = {name: param.leaf for name, param in model.w.items()}
    matrices = [leaf for leaf in tree.values() if leaf.ndim == 2]
    assert all(DEVICES * one.addressable_shards[0].data.size == one.size for one in matrices), "matrices are in shards"
    structure = {name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding) for name, x in tree.items()}
    whole = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in tree}
    standard, plain = ocp.StandardCheckpointer(), ocp.PyTreeCheckpointer()
    numbers = itertools.count()

    def save() -> None:
        px.distributed.save(model.into_record(), folder / f"{next(numbers)}")

    def save_by_orbax() -> None:
        standard.save(folder / f"{next(numbers)}", tree)
        standard.wait_until_finished()

    def load(device: px.Device, shards: bool) -> Weights:
        found = Weights(shapes, device)
        found = found.shard(layout, mesh) if shards else found
        found.load_record(px.distributed.load(ours))
        return jax.block_until_ready(found) if shards else found

    def clear() -> None:
        for old in folder.glob("[0-9]*"):
            shutil.rmtree(old)
        give_memory_back()

    def compared(what: str, mine: Callable[[], Any], its: Callable[[], Any], target: float | None) -> Ratio:
        times = seconds_in_turn({PHLOX: mine, ORBAX: its}, rounds=2 if quick() else 5, before=clear)
        clear()
        return compare(f"{what}, {size}", times, PHLOX, ORBAX, target=target)

    rows = [compared(f"save from {DEVICES} shards", save, save_by_orbax, 0.5)]
    ours, its = folder / "ours", folder / "its"
    px.distributed.save(model.into_record(), ours)
    standard.save(its, tree)
    standard.wait_until_finished()
    for found in (load(NumPy().device(), shards=False), load(Jax().device(), shards=True)):
        assert all(np.array_equal(found.w[name].val().numpy(), host[name]) for name in host), "the weights are others"
    by_numpy, by_jax = NumPy().device(), Jax().device()
    rows.append(compared(
        f"load into {DEVICES} shards", lambda: load(by_jax, shards=True),
        lambda: jax.block_until_ready(standard.restore(its, structure)), 0.3,
    ))  # fmt: skip
    rows.append(compared(
        "load whole, by NumPy", lambda: load(by_numpy, shards=False),
        lambda: plain.restore(its, restore_args=whole), None,
    ))  # fmt: skip
    return rows

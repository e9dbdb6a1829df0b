# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# The other libraries are installed only for the benchmarks.
"""What a training step sends between eight devices, what it computes, and the memory of each: counts, not times.

They are XLA's own, of the compiled programs: of Phlox, and of raw JAX and Optax with the same shardings.
"""

from __future__ import annotations

from typing import Any

from benchmarks.devices import GPT, REPLICATED, SHARDED, SUBJECT, phlox_and_jax, rows_on_devices
from benchmarks.harness import Ratio, quick

SENT, FLOPS, MEMORY = "bytes sent by each device", "FLOPs of each device", "bytes of arguments on each device"


def run() -> list[Ratio]:
    """All rows, from a process with eight simulated devices."""
    return rows_on_devices("benchmarks.sharding")


def row(title: str, subject: str, peer: str, mine: float, its: float, target: float | None) -> Ratio:
    """Two counts, and the first over the second."""
    ratio = mine / its
    measure = "flops" if title.startswith(FLOPS) else "bytes"
    return Ratio(title, subject, peer, mine * 1e6, its * 1e6, ratio, ratio, ratio, target, "ratio", measure)


def beside_raw_jax() -> list[Ratio]:
    """The benchmark's GPT with parameters replicated and sharded, beside raw JAX."""
    from phlox.backend.jax.executables import analysis_of

    rows: list[Ratio] = []
    for parameters in (REPLICATED, SHARDED):
        ours, raw = phlox_and_jax(GPT, parameters).values()
        mine = ours._step.lower(ours.model, ours.optimizer, 1e-3, ours.x, ours.y)
        its = analysis_of(raw._step.lower(raw.state, *raw.arrays[:2]).compile())
        sent = sum(one.sent for one in (its.collectives or {}).values())
        title, peer = f"{GPT.title}, {parameters}", "raw JAX and Optax"
        rows.append(row(f"{SENT}: {title}", SUBJECT, peer, mine.sent or 0, sent, 1.0))
        rows.append(row(f"{FLOPS}: {title}", SUBJECT, peer, mine.flops or 0, its.flops or 0, None))
    return rows


def lowered(devices: dict[str, int], kind: str, rows_each: int = 4) -> tuple[Any, Any]:
    """The report of a step of a GPT with dropout, clipping and AdamW on a mesh, and the model."""
    import numpy as np

    import phlox as px
    from benchmarks.libraries.with_phlox import step
    from phlox import optim
    from phlox.backend import Autodiff, Jax
    from phlox.distributed import Layout, Mesh, tensor_parallel
    from phlox.models import GptConfig

    mesh = Mesh(device="jax", **devices)
    width = 64 if quick() else 128
    config = GptConfig(vocabulary=512, context=64, n_layers=2, d_model=width, n_heads=8, dropout=0.1)
    model = config.init(Autodiff(Jax()).device())
    layout = {"data": Layout, "fsdp": lambda: Layout(rest="data"), "tensor": lambda: tensor_parallel(model, mesh)}[
        kind
    ]()
    model = model.shard(layout, mesh).init(seed=0).train()
    optimizer = optim.AdamWConfig().init(grad_clipping=optim.GradientClipping.global_norm(1.0))
    tokens = np.random.default_rng(0).integers(0, 512, (rows_each * mesh.shape["data"], 65))
    batch = mesh.batch(tokens[:, :-1], tokens[:, 1:])
    run = px.compile(step, donate=("model", "optimizer"))
    return run.lower(model, optimizer, 1e-3, *batch), model


def scaling() -> list[Ratio]:
    """With as many rows on each device, eight devices beside two."""
    two, eight = (lowered({"data": count}, "data")[0] for count in (2, 8))
    title = "GPT with dropout, 4 rows on each device"
    # Through a ring each device of eight sends 7/4 of its gradients, each of two all of them.
    mine, its = (sum(one.payload for one in report.collectives.values()) for report in (eight, two))
    return [
        row(f"bytes reduced by each device: {title}", "8 devices", "2 devices", mine, its, 1.05),
        row(f"{FLOPS}: {title}", "8 devices", "2 devices", eight.flops, two.flops, 1.05),
    ]


def memory() -> list[Ratio]:
    """Sharded parameters and optimizer state, beside an eighth of the whole; tensor parallel, beside its least."""
    report, model = lowered({"data": 8}, "fsdp")
    whole = 3 * 4 * model.num_params()  # the parameters and both moments of AdamW, in f32
    rows = [row(f"{MEMORY}: GPT in 8 shards", "FSDP", "an eighth of the whole", report.arguments, whole / 8, 1.05)]
    report, model = lowered({"data": 2, "model": 4}, "tensor")
    kinds = {*report.collectives}
    assert kinds <= {"all-reduce", "all-gather"}, f"tensor parallel exchanges by {kinds}"
    config = model.config
    # Forward and backward, two sums of activations in each block, the embedding's and the head's, and the gradients.
    activations = 4 * 64 * config.d_model * 4 * (4 * config.n_layers + 2)
    gradients = sum(p.leaf.addressable_shards[0].data.nbytes for p in model.params())
    payload = sum(one.payload for one in report.collectives.values())
    rows.append(row("bytes reduced by each device: GPT on 2 x 4", "tensor parallel", "Megatron's", payload,
                    activations + gradients, None))  # fmt: skip
    return rows


def here() -> list[Ratio]:
    """All rows, in a process that has the devices."""
    return [*beside_raw_jax(), *scaling(), *memory()]

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUntypedBaseClass=false, reportUnknownParameterType=false
# The other libraries are installed only for the benchmarks.
"""A training step of a GPT in two processes on PyTorch, by the stages of ZeRO, beside DDP and `fully_shard`.

Times are of whole steps, in turn in one run. Memory is that of all tensors that are alive between the backward pass and
the update: parameters, gradients and moments; beside it stands the ideal share, in which everything that a stage shards
is divided evenly. Bytes are what goes over the loopback interface, of a step and of both processes.
"""

from __future__ import annotations

import gc
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from benchmarks.harness import Ratio, compare, quick

PROCESSES, ROUNDS = 2, 15
VOCABULARY, CONTEXT, LAYERS, WIDTH, HEADS, ROWS = 512, 128, 4, 256, 4, 4
DDP, FSDP, AT = "DDP", "fully_shard", "Phlox, stage {}"
PEERS = {1: DDP, 2: DDP, 3: FSDP}
TITLE = f"GPT {LAYERS}x{WIDTH}, {PROCESSES} processes, gloo"


class Contestant(NamedTuple):
    """Its gradients from rows, and the update with them."""

    gradients: Callable[[Any, Any], Any]
    update: Callable[[Any], None]


def run() -> list[Ratio]:
    """All rows, from two processes."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "found.json"
        command = [sys.executable, "-m", "phlox", "launch", "-n", str(PROCESSES), "-m", "benchmarks.stages", str(file)]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        found = json.loads(file.read_text(encoding="utf-8"))
    rows: list[Ratio] = []
    for stage, peer in PEERS.items():
        mine = AT.format(stage)
        rows.append(compare(f"step, {TITLE}", found["seconds"], mine, peer, target=1.1))
    for stage in PEERS:
        mine, ideal, ddp = AT.format(stage), found["ideal"][str(stage)], found["sent"][DDP]
        held, sent = found["held"][mine], found["sent"][mine]
        rows.append(_count(f"memory, {TITLE}", mine, "the ideal share", held, ideal, 1.05))
        rows.append(_count(f"bytes sent in a step, {TITLE}", mine, DDP, sent, ddp, 1.5 if stage == 3 else 1.0))
    rows.append(_count(f"memory, {TITLE}", FSDP, "the ideal share", found["held"][FSDP], found["ideal"]["3"], None))
    rows.append(_count(f"bytes sent in a step, {TITLE}", FSDP, DDP, found["sent"][FSDP], found["sent"][DDP], None))
    return rows


def _count(title: str, subject: str, peer: str, mine: float, its: float, target: float | None) -> Ratio:
    ratio = mine / its
    return Ratio(title, subject, peer, mine * 1e6, its * 1e6, ratio, ratio, ratio, target, "ratio", "bytes")


# --- in each process


def of_torch(sharded: bool) -> Contestant:
    """The GPT of plain PyTorch, replicated or fully sharded."""
    import torch
    import torch.nn.functional as F
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm_1, self.norm_2 = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
            self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
            self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            rows, length, _ = x.shape
            parts = self.qkv(self.norm_1(x)).view(rows, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(*parts, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, WIDTH))
            return x + self.down(F.gelu(self.up(self.norm_2(x))))

    class Gpt(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = torch.nn.Embedding(VOCABULARY, WIDTH)
            self.positions = torch.nn.Parameter(torch.zeros(CONTEXT, WIDTH))
            self.blocks = torch.nn.ModuleList([Block() for _ in range(LAYERS)])
            self.norm, self.head = torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, VOCABULARY, bias=False)

        def forward(self, tokens: Any) -> Any:
            h = self.tokens(tokens) + self.positions
            for block in self.blocks:
                h = block(h)
            return self.head(self.norm(h))

    torch.manual_seed(0)
    model: Any = Gpt()
    if sharded:
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    else:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def gradients(x: Any, y: Any) -> None:
        loss = F.cross_entropy(model(torch.from_numpy(x)).flatten(0, 1), torch.from_numpy(y).flatten())
        loss.backward()
        loss.item()

    def update(_: Any) -> None:
        optimizer.step()
        optimizer.zero_grad()

    return Contestant(gradients, update)


def of_phlox(stage: int, mesh: Any) -> tuple[Contestant, Any]:
    """Phlox's GPT at a stage, and the model."""
    import phlox as px
    from phlox import nn, optim
    from phlox.distributed import Layout
    from phlox.models import GptConfig

    px.random.seed(0)
    config = GptConfig(
        vocabulary=VOCABULARY, context=CONTEXT, n_layers=LAYERS, d_model=WIDTH, n_heads=HEADS, dropout=0.0
    )
    model = config.init(device="torch").shard(Layout(rest="data", stage=stage), mesh).train()
    optimizer = optim.AdamWConfig().init()

    def gradients(x: Any, y: Any) -> Any:
        with mesh:
            logits = model(mesh.batch(x)).reshape(-1, VOCABULARY)
            loss = nn.cross_entropy_loss(logits, mesh.batch(y).reshape(-1))
            found = optim.GradientsParams.from_grads(loss.backward(), model)
        loss.item()
        return found

    def update(grads: Any) -> None:
        nonlocal model
        with mesh:
            model = optimizer.step(1e-3, model, grads)

    return Contestant(gradients, update), model


def alive() -> float:
    """The bytes of all tensors that are alive, of which several may share memory."""
    import torch

    gc.collect()
    found: dict[int, int] = {}
    for one in gc.get_objects():
        if isinstance(one, torch.Tensor):
            storage = getattr(one, "_local_tensor", one).untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    return float(sum(found.values()))


def sent() -> float:
    """The bytes that have gone over the loopback interface."""
    lines = Path("/proc/net/dev").read_text(encoding="utf-8").splitlines()
    counts = next((line.split(":")[1].split() for line in lines if line.strip().startswith("lo:")), None)
    return math.nan if counts is None else float(counts[0])


def in_process(file: Path) -> None:
    """Measure all contestants in turn, in one of the processes."""
    import warnings

    import numpy as np
    import torch
    import torch.distributed as dist

    import phlox as px
    from phlox.distributed import Mesh

    warnings.simplefilter("ignore")
    px.distributed.initialize(seed=0)
    mesh = Mesh(data=-1, device="torch")
    torch.set_num_threads(1)
    drawn = np.random.default_rng(px.distributed.rank())
    x, y = (drawn.integers(0, VOCABULARY, (ROWS, CONTEXT)) for _ in range(2))
    shapes: list[Any] = []
    found: dict[str, Any] = {"seconds": {}, "held": {}, "sent": {}}

    def contestants() -> Iterator[tuple[str, Callable[[], Contestant]]]:
        yield DDP, lambda: of_torch(False)
        yield FSDP, lambda: of_torch(True)
        for stage in PEERS:

            def make(stage: int = stage) -> Contestant:
                made, model = of_phlox(stage, mesh)
                shapes[:] = [param.shape for param in model.params()]
                return made

            yield AT.format(stage), make

    for name, make in contestants():  # one after the other, for what is alive is to be of one
        before = alive()
        one = make()
        for _ in range(2):
            one.update(one.gradients(x, y))
        grads = one.gradients(x, y)
        found["held"][name] = alive() - before
        one.update(grads)
        dist.barrier()
        start = sent()
        for _ in range(4):
            one.update(one.gradients(x, y))
        dist.barrier()
        found["sent"][name] = (sent() - start) / 4
        del one, grads
    made = {name: make() for name, make in contestants()}
    for turn in range(2 + (2 if quick() else ROUNDS)):
        for name, one in made.items():
            dist.barrier()
            start = perf_counter()
            one.update(one.gradients(x, y))
            dist.barrier()
            if turn >= 2:
                found["seconds"].setdefault(name, []).append(perf_counter() - start)
    least = 1024
    total = 4.0 * sum(map(math.prod, shapes))
    whole = 4.0 * sum(math.prod(shape) for shape in shapes if math.prod(shape) < least)
    share = (total - whole) / PROCESSES + whole
    found["ideal"] = {1: 2 * total + 2 * share, 2: total + 3 * share, 3: 4 * share}
    if px.distributed.rank() == 0:
        file.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    in_process(Path(sys.argv[1]))

"""Trainings whose parameters are in slices, as a program for `phlox launch`: the numbers of each row, as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, NumPy, Torch
from phlox.backend.torch import collectives
from phlox.data import Loader
from phlox.errors import OptimizerError
from phlox.models import GptConfig
from phlox.train import Learner

ROWS = np.random.default_rng(0)
TOKENS = ROWS.integers(0, 32, size=(4, 8, 17))
X = ROWS.normal(size=(53, 16)).astype(np.float32)
Y = X[:, :5].argmax(1)
Y[::7] = -100  # ignored
CLIP = optim.GradientClipping.global_norm(1.0)


class Net(px.Module):
    """With tied, frozen and normalised parts, and a vector that is whole."""

    def __init__(self) -> None:
        self.first, self.frozen, self.norm = nn.Linear(16, 64), nn.Linear(64, 64), nn.LayerNorm(64)
        self.drop, self.last = nn.Dropout(0.1), nn.Linear(64, 5)

    def __call__(self, x: Any) -> Any:
        h = self.norm(self.frozen(self.first(x).relu()).relu())
        return self.last(self.drop(h @ self.first.weight.val().T @ self.first.weight.val()))


def gpt(mesh: Any, layout: Any, engine: Any, optimizer: Any, *, compiles: bool = False) -> Any:
    """The losses of steps by hand, with dropout and clipping, and the weights of a layer afterwards."""
    px.random.seed(0)
    config = GptConfig(vocabulary=32, context=16, n_layers=2, d_model=32, n_heads=2, dropout=0.1)
    model = config.init(device=Autodiff(engine()).device())
    model = model if layout is None else model.shard(layout, mesh)
    model, losses = model.train(), []

    def step(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
        loss = nn.cross_entropy_loss(model(x).reshape(-1, 32), y.reshape(-1))
        return optimizer.step(1e-2, model, optim.GradientsParams.from_grads(loss.backward(), model)), loss.detach()

    step = px.compile(step, donate=("model", "optimizer")) if compiles else step
    part, parts = mesh.part
    with mesh:
        for batch in TOKENS:
            mine = len(batch) // parts
            rows = mesh.batch(batch[part * mine :][:mine])
            model, loss = step(model, optimizer, rows[:, :-1], rows[:, 1:])
            losses.append(px.distributed.mean(loss).item())
    up = model.blocks[0].up
    assert up is not None
    weight = px.distributed.gather(up.weight.val().detach()).to_full_precision().numpy()
    return [*losses, float(np.square(weight, dtype=np.float64).sum())]


def learner(mesh: Any, layout: Any, engine: Any, folder: Path, **options: Any) -> Any:
    """What a learner reports of uneven batches and ignored rows, resumed in the middle; and its predictions."""

    def made() -> Learner[Any]:
        px.random.seed(0)
        model = Net().init(0, Autodiff(engine()).device())
        model = model if layout is None else model.shard(layout, mesh)
        return Learner(
            model.freeze("frozen.**"), optim.AdamWConfig(), optim.CosineAnnealingLr(1e-2, num_iters=20),
            lambda output, target: nn.cross_entropy_loss(output, target, ignore_index=-100), mesh=mesh,
            metrics={"mean": lambda output, target: output.mean()}, ema=0.9, **{"clip": CLIP, **options},
        )  # fmt: skip

    data, validation = Loader((X, Y), 12, shuffle=True, seed=1), Loader((X, Y), 20)
    made().fit(data, steps=7, validation=validation, progress=False, folder=folder, resume=True)
    trained = made()
    trained.fit(data, epochs=3, validation=validation, progress=False, folder=folder, resume=True)
    found = [report.train["loss"] for report in trained.history]
    found += [report.validation["loss"] for report in trained.history]
    outputs = trained.predict(Loader((X,), 20))
    return [*found, trained.evaluate(validation)["mean"], float(np.square(outputs, dtype=np.float64).sum())]


def accumulated(mesh: Any, layout: Any) -> Any:
    """A step of gradients of three batches: they are sent once, and no other step takes those of one process."""
    px.random.seed(0)
    model = nn.Linear(16, 64).init(0, Autodiff(Torch()).device())
    model = (model if layout is None else model.shard(layout, mesh)).train()
    sums, optimizer = optim.GradientsAccumulator(model, local=True), optim.AdamWConfig().init()
    part, parts = mesh.part
    calls: list[str] = []
    mine: Any = None

    def gradients(x: Any) -> Any:
        return optim.GradientsParams.from_grads(model(x).square().mean().backward(), model)

    def counted(name: str) -> None:
        original = getattr(collectives, name)
        patch.setattr(collectives, name, lambda *given, **more: calls.append(name) or original(*given, **more))

    with mesh, pytest.MonkeyPatch.context() as patch:
        for name in ("_reduced", "_scattering_mean", "_gathering_slices"):
            counted(name)
        for rows in np.split(X[:48], 3):
            with px.distributed.no_sync():
                mine = gradients(mesh.batch(np.split(rows, parts)[part]))
            calls.clear()
            sums.add(mine, model)
            assert not calls
        if parts > 1:
            with pytest.raises(OptimizerError, match="of the rows of this process alone"):
                optimizer.step(1e-2, model, mine)
            with pytest.raises(OptimizerError, match="make it with local=True"):
                optim.GradientsAccumulator(model).add(mine, model)
            with pytest.raises(OptimizerError, match=r"within px.distributed.no_sync\(\)"):
                sums.add(gradients(mesh.batch(X[:4])), model)
        sums.agree()
        calls.clear()
        found = sums.take(model)
        assert len(calls) <= 2 * (parts > 1), calls
        model = optimizer.step(1e-2, model, found)
    return px.distributed.gather(model).weight.val().detach().numpy().tolist()


SAME = {
    "stage 1": "adam Torch", "stage 2, NumPy": "adam NumPy", "stage 1, compiled": "adam Torch",
    "compiled": "adam Torch", "replicas": "adam Torch", "replicas, stage 1": "adam Torch",
    "sent once, stage 1": "sent once",    "stage 1, learner": "stage 2, learner", "learner Torch": "learner NumPy",
}  # fmt: skip
"""Rows that one process would compute alike."""
FEW = ("adam Torch", "learner NumPy", "stage 1, learner", "stage 2, NumPy", "replicas", "replicas, stage 1")
"""What four processes do, too."""


def rows(size: int, folder: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The rows by name; in one process parameters are whole."""
    from phlox.distributed import Layout, Mesh

    def at(stage: int = 3, least: int = 16) -> Any:
        return None if size == 1 else Layout(rest="data", least=least, stage=stage)

    flat = {engine: Mesh(data=-1, device=engine()) for engine in (NumPy, Torch)}
    mesh, adam = flat[Torch], lambda: optim.AdamWConfig().init(grad_clipping=CLIP)
    for engine, over in flat.items():
        name = engine.__name__
        yield f"adam {name}", lambda over=over, engine=engine: gpt(over, at(), engine, adam())
        yield f"learner {name}", lambda over=over, engine=engine: learner(over, at(), engine, folder / engine.__name__)
    for name in ("Sgd", "Lamb", "Muon", "Adafactor", "ScheduleFreeAdamW"):
        config = getattr(optim, f"{name}Config")()
        yield name, lambda config=config: gpt(mesh, at(), Torch, config.init())
    yield "8 bits", lambda: gpt(mesh, at(), Torch, optim.AdamWConfig(state_bits=8).init(grad_clipping=CLIP))
    yield "compiled", lambda: gpt(mesh, at(), Torch, adam(), compiles=True)
    half = {"precision": "bf16", "accumulate": 2}
    yield "learner bf16, accumulated", lambda: learner(mesh, at(), Torch, folder / "bf16", **half)
    yield "stage 1", lambda: gpt(mesh, at(1), Torch, adam())
    yield "stage 2, NumPy", lambda: gpt(flat[NumPy], at(2), NumPy, adam())
    yield "stage 1, compiled", lambda: gpt(mesh, at(1), Torch, adam(), compiles=True)
    for stage in (1, 2):
        path = folder / str(stage)
        yield (
            f"stage {stage}, learner",
            lambda path=path, stage=stage: learner(mesh, at(stage), Torch, path, accumulate=2),
        )
    yield "sent once", lambda: accumulated(mesh, None)
    yield "sent once, stage 1", lambda: accumulated(mesh, at(1, least=65))
    if size == 4:
        grid = Mesh(replica=2, data=-1, device=Torch())
        yield "replicas", lambda: gpt(grid, at(), Torch, adam())
        yield "replicas, stage 1", lambda: gpt(grid, at(1), Torch, adam())


def main(path: str) -> None:
    """Run the rows, and write what they have found."""
    px.distributed.initialize(seed=0)
    size, folder = px.distributed.size(), Path(path)
    left_out = {1: lambda name: name in SAME, 4: lambda name: name not in FEW}.get(size, lambda name: False)
    found = {name: run() for name, run in rows(size, folder / str(size)) if not left_out(name)}
    if px.distributed.rank() == 0:
        (folder / f"{size}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])

"""A program that trains, alone or in several processes: `train_in_group.py ENGINE FOLDER`.

What it has found it writes to FOLDER/SIZE.json; tests compare what one process has found with what several have.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import phlox as px
from phlox import metrics, nn, optim
from phlox.data import Loader
from phlox.distributed import Layout, Mesh
from phlox.errors import DataError, DistributedError, RunError
from phlox.train import Callback, Checkpoints, EarlyStopping, LambdaCallback, Learner, NanGuard

ENGINE, BASE = sys.argv[1], Path(sys.argv[2])
RNG = np.random.default_rng(0)
X = RNG.normal(size=(91, 6)).astype(np.float32)
Y = (X[:, :3].sum(axis=1) + 0.5 * RNG.normal(size=91) > 0).astype(np.int64)
XV, YV = X[:41] + 0.25, Y[:41]
EPOCHS = 3


def net(seed: int = 0, **options: Any) -> nn.Sequential:
    layers = [nn.Linear(6, 16, bias=False), nn.BatchNorm(16, **options), nn.Relu(), nn.Dropout(0.2), nn.Linear(16, 2)]
    return nn.Sequential(layers).init(seed, device=ENGINE)


def learner(mesh: Any, model: Any = None, **options: Any) -> Learner[Any]:
    px.random.seed(7)
    model = net(synchronized=True) if model is None else model
    given: dict[str, Any] = {
        "metrics": {
            "accuracy": metrics.Accuracy(num_classes=2),
            "log_loss": metrics.LogLoss(from_logits=True),
            "auroc": metrics.Auroc(num_classes=2, from_logits=True),
            "mean": lambda output, target: output.mean(),
        },
        "clip": optim.GradientClipping.global_norm(1.0),
        "ema": 0.9,
    }
    schedule = optim.CosineAnnealingLr(0.02, num_iters=EPOCHS * 5)
    return Learner(
        model.shard(Layout(), mesh), optim.AdamWConfig(), schedule, nn.cross_entropy_loss, mesh=mesh, **(given | options)
    )


def train(size: int = 20, **options: Any) -> Loader:
    return Loader((X, Y), size, shuffle=True, seed=3, **options)


def valid(size: int = 20) -> Loader:
    return Loader((XV, YV), size)


def weights(trained: Learner[Any]) -> dict[str, Any]:
    return {path: param.val().numpy().tolist() for path, param in trained.model.named_params()}


def history(trained: Learner[Any]) -> list[Any]:
    return [{"train": one.train, "validation": one.validation, "rows": one.rows} for one in trained.history]


def raised(kind: type[Exception], *words: str) -> Any:
    class Raised:
        def __enter__(self) -> None: ...

        def __exit__(self, cls: Any, error: Any, trace: Any) -> bool:
            assert isinstance(error, kind), f"expected {kind.__name__}, got {error!r}"
            for word in words:
                assert word in str(error), f"{word!r} is not in: {error}"
            return True

    return Raised()


class Ended(Exception):
    """In place of the end of the process."""


def main() -> None:
    px.distributed.initialize(seed=0, device=ENGINE)
    rank, size = px.distributed.rank(), px.distributed.size()
    mesh = Mesh(data=-1, device=ENGINE)
    found: dict[str, Any] = {}
    group = BASE / f"of-{size}"

    # --- the same as one process: losses, metrics, weights; smaller last batches of every kind
    one = learner(mesh)
    losses: list[float] = []
    one.fit(
        train(), epochs=EPOCHS, validation=valid(), folder=group / "whole", progress=False,
        callbacks=[LambdaCallback(on_step_end=lambda it: losses.append(it.loss))],
    )  # fmt: skip
    found |= {"losses": losses, "history": history(one), "weights": weights(one), "step": one.step}
    found["evaluated"] = one.evaluate(valid(8))
    found["predicted"] = one.predict(valid(20)).tolist()

    # --- saved in the middle of an epoch, and gone on from, bit for bit
    folder = group / "parts"
    first = learner(mesh)
    keep = [Checkpoints(every_steps=2, best="validation/accuracy")]
    first.fit(train(), steps=7, validation=valid(), folder=folder, progress=False, callbacks=keep)
    second = learner(mesh, net(5, synchronized=True))
    keep = [Checkpoints(every_steps=2, best="validation/accuracy")]
    second.fit(
        train(), epochs=EPOCHS, validation=valid(), folder=folder, resume=True, progress=False, callbacks=keep
    )  # fmt: skip
    assert second.is_resumed and second.step == one.step, (second.step, one.step, second.events, first.step)
    assert weights(second) == weights(one), "the weights are others"
    assert history(second) == history(one), (history(second), history(one))
    assert Checkpoints.best_in(folder).tensors.keys() == second.weights().tensors.keys()

    # --- what one process has saved, several go on from, and the other way round
    other = BASE / ("of-2" if size == 1 else "of-1") / "left"
    left = learner(mesh)
    left.fit(train(), steps=8, validation=valid(), folder=group / "left", progress=False)
    if other.exists():
        third = learner(mesh)
        third.fit(train(), epochs=EPOCHS, validation=valid(), resume=other / "checkpoints", progress=False)
        assert third.step == one.step
        for path, array in weights(one).items():
            np.testing.assert_allclose(array, weights(third)[path], rtol=1e-4, atol=1e-5, err_msg=path)
        np.testing.assert_allclose(
            [row["validation"]["log_loss"] for row in history(third)],
            [row["validation"]["log_loss"] for row in history(one)], rtol=1e-4,
        )  # fmt: skip
        np.testing.assert_allclose(
            [[row["train"][name] for name in ("accuracy", "auroc", "loss", "mean")] for row in history(third)],
            [[row["train"][name] for name in ("accuracy", "auroc", "loss", "mean")] for row in history(one)],
            rtol=1e-4, atol=1e-6,
        )  # fmt: skip

    # --- ends that one process wants
    def all_stop_at(reason: str | None, *callbacks: Any, expected: int | None = None, **limits: Any) -> Learner[Any]:
        it = learner(mesh)
        it.fit(train(), **({"epochs": 50} | limits), callbacks=[*callbacks], progress=False)
        steps = px.distributed.gather_objects([it.step, it.stopped])
        assert steps == [[it.step, it.stopped if reason is None else reason]] * size, steps
        assert expected is None or it.step == expected, it.step
        return it

    def stop_in_last(it: Any) -> None:
        if rank == size - 1 and it.step == 4:
            it.stop("enough")

    stopped = all_stop_at("enough", LambdaCallback(on_step_end=stop_in_last))
    assert stopped.step in (4, 5), stopped.step
    all_stop_at("2 epochs are over", epochs=2, expected=10)
    all_stop_at("0.3 seconds are over", time=0.3 if rank == 0 else 0.3)
    early = EarlyStopping("train/loss", patience=1, min_delta=10.0)
    assert all_stop_at(None, early, expected=10).epoch == 2

    # --- a signal to one process ends all, after the same step, with the state saved
    def signalled(it: Any) -> None:
        if rank == size - 1 and it.step == 6:
            os.kill(os.getpid(), signal.SIGTERM)

    it = learner(mesh)
    try:
        it.fit(
            train(), epochs=50, folder=group / "signal", progress=False,
            callbacks=[LambdaCallback(on_step_end=signalled)],
        )  # fmt: skip
    except SystemExit as error:
        assert error.code == 143
    else:
        raise AssertionError("it went on")
    assert px.distributed.gather_objects(it.step) == [it.step] * size and it.step in (6, 7)
    again = learner(mesh)
    again.fit(train(), steps=9, folder=group / "signal", resume=True, progress=False)
    assert again.step == 9

    # --- bad input, in all processes
    with raised(DataError, "part 1 of 3", "part"):
        learner(mesh).fit(train().shard(1, 3), epochs=1, progress=False)
    if size > 1:
        with raised(DataError, "too few for 2 processes"):
            learner(mesh).fit(Loader((X, Y), 1), epochs=1, progress=False)
        with raised(DataError, "the last batch of 1 rows is too few", "drop_last=True"):
            learner(mesh).fit(Loader((X, Y), 30), epochs=1, progress=False)
        with raised(DataError, "part"):
            learner(mesh).fit(train().shard(1 - rank, 2), epochs=1, progress=False)
        with raised(RunError, "the limits"):
            learner(mesh).fit(train(), epochs=1 + rank, progress=False)
        px.distributed.barrier()
        with raised(DistributedError, "0.weight"):
            learner(mesh, net(rank)).fit(train(), epochs=1, progress=False)
    mine = train().shard(*mesh.part)
    same = learner(mesh)
    same.fit(mine, epochs=1, progress=False)
    assert same.step == 5
    with raised(RunError, "exists already"):
        learner(mesh).fit(train(), epochs=1, folder=group / "whole", progress=False)
    spoilt = X.copy()
    spoilt[17] = np.nan
    for callbacks in ([NanGuard()], []):
        with raised(RunError, "the loss of step"):
            learner(mesh).fit(Loader((spoilt, Y), 20, shuffle=True, seed=3), epochs=2, callbacks=callbacks, progress=False)

    # --- other iterables give the rows of this process
    class Rows:
        def __init__(self, uneven: bool = False) -> None:
            self.uneven = uneven

        def __iter__(self) -> Any:
            for start in (0, 20, 40, 60):
                last = 5 if start == 60 else 10
                count = last - (self.uneven and start == 60 and rank == 1)
                at = start + rank * last if size > 1 else start
                rows = slice(at, at + (count if size > 1 else 2 * last - self.uneven * (start == 60)))
                yield X[rows], Y[rows]

    for uneven in (False, True):
        it = learner(mesh)
        it.fit(Rows(uneven), epochs=1, validation=Rows(uneven), progress=False)
        found[f"others/{uneven}"] = [history(it), weights(it)]
        found[f"others/{uneven}/predicted"] = it.predict(Rows(uneven)).tolist()

    # --- statistics of a process's own rows are brought together; accumulation, a carry, L-BFGS
    plain = learner(mesh, net(), accumulate=2)
    plain.fit(train(), epochs=2, validation=valid(), progress=False)
    values = px.distributed.gather_objects([weights(plain), plain.values()])
    assert all(one == values[0] for one in values), values
    found["accumulated"] = learner_without_statistics(mesh)

    # --- checks
    with px.debug.checks():
        it = learner(mesh)
        it.fit(train(), epochs=1, progress=False)
        if size > 1:
            it = learner(mesh)
            if rank == 1:
                it.lr_scale = 0.5
            with raised(DistributedError, "lr"):
                it.fit(train(), epochs=1, progress=False)

    if rank == 0:
        (BASE / f"{size}.json").write_text(json.dumps(found, default=lambda x: np.asarray(x).tolist()))


def learner_without_statistics(mesh: Any) -> Any:
    model = nn.Sequential([nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 2)]).init(seed=1, device=ENGINE)
    it = learner(mesh, model, accumulate=2)
    it.fit(train(), epochs=2, validation=valid(), progress=False)
    return [history(it), weights(it)]


if __name__ == "__main__":
    warnings.simplefilter("error")
    main()

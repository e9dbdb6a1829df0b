"""A program that trains, alone or in several processes: `train_in_group.py ENGINE FOLDER SECTION,SECTION,...`.

What it has found it writes to FOLDER/SIZE.json; tests compare what one process has found with what several have.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import phlox as px
from phlox import metrics, nn, optim
from phlox.data import Loader
from phlox.distributed import Layout, Mesh
from phlox.errors import DataError, DistributedError, PhloxError, RunError, RunWarning
from phlox.train import Checkpoints, EarlyStopping, Histograms, LambdaCallback, Learner, Loss, NanGuard

RNG = np.random.default_rng(0)
X = RNG.normal(size=(91, 6)).astype(np.float32)
Y = (X[:, :3].sum(axis=1) + 0.5 * RNG.normal(size=91) > 0).astype(np.int64)
XV, YV = X[:41] + 0.25, Y[:41]
EPOCHS = 3
SECTIONS: dict[str, Callable[[], None]] = {}
FOUND: dict[str, Any] = {}


def section(function: Callable[[], None]) -> Callable[[], None]:
    SECTIONS[function.__name__] = function
    return function


# --- what is trained, on what


def net(seed: int = 0, **options: Any) -> Any:
    # No bias before the batch norm: its gradient is nothing but rounding, of which AdamW makes steps.
    layers = [nn.Linear(6, 16, bias=False), nn.BatchNorm(16, **options), nn.Relu(), nn.Dropout(0.2), nn.Linear(16, 2)]
    return nn.Sequential(layers).init(seed, device=ENGINE)


def learner(model: Any = None, **options: Any) -> Learner[Any]:
    px.random.seed(7)
    model = net(synchronized=True) if model is None else model
    given: dict[str, Any] = {
        "metrics": {
            "accuracy": metrics.Accuracy(num_classes=2),
            "auroc": metrics.Auroc(num_classes=2, from_logits=True),
            "mean": lambda output, target: output.mean(),
        },
        "clip": optim.GradientClipping.global_norm(1.0),
        "ema": 0.9,
    }
    schedule = optim.CosineAnnealingLr(0.02, num_iters=EPOCHS * 5)
    loss = options.pop("loss", nn.cross_entropy_loss)
    return Learner(model.shard(LAYOUT, MESH), optim.AdamWConfig(), schedule, loss, mesh=MESH, **(given | options))


def compared(output: px.Tensor, target: px.Tensor) -> Loss:
    """A loss that depends on several rows at once."""
    return Loss((output - output.mean(axis=0)).square().sum(), output.size, separable=False)


def train(size: int = 20, x: Any = X, **options: Any) -> Loader:
    """Batches, the last one of which divides over no number of devices."""
    return Loader((x, Y), size, shuffle=True, seed=3, **options)


def valid(size: int = 20) -> Loader:
    return Loader((XV, YV), size)


class OwnRows:
    """An iterable that gives the rows of this process."""

    def __init__(self, last: int, less: int = 0) -> None:
        self.last, self.less = last, less

    def __iter__(self) -> Any:
        for start in (0, 20, 40, 60):
            rows = 20 if start < 60 else self.last
            first, end = start + rows * RANK // SIZE, start + rows * (RANK + 1) // SIZE
            end -= self.less * (start == 60 and RANK == SIZE - 1)
            yield X[first:end], Y[first:end]


def weights(trained: Learner[Any]) -> dict[str, Any]:
    found = px.distributed.gather(trained.model)
    return {path: param.val().numpy().tolist() for path, param in found.named_params()}


def history(trained: Learner[Any]) -> list[Any]:
    return [{"train": one.train, "validation": one.validation, "rows": one.rows} for one in trained.history]


def numbers(rows: list[Any]) -> list[list[float]]:
    return [[value for kind in ("train", "validation") for _, value in sorted(row[kind].items())] for row in rows]


class raised:
    """As `pytest.raises`, in a process that pytest does not run."""

    def __init__(self, kind: type[Exception], *words: str) -> None:
        self.kind, self.words = kind, words

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: object) -> bool:
        assert isinstance(error, self.kind), f"expected {self.kind.__name__}, got {error!r}"
        for word in self.words:
            assert word in str(error), f"{word!r} is not in: {error}"
        return True


def warned(run: Callable[[], object]) -> list[str]:
    """What is warned of, in process 0."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    return [str(one.message) for one in caught]


# --- sections


def undisturbed() -> Learner[Any]:
    """A training that others are compared with."""
    if "one" not in FOUND:
        one, losses = learner(), []
        one.fit(
            train(), epochs=EPOCHS, validation=valid(), folder=GROUP / "whole", overwrite=True, progress=False,
            callbacks=[LambdaCallback(on_step_end=lambda it: losses.append(it.loss)), Histograms(EPOCHS)],
        )  # fmt: skip
        FOUND["one"] = one
        FOUND["same"] = [losses, history(one), weights(one), one.step, one.updates]
    return FOUND["one"]


@section
def same() -> None:
    """Losses, metrics and weights: of batches that do not divide, and a last one of one row."""
    one = undisturbed()
    FOUND["evaluated"] = [one.evaluate(valid(size)) for size in (7, 40)]
    FOUND["predicted"] = one.predict(valid()).tolist()
    written = (GROUP / "whole" / "metrics.jsonl").read_text().splitlines()
    assert len(written) == EPOCHS, written
    histogram = json.loads(written[-1])["parameters/layers.0.weight"]
    weight = np.array(weights(one)["layers.0.weight"])
    assert sum(histogram["counts"]) == weight.size and np.isclose(histogram["mean"], weight.mean(), atol=1e-6)


@section
def resumed() -> None:
    """Saved within an epoch, and gone on from, bit for bit."""

    def keep() -> Checkpoints:
        return Checkpoints(every_steps=2, best="validation/loss", keep_best=2)

    folder, one = GROUP / "parts", undisturbed()
    learner().fit(train(), steps=7, validation=valid(), folder=folder, progress=False, callbacks=[keep()])
    second = learner(net(5, synchronized=True))
    second.fit(
        train(), epochs=EPOCHS, validation=valid(), folder=folder, resume=True, progress=False, callbacks=[keep()]
    )  # fmt: skip
    assert second.is_resumed and second.step == one.step
    assert weights(second) == weights(one), "the weights are others"
    assert history(second) == history(one), (history(second), history(one))
    losses = sorted(one.validation["loss"] for one in second.history)
    listed = json.loads((folder / "checkpoints" / "checkpoints.json").read_text())["bests"]
    assert [one["value"] for one in listed] == losses[:2] and listed[0]["file"].removesuffix(".safetensors") == "best"
    keys = second.weights().tensors.keys()
    for rank in (1, 2):
        best = Checkpoints.best_in(folder, rank)
        assert best.tensors.keys() == keys
        assert all(np.isfinite(entry.tensor.read()).all() for entry in best.tensors.values())


@section
def damaged() -> None:
    """A part of any process, and the history: all go on from the checkpoint before, which process 0 says."""
    one = undisturbed()
    folder = GROUP / "spoilt"
    learner().fit(
        train(), steps=9, validation=valid(), folder=folder, overwrite=True, progress=False,
        callbacks=[Checkpoints(every_steps=2, keep=None)],
    )  # fmt: skip
    if RANK == 0:
        newest = sorted((folder / "checkpoints").glob("step-*"), reverse=True)
        for number, path in enumerate(newest[: min(SIZE, 3)]):
            flip(next(iter(path.glob(f"part-*-{number:05d}*.safetensors"))) if path.is_dir() else path)
        flip(folder / "checkpoints" / "history-1.jsonl")
    again = learner(net(5, synchronized=True))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        again.fit(train(), epochs=EPOCHS, validation=valid(), folder=folder, resume=True, progress=False)
    said = [str(one.message) for one in caught if one.category is RunWarning]
    assert [bool("is used, because newer checkpoints are damaged" in text) for text in said] == [True, False][
        : 2 * (RANK == 0)
    ]
    assert RANK != 0 or "reports of epochs" in said[1], said
    assert weights(again) == weights(one), "the weights are others"
    assert history(again) == history(one)[-len(history(again)) :]
    if RANK == 0:
        held = Checkpoints.load(folder)  # which warns of nothing: the next start has made the history anew
        assert held["log"]["counts"]["history"] == len(history(again)), held["log"]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 64
    path.write_bytes(data)


@section
def handed_on() -> None:
    """What one process has saved several go on from, and the other way round."""
    for _ in range(2):  # the second one takes the place of the first
        learner(metrics={}).fit(train(), steps=2, folder=GROUP / "left", overwrite=True, progress=False)
    learner().fit(train(), steps=8, validation=valid(), folder=GROUP / "left", overwrite=True, progress=False)
    for other in sorted(BASE.glob("of-*")):
        if other == GROUP or not (other / "left").exists():
            continue
        third, one = learner(net(5, synchronized=True)), undisturbed()
        third.fit(train(), epochs=EPOCHS, validation=valid(), resume=other / "left" / "checkpoints", progress=False)
        assert third.step == one.step
        for path, array in weights(one).items():
            np.testing.assert_allclose(array, weights(third)[path], rtol=1e-4, atol=1e-5, err_msg=path)
        np.testing.assert_allclose(numbers(history(third)), numbers(history(one)), rtol=1e-4, atol=1e-6)


def all_stop(reason: str | None, *callbacks: Any, expected: int | None = None, **limits: Any) -> Learner[Any]:
    it = learner(metrics={})
    it.fit(train(), **(limits or {"epochs": 50}), callbacks=[*callbacks], progress=False)
    ends = px.distributed.gather_objects([it.step, it.stopped])
    assert ends == [[it.step, it.stopped if reason is None else reason]] * SIZE, ends
    assert expected is None or it.step == expected, it.step
    return it


@section
def stopped() -> None:
    """What one process wants all do, after the same step."""

    def stop_in_last(it: Any) -> None:
        if RANK == SIZE - 1 and it.step == 4:
            it.stop("enough")

    assert all_stop("enough", LambdaCallback(on_step_end=stop_in_last)).step in (4, 5)


@section
def limits() -> None:
    """Limits and callbacks that all processes have."""
    all_stop("2 epochs are over", epochs=2, expected=10)
    all_stop("0.3 seconds are over", time=0.3)
    early = EarlyStopping("train/loss", patience=1, min_delta=10.0)
    assert all_stop(None, early, expected=10).epoch == 2
    # Although the last process is late wherever it can be, and learns of the stop before it finds out itself.
    late = LambdaCallback(
        on_step_end=lambda it: time.sleep(0.1 * (RANK == SIZE - 1 and it.step == 10)),
        on_epoch_end=lambda it: time.sleep(0.1 * (RANK == SIZE - 1 and it.step == 10)),
    )
    early = EarlyStopping("train/loss", patience=1, min_delta=10.0)
    assert all_stop(None, late, early, expected=10).epoch == 2
    saves = learner(metrics={})
    keep = Checkpoints(GROUP / "minutes", every_minutes=0.0, keep=None)
    saves.fit(train(), steps=4, callbacks=[keep], progress=False)
    assert len(list((GROUP / "minutes").glob("step-*"))) >= 2


@section
def signalled() -> None:
    """A signal to one process ends all, after the same step, with the state saved."""

    def send(it: Any) -> None:
        if RANK == SIZE - 1 and it.step == 6:
            os.kill(os.getpid(), signal.SIGTERM)

    it = learner(metrics={})
    try:
        it.fit(
            train(), epochs=50, folder=GROUP / "signal", progress=False, callbacks=[LambdaCallback(on_step_end=send)]
        )
    except SystemExit as error:
        assert error.code == 143
    else:
        raise AssertionError("it went on")
    assert px.distributed.gather_objects(it.step) == [it.step] * SIZE and it.step in (6, 7)
    it.fit(train(), steps=9, folder=GROUP / "signal", resume=True, progress=False)
    assert it.step == 9


@section
def bad_input() -> None:
    """Errors, in all processes."""
    it = learner(metrics={})
    with raised(DataError, "part 1 of 5", "part"):
        it.fit(train().shard(1, 5), epochs=1, progress=False)
    if MESH.backend.partitions and MESH.size > 1:
        with raised(DataError, f"batches of 18 rows cannot be cut over {MESH.size} devices", "multiple of"):
            it.fit(train(18), epochs=1, progress=False)
    elif SIZE > 1:
        with raised(DataError, f"too few for {SIZE} processes"):
            it.fit(train(1), epochs=1, progress=False)
        with raised(DataError, "the last batch of 1 rows is too few", "drop_last=True"):
            it.fit(train(30), epochs=1, progress=False)
        with raised(DistributedError, "0.weight"):
            learner(net(RANK, synchronized=True)).fit(train(), epochs=1, progress=False)
    if SIZE > 1:
        with raised(RunError, "Histograms: gradients need one process"):
            it.fit(train(), epochs=1, callbacks=[Histograms(gradients=True)], progress=False)
        with raised(DataError, "part"):
            it.fit(train().shard((RANK + 1) % SIZE, SIZE), epochs=1, progress=False)
        with raised(RunError, "the limits"):
            it.fit(train(), epochs=1 + RANK, progress=False)
        with raised(DataError, "on_error='skip'"):
            it.fit(train(on_error="skip"), epochs=1, progress=False)
    (GROUP / "taken").mkdir(parents=True, exist_ok=True)
    (GROUP / "taken" / "notes.txt").write_text("mine")
    with raised(RunError, "has files but no"):
        it.fit(train(), epochs=1, folder=GROUP / "taken", progress=False)
    assert it.step == 0
    it.fit(train().shard(*MESH.part), epochs=1, progress=False)
    assert it.step == 5


@section
def nan() -> None:
    """A loss that is not finite in one process ends all."""
    spoilt = X.copy()
    spoilt[17] = np.nan
    for callbacks in ([NanGuard()], []):
        it = learner(metrics={})
        with raised(PhloxError, "the loss of step"):  # in one that hears of another's first, a DistributedError
            it.fit(train(x=spoilt), epochs=2, callbacks=callbacks, progress=False)


@section
def others() -> None:
    """Iterables that give the rows of this process."""
    it = learner()
    it.fit(OwnRows(8), epochs=1, validation=OwnRows(12), progress=False)
    FOUND["others"] = [history(it), weights(it), it.predict(OwnRows(8)).tolist()]
    if SIZE > 1:  # gradients of two epochs never meet
        it = learner(metrics={})
        batches = list(OwnRows(8))
        with raised(DataError, "epoch 1 has 2 batches in process 0, and more in process 1", "equally many batches"):
            it.fit(lambda: iter(batches[: 2 + RANK]), steps=9, progress=False)
        assert it.step == 2 and it.epoch == 0
    if MESH.backend.partitions:
        if SIZE > 1:
            with raised(DataError, "must have equally many rows in all processes, got 4, 3", "drop_last=True"):
                learner(metrics={}).fit(OwnRows(8, less=1), epochs=1, progress=False)
        return
    it = learner()
    it.fit(OwnRows(8, less=1), epochs=1, validation=OwnRows(9), progress=False)
    FOUND["uneven"] = [history(it), weights(it), it.predict(OwnRows(9)).tolist()]


@section
def options() -> None:
    """Statistics of a process's own rows, accumulation, several steps a call, updates of one's own, L-BFGS."""
    plain = learner(net(), accumulate=2)
    said = warned(lambda: plain.fit(train(), epochs=2, validation=valid(), progress=False))
    assert len(said) == (RANK == 0) and all("`layers.1`: batch norm takes" in text for text in said), said
    if SIZE > 1:
        own = learner(net(), metrics={})
        said = warned(lambda: own.fit(train(), steps=1, progress=False))
        assert len(said) == (RANK == 0) and all("the rows of each process" in text for text in said), said
        assert "BatchNorm(..., synchronized=True)" in own.events[0][1]
        pairs = learner(nn.Linear(6, 2).init(seed=1, device=ENGINE), metrics={}, loss=compared)
        with raised(PhloxError, "compares rows with each other"):  # of another's: a DistributedError, as above
            pairs.fit(train(), steps=1, progress=False)
    values = px.distributed.gather_objects([weights(plain), history(plain)])
    assert all(one == values[0] for one in values), values
    layers = [nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 2)]
    model = nn.Sequential(layers).init(seed=1, device=ENGINE)
    summed = learner(model, accumulate=2)
    summed.fit(train(), epochs=2, validation=valid(), progress=False)
    FOUND["accumulated"] = [history(summed), weights(summed)]

    def update(model: Any, optimizer: Any, rates: Any, batch: Any) -> Any:
        x, y = batch
        loss, grads = px.value_and_grad(lambda model: nn.cross_entropy_loss(model(x), y))(model)
        return (
            optimizer.step(rates, model, grads),
            {"loss": loss, "columns": x.mean(axis=0), "three": 3},
            (model(x).detach(), y),
        )

    px.random.seed(3)
    own = Learner(
        model.shard(LAYOUT, MESH), optim.AdamWConfig(), 0.01, update=update, mesh=MESH,
        metrics={"accuracy": metrics.Accuracy(num_classes=2)},
    )  # fmt: skip
    own.fit(train(18, drop_last=True), epochs=2, progress=False)
    FOUND["update"] = [history(own), weights(own)]
    if SIZE > 1:
        with raised(DataError, "with update= the learner cannot weight them", "drop_last=True"):
            own.fit(train(), epochs=1, progress=False)
    linear = nn.Linear(6, 2).init(seed=1, device=ENGINE)
    newton = Learner(linear.shard(LAYOUT, MESH), optim.LbfgsConfig(), None, nn.cross_entropy_loss, mesh=MESH)
    newton.fit(train(91), epochs=2, progress=False)
    FOUND["lbfgs"] = [history(newton)]


@section
def checked() -> None:
    """With checks on, processes are compared at the end of each epoch."""
    with px.debug.checks():
        it = learner(metrics={})
        it.fit(train(), epochs=1, progress=False)
        if SIZE > 1:
            it.lr_scale = 1.0 - 0.5 * RANK
            with raised(DistributedError, "lr"):
                it.fit(train(), epochs=1, progress=False)


if __name__ == "__main__":
    warnings.simplefilter("error")
    ENGINE, BASE = sys.argv[1], Path(sys.argv[2])
    px.distributed.initialize(seed=0, device=ENGINE)
    RANK, SIZE = px.distributed.rank(), px.distributed.size()
    MESH = Mesh(data=-1, device=ENGINE)
    LAYOUT = Layout({}, rest="data", least=0) if MESH.backend.partitions and MESH.size > 1 else Layout()
    GROUP = BASE / f"of-{SIZE}x{MESH.size}"
    for name in sys.argv[3].split(","):
        SECTIONS[name]()
    if RANK == 0:
        FOUND.pop("one", None)
        text = json.dumps(FOUND, default=lambda x: np.asarray(x).tolist())
        (BASE / f"{SIZE}x{MESH.size}.json").write_text(text)

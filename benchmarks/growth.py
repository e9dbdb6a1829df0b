# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# The other libraries are installed only for the benchmarks.
"""`python -m benchmarks growth`: how costs grow with the size of the work, in Phlox and in its peers.

Each cell, one size of one axis for one contestant, is measured in a process of its own on one thread, within a time
limit. It prints each figure as soon as it is measured, so that a cell that hangs loses only what it has not printed.
Times are the least of several calls, of the clock and of the processor. `benchmarks.growth_page` shows the cells as
curves, and says whose exponent is larger.
"""

from __future__ import annotations

import csv
import datetime
import gc
import importlib
import json
import math
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contestants import CONTESTANTS, ONE_THREAD, Contestant
from benchmarks.workloads import LR, Workload

ROOT = Path(__file__).parents[1]
RECORDED = ROOT / "benchmarks" / "recorded" / "growth.json"
PHLOX = ("Phlox on NumPy", "Phlox on PyTorch, eager", "Phlox on PyTorch", "Phlox on JAX")
PEERS = ("PyTorch", "torch.compile", "JAX and Optax")
PEER: dict[str, str] = dict(zip(PHLOX, ("PyTorch", "PyTorch", "torch.compile", "JAX and Optax"), strict=True))
"""The peer whose curve is beside that of each configuration of Phlox."""
EAGER = ("Phlox on NumPy", "Phlox on PyTorch, eager", "PyTorch")
UNCOMPILED = (*EAGER, "Phlox on JAX", "JAX and Optax")
BATCHES = 4
"""In an epoch of `fit`, except on the axis of rows."""
LIMIT, QUICK_LIMIT = 60, 20
"""The seconds of a processor that a cell may take. By the clock it may take ten times as long, on a busy machine."""

Figures = Iterator[tuple[str, list[float]]]
"""Quantities with their figures: the seconds of the clock and of the processor, or a number of bytes."""
Measure = Callable[[Contestant, int], Figures]


@dataclass(frozen=True)
class Axis:
    """What grows, and how it is measured."""

    name: str
    sizes: tuple[int, ...]
    measure: Measure
    contestants: tuple[str, ...] = (*PHLOX, *PEERS)
    most: dict[str, int] = field(default_factory=dict[str, int])
    """The largest size of contestants that compile for too long."""

    def chains(self, *, quick: bool) -> Iterator[tuple[Contestant, list[int]]]:
        """Each contestant with its sizes, the smallest first."""
        named = {contestant.name: contestant for contestant in CONTESTANTS}
        for name in self.contestants:
            if not quick or name == "Phlox on NumPy" or (name == "PyTorch" and self.name in ("rows", "epochs")):
                most = self.most.get(name, self.sizes[-1])
                yield named[name], [size for size in self.sizes[: 2 if quick else None] if size <= most]


@dataclass
class Cell:
    """The figures of one size for one contestant, and why some may be missing."""

    axis: str
    contestant: str
    size: int
    figures: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    missing: str | None = None


# --- the parent's side


def run(names: Sequence[str] = (), *, quick: bool = False) -> list[Cell]:
    """The cells of all axes, or of some; two are measured at a time."""
    asked = [axis for axis in AXES if not names or axis.name in names]
    chains = [(axis, *chain) for axis in asked for chain in axis.chains(quick=quick)]
    with ThreadPoolExecutor(2) as pool:
        return [cell for cells in pool.map(lambda chain: _measured(*chain, quick=quick), chains) for cell in cells]


def _measured(axis: Axis, contestant: Contestant, sizes: Sequence[int], *, quick: bool) -> list[Cell]:
    """The cells of one contestant; none after one that took too long."""
    cells: list[Cell] = []
    for size in sizes:
        begin = time.monotonic()
        cells.append(_cell(axis, contestant, size, QUICK_LIMIT if quick else LIMIT))
        took, missing = time.monotonic() - begin, cells[-1].missing
        said = f"{axis.name} {size}, {contestant.name}: {took:.0f} s" + (f", {missing}" if missing else "")
        print(said, file=sys.stderr, flush=True)
        if missing:
            break
    return cells


def _cell(axis: Axis, contestant: Contestant, size: int, limit: int) -> Cell:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        environment = {
            **os.environ, **ONE_THREAD, **contestant.environment, "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
            "TORCHINDUCTOR_COMPILE_THREADS": "1", "XDG_CACHE_HOME": folder, "NPROC": "1",  # the last for XLA
        }  # fmt: skip
        command = [sys.executable, "-m", "benchmarks.growth", axis.name, contestant.name, str(size), str(limit)]
        cell = Cell(axis.name, contestant.name, size)
        with (Path(folder) / "printed").open("w+", encoding="utf-8") as printed:
            errors = Path(folder) / "errors"
            try:
                with errors.open("w", encoding="utf-8") as stderr:
                    done = subprocess.run(
                        command, check=False, env=environment, cwd=ROOT, timeout=10.0 * limit, stdout=printed,
                        stderr=stderr,
                    )  # fmt: skip
                if done.returncode == -signal.SIGXCPU:
                    cell.missing = f"more than {limit} s of a processor"
                elif done.returncode:
                    lines = errors.read_text(encoding="utf-8").strip().splitlines() or [""]
                    cell.missing = f"status {done.returncode}: {lines[-1][:200]}"
            except subprocess.TimeoutExpired:
                cell.missing = f"more than {10 * limit} s"
            printed.seek(0)
            cell.figures = dict(json.loads(line) for line in printed if line.startswith('["'))
        return cell


def save(cells: Sequence[Cell], file: Path) -> None:
    """Write the cells, with the date."""
    lines = ",\n".join(json.dumps(asdict(cell)) for cell in cells)
    file.write_text(f'{{"date": "{datetime.date.today()}", "cells": [\n{lines}\n]}}\n', encoding="utf-8")


def load(file: Path = RECORDED) -> tuple[str, list[Cell]]:
    """The date and the cells of a run."""
    plain = json.loads(file.read_text(encoding="utf-8"))
    return plain["date"], [Cell(**cell) for cell in plain["cells"]]


# --- what a process measures


def clocked(call: Callable[[], Any]) -> list[float]:
    """The seconds of one call, of the clock and of the processor."""
    wall, processor = time.perf_counter(), time.process_time()
    call()
    return [time.perf_counter() - wall, time.process_time() - processor]


def least(call: Callable[[], Any], seconds: float = 0.2) -> list[float]:
    """The least seconds of the clock, and the mean of the processor, of calls that take `seconds`; at least of two.

    With a limit of its time, the system counts that of the processor in ticks. As in `benchmarks.harness`, Python's
    collector of garbage is off.
    """
    gc.collect()
    gc.disable()
    times = [clocked(call), clocked(call)]
    while sum(processor for _, processor in times) < seconds:
        times.append(clocked(call))
    gc.enable()
    wall, processor = zip(*times, strict=True)
    return [min(wall), statistics.fmean(processor)]


def resident(kind: str = "VmRSS") -> float:
    """The bytes of memory of this process; with `VmHWM`, the most since `forget_peak`."""
    text = Path("/proc/self/status").read_text(encoding="ascii")
    return float(text.split(f"{kind}:")[1].split()[0]) * 1024


def forget_peak() -> None:
    """Let the peak be counted from now on, where the system allows it."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        pass


def training(workload: Workload, contestant: Contestant, *, files: bool, fits: bool) -> Figures:
    """A training step and what belongs to it; saving and loading; an epoch and a checkpoint."""
    library: Any = importlib.import_module(f"benchmarks.libraries.{contestant.library}")
    compiling = [0.0]
    if "jax" in sys.modules:
        import jax

        def note(event: str, duration_secs: float, **kwargs: Any) -> None:
            compiling[0] += duration_secs * ("backend_compile" in event)

        jax.monitoring.register_event_duration_secs_listener(note)
    if "eager" in contestant.variant:  # what its library allocates once is not counted
        library.Contestant(mlp(1000), contestant.variant).losses(1)
    before = resident()
    trainer = library.Contestant(workload, contestant.variant)
    compiling[0] = 0.0
    first = clocked(lambda: trainer.losses(1))
    yield "first step", first
    if compiling[0]:
        yield "compiling", [compiling[0]] * 2
        yield "tracing", [seconds * (1.0 - compiling[0] / first[0]) for seconds in first]
    yield "training step", least(lambda: trainer.losses(1))
    forget_peak()
    trainer.losses(1)
    yield "memory of a step", [resident("VmHWM") - before]
    if files:
        yield from writing(trainer)
    if fits:
        yield "epoch of fit", epoch(trainer)


def writing(trainer: Any) -> Figures:
    """Saving and loading the weights, and saving the state of the training."""
    with tempfile.TemporaryDirectory() as folder:
        file, whole = Path(folder) / "model.safetensors", Path(folder) / "state.safetensors"
        if trainer.library == "with_phlox":
            import phlox as px
            from phlox.record import Record

            def state() -> Record:
                return Record.merge({name: getattr(trainer, name).into_record() for name in ("model", "optimizer")})

            yield "saving", least(lambda: px.record.save(trainer.model.into_record(), file, durable=False))
            # As the peers, without comparing checksums, which reads every byte.
            yield "loading", least(lambda: trainer.model.load_record(px.record.load(file, verify=False)))
            yield "checkpoint", least(lambda: px.record.save(state(), whole, durable=False))
        elif trainer.library == "with_torch":
            import torch
            from safetensors.torch import load_file, save_file

            model, optimizer = trainer._model(), trainer.optimizer
            yield "saving", least(lambda: save_file(model.state_dict(), file))
            yield "loading", least(lambda: model.load_state_dict(load_file(file), assign=True))
            states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            yield "checkpoint", least(lambda: torch.save(states, whole))
        elif trainer.library == "with_jax":
            import jax
            from safetensors.flax import load_file, save_file

            yield "saving", least(lambda: save_file(trainer.state[0], file))
            yield "loading", least(lambda: load_file(file))
            leaves = {str(n): leaf for n, leaf in enumerate(jax.tree.leaves(trainer.state[:2]))}
            yield "checkpoint", least(lambda: save_file(leaves, whole))


def epoch(trainer: Any) -> list[float]:
    """The seconds of an epoch of `fit`, or of the loop that users of the peers write."""
    x, y = (np.concatenate([array] * BATCHES) for array in trainer.data[1:3])
    size = len(x) // BATCHES
    if trainer.library == "with_phlox":
        from phlox import optim
        from phlox.data import Loader
        from phlox.train import Learner

        learner: Any = Learner(
            trainer.model, optim.AdamWConfig(), LR, step=lambda model, batch: model.loss(*batch),
            compile=trainer.compiled,
        )  # fmt: skip
        clock = _clock()
        learner.fit(Loader((x, y), size, shuffle=True), epochs=4, callbacks=[clock], progress=False)
        return [min(np.diff(column)[1:]) for column in zip(*clock.ends, strict=True)]
    rng = np.random.default_rng(0)

    def through() -> None:
        losses: list[Any] = []
        rows = rng.permutation(len(x))
        for n in range(BATCHES):
            batch = [array[rows[n * size : (n + 1) * size]] for array in (x, y)]
            if trainer.library == "with_torch":
                trainer.x, trainer.y = trainer._input(batch[0]), trainer._input(batch[1])
            else:
                trainer.arrays = (*batch, None)
            losses.append(trainer.step())
        trainer.wait(losses[-1])

    return least(through)


def _clock() -> Any:
    from phlox.train import Callback

    class Clock(Callback):
        """Notes when epochs end."""

        def __init__(self) -> None:
            self.ends: list[tuple[float, float]] = []
            self.memory: list[float] = []

        def on_epoch_end(self, learner: Any) -> None:
            self.ends.append((time.perf_counter(), time.process_time()))
            self.memory.append(resident())

    return Clock()


def mlp(parameters: int, batch: int = 16) -> Workload:
    """A perceptron with two hidden layers of so many parameters."""
    width = round((math.sqrt(75.0**2 + 4.0 * parameters) - 75.0) / 2.0)
    return Workload("mlp", "MLP", "mlp", {"widths": (64, width, width, 10), "batch": batch})


def gpt(layers: int, context: int) -> Workload:
    """A narrow transformer."""
    sizes = {"layers": layers, "width": 32, "heads": 2, "context": context, "batch": 1, "vocabulary": 101}
    return Workload("gpt", "GPT", "gpt", sizes)


def of_parameters(contestant: Contestant, size: int) -> Figures:
    """A perceptron with so many parameters."""
    yield from training(mlp(size), contestant, files=True, fits=True)


def of_layers(contestant: Contestant, size: int) -> Figures:
    """A narrow transformer with so many blocks."""
    yield from training(gpt(size, 16), contestant, files=True, fits=False)


def of_batch(contestant: Contestant, size: int) -> Figures:
    """A perceptron with a batch of so many rows."""
    yield from training(mlp(100_000, size), contestant, files=False, fits=True)


def of_tensors(contestant: Contestant, size: int) -> Figures:
    """A perceptron of many narrow layers, each with two parameters."""
    widths = (4,) * (size // 2 + 1)
    workload = Workload("tensors", "MLP", "mlp", {"widths": widths, "batch": 4})
    yield from training(workload, contestant, files=True, fits=size <= 1000)


def of_context(contestant: Contestant, size: int) -> Figures:
    """A narrow transformer with a context, and a prompt, of so many tokens."""
    from benchmarks import generation

    yield from training(gpt(2, size), contestant, files=False, fits=False)
    generation.TOKENS = np.random.default_rng(0).integers(0, 100, size)
    sizes = {"vocabulary": 101, "context": size + 32, "n_layers": 2, "d_model": 32, "n_heads": 2}
    if contestant.name == "PyTorch":
        steps = generation.theirs(sizes)
    elif contestant.ours and (contestant.eager or "jax" in contestant.variant):
        from benchmarks.libraries.with_phlox import ENGINES

        engine, *options = contestant.variant.split()
        steps = generation.phlox_model(ENGINES[engine](), sizes, compiled="eager" not in options)
    else:
        return
    yield "first token, with compiling", clocked(lambda: list(steps(1)))
    yield "first token", least(lambda: next(iter(steps(1))))
    list(steps(generation.NEW))
    yield "token", [min(generation.seconds_of_a_token(steps) for _ in range(3))] * 2


def of_epochs(contestant: Contestant, size: int) -> Figures:
    """The last tenth of so many epochs, each with its line in a log and a checkpoint that is kept."""
    x, y = np.ones((8, 4), np.float32), np.ones((8, 1), np.float32)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        if contestant.ours:
            ends, memory = _phlox_epochs(contestant, size, x, y, folder)
        else:
            ends, memory = _torch_epochs(size, x, y, folder)
        half = size // 2
        window = max(size // 10, 3)
        wall = [after[0] - before[0] for before, after in zip(ends[-window - 1 :], ends[-window:], strict=False)]
        yield "n-th epoch", [statistics.median(wall), (ends[-1][1] - ends[-window - 1][1]) / window]
        yield "memory the n-th epoch adds", [max((memory[-1] - memory[half]) / half, 4096.0)]
        files = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        yield "files of an epoch", [files / size]


def _phlox_epochs(contestant: Contestant, size: int, x: Any, y: Any, folder: Path) -> tuple[list[Any], list[float]]:
    from phlox import nn, optim
    from phlox.data import Loader
    from phlox.train import Checkpoints, Learner

    engine, *options = contestant.variant.split()
    model = nn.Linear(4, 1, device=engine)
    learner: Any = Learner(model, optim.AdamWConfig(), LR, nn.mse_loss, compile="eager" not in options)
    clock = _clock()
    data, kept = Loader((x, y), 4, shuffle=True), Checkpoints(keep=None, background=False)
    learner.fit(data, epochs=size, validation=data, folder=folder, callbacks=[clock, kept], progress=False)
    return clock.ends, clock.memory


def _torch_epochs(size: int, x: Any, y: Any, folder: Path) -> tuple[list[Any], list[float]]:
    import torch

    folder.mkdir()
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    rows = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    data = torch.utils.data.DataLoader(rows, 4, shuffle=True)
    ends: list[Any] = []
    memory: list[float] = []
    with (folder / "log.csv").open("w", encoding="utf-8", newline="") as log:
        for number in range(size):
            losses = [0.0, 0.0]
            for is_training in (True, False):
                for inputs, targets in data:
                    with torch.set_grad_enabled(is_training):
                        loss = torch.nn.functional.mse_loss(model(inputs), targets)
                    if is_training:
                        optimizer.zero_grad()
                        loss.backward()
                        optimizer.step()
                    losses[is_training] += loss.item()
            csv.writer(log).writerow([number, *losses])
            log.flush()
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / f"{number}.pt")
            ends.append((time.perf_counter(), time.process_time()))
            memory.append(resident())
    return ends, memory


def of_rows(contestant: Contestant, size: int) -> Figures:
    """Batches in random order from arrays of so many rows."""
    x, y = np.zeros((size, 4), np.float32), np.zeros(size, np.int32)
    if contestant.ours:
        from phlox.data import Loader

        data: Any = Loader((x, y), 64, shuffle=True)
    else:
        import torch

        rows = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
        data = torch.utils.data.DataLoader(rows, 64, shuffle=True)
    before = resident()
    forget_peak()
    yield "first batch", least(lambda: next(iter(data)))
    batches = chain.from_iterable(repeat(data))  # epoch after epoch
    yield "batch", [seconds / 10 for seconds in least(lambda: list(islice(batches, 10)))]
    yield "memory of a loader", [max(resident("VmHWM") - before, 2.0**20)]


AXES = (
    Axis("parameters", (10_000, 100_000, 1_000_000, 10_000_000, 100_000_000), of_parameters),
    Axis("layers", (1, 4, 16, 64), of_layers, most=dict.fromkeys(("torch.compile", "Phlox on PyTorch"), 16)),
    Axis("tensors", (10, 100, 1000, 10_000), of_tensors, UNCOMPILED, dict.fromkeys(UNCOMPILED[3:], 1000)),
    Axis("batch", (1, 32, 1024), of_batch, UNCOMPILED),
    Axis("context", (16, 128, 1024, 4096), of_context, UNCOMPILED),
    Axis("epochs", (10, 100, 1000, 5000), of_epochs, EAGER),
    Axis("rows", (1000, 10_000, 100_000, 1_000_000, 10_000_000), of_rows, ("Phlox on NumPy", "PyTorch")),
)


def in_process(axis: str, contestant: str, size: str, limit: str) -> None:
    """Print the figures of one cell."""
    resource.setrlimit(resource.RLIMIT_CPU, (int(limit), int(limit) + 5))
    (measure,) = (each.measure for each in AXES if each.name == axis)
    (named,) = (each for each in CONTESTANTS if each.name == contestant)
    for figure in measure(named, int(size)):
        print(json.dumps(figure), flush=True)


if __name__ == "__main__":
    in_process(*sys.argv[1:])

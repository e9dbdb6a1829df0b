# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# The other libraries are installed only for the benchmarks.
"""Saving and loading the weights of a transformer, 1 GB in float32, against safetensors and PyTorch.

Phlox calls fsync when it saves, and the peers do not. So both cases are shown for all: durably (for the peers, followed
by an fsync of the file and of its folder), and into the page cache (Phlox with `durable=False`). Loading is shown until
the weights are loaded, and until every element has been read once, because mapped files are read later. Weights are
loaded when they are in a model: in PyTorch by `load_state_dict(assign=True)` into a module without values. The
libraries of NumPy and JAX have no models, and end with a dictionary; PyTorch's time for one is shown for comparison.
Files are in the page cache. Freed memory is returned to the system before each load: otherwise some loads would get new
memory and others reused memory, and a program that loads a model once, as most do, gets new memory.
"""

from __future__ import annotations

import ctypes
import gc
import gzip
import importlib
import inspect
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

import phlox as px
from benchmarks.harness import Ratio, attempt, compare, in_turn, quick, seconds_in_turn, small
from benchmarks.weights import QUICK_WIDTH, SMALL_WIDTH, WIDTH, Arrays, Weights, arrays, module_of, shapes
from phlox.backend import EngineBackend, Jax, NumPy, Torch
from phlox.record import FULL, HALF, Precision


class Library:
    """A library that is imported when it is first used: if it is broken, only the contestants that use it fail."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


torch, zstd = Library("torch"), Library("backports.zstd")
safetensors_numpy, safetensors_torch, safetensors_flax = (
    Library(f"safetensors.{name}") for name in ("numpy", "torch", "flax")
)

Run = Callable[[], Any]
VERIFIES = "verify" in inspect.signature(px.record.load).parameters


def run() -> list[Ratio]:
    """All rows of the table."""
    width = QUICK_WIDTH if quick() else SMALL_WIDTH if small() else WIDTH
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        host = arrays(width)
        size = f"{sum(array.nbytes for array in host.values()) / 1e9:.2f} GB of f32"
        rows = saving(host, folder, size)
        rows += compressing(folder)
        write_for_loading(host, folder)
        write_for_peers(host, folder)
        del host
        rows += loading(width, folder, size)
    return rows


# --- saving


def saving(host: Arrays, folder: Path, size: str) -> list[Ratio]:
    """At full and at half precision, durably and not."""
    model = module_of(host, NumPy().device())
    tensors = cache(lambda: {name: torch.from_numpy(array) for name, array in host.items()})
    on_torch = cache(lambda: module_of(host, Torch().device()))
    plain, half, half_on_torch = "Phlox", "Phlox, HALF", "Phlox on Torch, HALF"
    full: dict[str, Callable[..., Any]] = {
        plain: partial(save, model, FULL),
        "safetensors.numpy": lambda file: safetensors_numpy.save_file(host, file),
        "safetensors.torch": lambda file: safetensors_torch.save_file(tensors(), file),
        "torch.save": lambda file: torch.save(tensors(), file),
    }
    halved: dict[str, Callable[..., Any]] = {
        half: partial(save, model, HALF),
        half_on_torch: lambda file, durable: save(on_torch(), HALF, file, durable=durable),
        "NumPy casts, then safetensors": lambda file: safetensors_numpy.save_file(
            {name: array.astype(np.float16) for name, array in host.items()}, file
        ),
        "torch casts, then safetensors": lambda file: safetensors_torch.save_file(
            {name: tensor.half() for name, tensor in tensors().items()}, file
        ),
    }
    rows: list[Ratio] = []
    for durable in (True, False):
        how = "durably" if durable else "into the page cache"
        for savers, target, what in ((full, 1.0, "save"), (halved, 0.7, "save as f16")):
            times = time_saving(savers, folder, durable=durable)
            rows += [
                compare(f"{what}, {size}, {how}", times, subject, peer, target=target)
                for subject in savers
                for peer in savers
                if subject.startswith("Phlox") and not peer.startswith("Phlox")
            ]
    return rows


def time_saving(savers: dict[str, Callable[..., Any]], folder: Path, *, durable: bool) -> dict[str, list[float]]:
    """Save each to a new file, after all earlier writes have reached the disk."""
    file = folder / "saved.safetensors"

    def clear() -> None:
        file.unlink(missing_ok=True)
        os.sync()

    def run(name: str, saver: Callable[..., Any]) -> None:
        if name.startswith("Phlox"):
            saver(file, durable=durable)
        else:
            saver(file)
            if durable:
                sync(file)

    contestants: dict[str, Run] = {
        name: lambda name=name, saver=saver: run(name, saver) for name, saver in savers.items()
    }
    times = seconds_in_turn(contestants, rounds=rounds(), before=clear)
    clear()
    return times


def save(model: Weights, precision: Precision, file: Path, *, durable: bool = True) -> None:
    """Save as a user does."""
    px.record.save(model.into_record(), file, precision, durable=durable)


def sync(file: Path) -> None:
    """Sync the file and its folder, which the peers leave to the user."""
    for path, flags in ((file, os.O_RDWR), (file.parent, os.O_RDONLY)):
        descriptor = os.open(path, flags)
        os.fsync(descriptor)
        os.close(descriptor)


def compressing(folder: Path) -> list[Ratio]:
    """For information: a compressed small model, against the same compression of a safetensors file."""
    host = arrays(32)  # 7 MB
    model = module_of(host, NumPy().device())
    file = folder / "saved"

    def peer(compress: Callable[[bytes], bytes]) -> Run:
        return lambda: file.write_bytes(compress(safetensors_numpy.save(host)))

    contestants: dict[str, Run] = {
        "Phlox, gzip": lambda: px.record.save(model.into_record(), file, compression="gzip", durable=False),
        "gzip": peer(lambda data: gzip.compress(data, 6)),
        "Phlox, zstd": lambda: px.record.save(model.into_record(), file, compression="zstd", durable=False),
        "zstd": peer(lambda data: zstd.compress(data)),
    }
    times = seconds_in_turn(contestants, rounds=rounds())
    workload = f"save {sum(array.nbytes for array in host.values()) / 1e6:.0f} MB compressed"
    return [compare(workload, times, f"Phlox, {name}", name) for name in ("gzip", "zstd")]


# --- loading


def write_for_loading(host: Arrays, folder: Path) -> None:
    """A file for Phlox at each precision."""
    model = module_of(host, NumPy().device())
    save(model, FULL, folder / "full.safetensors")
    save(model, HALF, folder / "half.safetensors")


def write_for_peers(host: Arrays, folder: Path) -> None:
    """The same for the peers. Where one cannot write, those that load its file fail and say why."""
    halves = {name: array.astype(np.float16) for name, array in host.items()}
    attempt("safetensors", lambda: safetensors_numpy.save_file(host, folder / "plain.safetensors"))
    attempt("safetensors", lambda: safetensors_numpy.save_file(halves, folder / "plain16.safetensors"))
    attempt("torch", lambda: torch.save({n: torch.from_numpy(a) for n, a in host.items()}, folder / "torch.pt"))


def loading(width: int, folder: Path, size: str) -> list[Ratio]:
    """Loading on every backend, verified and not, until loaded and until read; and from f16."""
    plain, pt = folder / "plain.safetensors", folder / "torch.pt"
    by_torch: dict[str, Loading] = {
        "safetensors.torch": IntoTorch(width, lambda: safetensors_torch.load_file(plain)),
        "torch.load(mmap=True)": IntoTorch(width, lambda: torch.load(pt, mmap=True, weights_only=True)),
    }
    dictionary: dict[str, Loading] = {"safetensors.torch, a dictionary": lambda: safetensors_torch.load_file(plain)}
    peers: dict[str, dict[str, Loading]] = {
        "NumPy": {"safetensors.numpy": lambda: safetensors_numpy.load_file(plain), **by_torch},
        "Torch": by_torch,
        "JAX": {"safetensors.flax": lambda: safetensors_flax.load_file(plain)},
    }
    engines = {"NumPy": NumPy, "Torch": Torch, "JAX": Jax}
    rows: list[Ratio] = []
    for backend, engine in engines.items():
        ours = loaders(width, folder / "full.safetensors", engine)
        known = {} if backend == "JAX" else dictionary
        rows += time_loading(f"load {size} on {backend}", ours, peers[backend], known)
    plain16 = folder / "plain16.safetensors"

    def cast_by_torch() -> dict[str, Any]:
        return {name: tensor.float() for name, tensor in safetensors_torch.load_file(plain16).items()}

    casting: dict[str, Loading] = {
        "safetensors, then NumPy casts": lambda: {
            name: array.astype(np.float32) for name, array in safetensors_numpy.load_file(plain16).items()
        },
        "safetensors, then torch casts": IntoTorch(width, cast_by_torch),
    }
    for backend in ("NumPy", "Torch"):
        known = {"safetensors, then torch casts, a dictionary": cast_by_torch}
        ours = loaders(width, folder / "half.safetensors", engines[backend])
        rows += time_loading(f"load f16 as {size} on {backend}", ours, casting, known)
    return rows


def loaders(width: int, file: Path, engine: type[EngineBackend]) -> dict[str, Loading]:
    """Loading with and without verification."""
    checks = {"Phlox": True, "Phlox, verify=False": False} if VERIFIES else {"Phlox": True}
    return {name: Loader(width, file, engine, verify) for name, verify in checks.items()}


def time_loading(
    workload: str, ours: Mapping[str, Loading], peers: Mapping[str, Loading], known: Mapping[str, Loading]
) -> list[Ratio]:
    """Both times of one run: until loaded, and until everything is read. Rows against `known` have no target."""
    contestants = {**ours, **peers, **known}
    read: dict[str, list[float]] = {name: [] for name in contestants}

    def timed(name: str, load: Loading) -> float:
        give_memory_back()
        gc.collect()
        run = load.prepared() if isinstance(load, (Loader, IntoTorch)) else load
        start = time.perf_counter()
        found = run()
        loaded = time.perf_counter() - start
        start = time.perf_counter()
        add_up(found)
        read[name].append(loaded + time.perf_counter() - start)
        return loaded

    there = in_turn({name: partial(timed, name, load) for name, load in contestants.items()}, range(rounds() + 1))
    there, read = ({name: each[name][1:] for name in there} for each in (there, read))  # the first warms up
    return [
        compare(f"{workload}, until {until}", times, subject, peer, target=None if peer in known else 1.0)
        for until, times in (("the model is there", there), ("every element is read", read))
        for subject in ours
        for peer in (*peers, *known)
    ]


@dataclass(frozen=True)
class Loader:
    """Load a file into a module whose values are not created yet; no initializer runs."""

    width: int
    file: Path
    engine: type[EngineBackend]
    verify: bool = True

    def prepared(self) -> Run:
        """The call to time."""
        options: Any = {} if self.verify else {"verify": False}
        model = Weights(shapes(self.width), self.engine().device())
        return lambda: model.load_record(px.record.load(self.file, **options))


@dataclass(frozen=True)
class IntoTorch:
    """The same in PyTorch: load into a module without values, whose parameters become those of the file."""

    width: int
    load: Callable[[], dict[str, Any]]

    def prepared(self) -> Run:
        """The call to time."""
        model = torch_module(shapes(self.width))

        def run() -> Any:
            model.load_state_dict(self.load(), assign=True)
            return model

        return run


Loading = Run | Loader | IntoTorch


def torch_module(shapes: dict[str, tuple[int, ...]]) -> Any:
    """A module with parameters of these names and shapes, on PyTorch's meta device."""
    root = torch.nn.Module()
    for name, shape in shapes.items():
        *above, last = name.split(".")
        part = root
        for one in above:
            if not hasattr(part, one):
                part.add_module(one, torch.nn.Module())
            part = part.get_submodule(one)
        part.register_parameter(last, torch.nn.Parameter(torch.empty(shape, device="meta")))
    return root


def give_memory_back() -> None:
    """Return freed memory to the system, if the C library has a function for that (glibc)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def add_up(found: Any) -> float:
    """Read every element by NumPy, whichever library has them."""
    if isinstance(found, Weights):
        values = [p.val().primitive for p in found.params()]
    elif hasattr(found, "parameters"):  # a module of PyTorch
        values = [p.detach() for p in found.parameters()]
    else:
        values = list(found.values())
    return sum(float(np.asarray(value).sum()) for value in values)


def rounds() -> int:
    """The number of rounds of each contestant."""
    return 2 if quick() else 7

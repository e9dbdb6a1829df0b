# pyright: reportMissingImports=false, reportUnknownMemberType=false
# The other libraries are installed only for the benchmarks.
"""Measures the peak rates of this machine: of matrix products and convolutions, and of memory.

`python -m benchmarks.arena.machine` prints them as JSON. The fastest of all attempts counts as the peak: libraries
differ by a half in the same product, and each has its best size.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Machine:
    """Rates per second."""

    processor: str
    cores: int
    flops: float
    """The highest rate measured: f32 on CPUs, bf16 on an accelerator."""
    fastest: str
    """The operation that reached it."""
    copied: float
    """Bytes read plus bytes written by a copy."""
    triad: float
    """The same for a + s * b."""
    accelerator: str | None = None
    seen: dict[str, float] = field(default_factory=dict[str, float])
    """All measured rates, by library and operation."""


def _middle(run: Callable[[], Any], seconds: float) -> float:
    """The median seconds of a call, over `seconds`, after two calls to warm up: the sustained rate, not the peak."""
    run()
    run()
    end, times = time.perf_counter() + seconds, list[float]()
    while time.perf_counter() < end or not times:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _library(name: str) -> Any:
    """The library; None if it is absent or broken."""
    try:
        return importlib.import_module(name)
    except Exception:
        return None


def _numpy(size: int) -> Callable[[], Any]:
    a = np.random.default_rng(0).random((size, size), np.float32)
    out = np.empty_like(a)
    return lambda: np.matmul(a, a, out=out)


def _torch(size: int) -> Callable[[], Any] | None:
    torch = _library("torch")
    if torch is None:
        return None
    gpu = torch.cuda.is_available()
    a = torch.rand((size, size), device="cuda" if gpu else "cpu", dtype=torch.bfloat16 if gpu else torch.float32)
    out = torch.empty_like(a)

    def run() -> None:
        torch.mm(a, a, out=out)
        if gpu:
            torch.cuda.synchronize()

    return run


def _jax(size: int) -> Callable[[], Any] | None:
    jax = _library("jax")
    if jax is None:
        return None
    gpu = jax.default_backend() != "cpu"
    a = jax.random.uniform(jax.random.key(0), (size, size), jax.numpy.bfloat16 if gpu else jax.numpy.float32)
    multiply = jax.jit(jax.numpy.matmul)
    return lambda: multiply(a, a).block_until_ready()


def accelerator() -> str | None:
    """The name of the GPU that PyTorch or JAX would use."""
    torch, jax = _library("torch"), _library("jax")
    if torch is not None and torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return None if jax is None or jax.default_backend() == "cpu" else jax.devices()[0].device_kind


def _convolution(image: int, channels: int, batch: int) -> Callable[[], Any] | None:
    """A 3x3 convolution in PyTorch with channels last, for which oneDNN has special CPU kernels."""
    torch = _library("torch")
    if torch is None:
        return None
    x = torch.rand((batch, channels, image, image)).to(memory_format=torch.channels_last)
    weight = torch.rand((channels, channels, 3, 3)).to(memory_format=torch.channels_last)

    def run() -> None:
        with torch.inference_mode():
            torch.nn.functional.conv2d(x, weight, padding=1)

    return run


SIZES, ACCELERATED_SIZES = (1024, 2048, 4096), (4096, 8192)
CONVOLUTIONS = ((32, 64, 32), (16, 128, 64))
"""Rows and columns, channels, and batch."""


def works(gpu: bool, quick: bool = False) -> dict[str, tuple[float, Callable[[], Callable[[], Any] | None]]]:
    """The operations to try: the number of floating-point operations, and a function that prepares the call.

    That function returns None if its library is missing.
    """
    kind = "bf16" if gpu else "f32"
    engines = {"XLA": _jax, "PyTorch": _torch} | ({} if gpu else {"NumPy": _numpy})
    found: dict[str, tuple[float, Callable[[], Callable[[], Any] | None]]] = {}
    for size in (ACCELERATED_SIZES if gpu else SIZES)[: 1 if quick else None]:
        for name, engine in engines.items():
            found[f"{name}, {kind} product of {size}^3"] = 2.0 * size**3, partial(engine, size)
    for image, channels, batch in () if gpu else CONVOLUTIONS:
        flops = 2.0 * batch * image**2 * 9 * channels**2
        name = f"PyTorch, 3x3 convolution of {image}x{image}x{channels}"
        found[name] = flops, partial(_convolution, image, channels, batch)
    return found


def measured(quick: bool = False) -> Machine:
    """Measure everything for 0.4 s each; `quick`: only the smallest products, for a shorter time."""
    seconds = 0.1 if quick else 0.4
    gpu = accelerator()
    seen: dict[str, float] = {}
    for name, (flops, make) in works(gpu is not None, quick).items():
        run = make()
        if run is not None:
            seen[name] = flops / _middle(run, seconds)
    copied, triad = _memory(2 * seconds)
    return highest(Machine(_processor(), os.cpu_count() or 1, 0.0, "", copied, triad, gpu, seen))


def highest(machine: Machine) -> Machine:
    """The machine with its highest measured rate as the peak."""
    fastest = max(machine.seen, key=lambda name: machine.seen[name])
    return dataclasses.replace(machine, flops=machine.seen[fastest], fastest=fastest)


def _memory(seconds: float) -> tuple[float, float]:
    """Memory rates by PyTorch, whose loops use all cores, on arrays much larger than the caches; otherwise by NumPy."""
    elements = 1 << 26
    torch = _library("torch")
    if torch is None:
        a, b = np.ones(elements, np.float32), np.ones(elements, np.float32)
        return 2 * a.nbytes / _middle(lambda: np.copyto(b, a), seconds), float("nan")
    a, b, out = (torch.ones(elements) for _ in range(3))
    size = 4.0 * elements
    copied = 2 * size / _middle(lambda: out.copy_(a), seconds)
    return copied, 3 * size / _middle(lambda: torch.add(a, b, alpha=3.0, out=out), seconds)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def better(a: Machine, b: Machine) -> Machine:
    """The higher rates of two measurements, because a busy machine is slower than its peak."""
    seen = {name: max(a.seen.get(name, 0.0), b.seen.get(name, 0.0)) for name in [*a.seen, *b.seen]}
    return highest(dataclasses.replace(a, copied=max(a.copied, b.copied), triad=max(a.triad, b.triad), seen=seen))


def in_a_process_of_its_own(*, quick: bool = False) -> Machine:
    """Measure in a new process, so that this process imports no libraries."""
    command = [sys.executable, "-m", "benchmarks.arena.machine", *["quick"] * quick]
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    return Machine(**json.loads(found.stdout.splitlines()[-1]))


if __name__ == "__main__":
    print(json.dumps(dataclasses.asdict(measured(quick="quick" in sys.argv))))

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# The other libraries are installed only for the benchmarks.
"""The memory of saving and loading a model of 1 GB, beyond the model, relative to the size of its largest tensor.

For each backend, precision and format, a process creates a model, saves it, loads the file into that model, and then
into a new one. Another process reads its resident memory every millisecond. The figure is the peak over the memory
before, without the model itself if a new one is loaded. It counts anonymous memory (RssAnon); for information, also the
pages of mapped files, which the system can reclaim at any time.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Ratio, quick
from benchmarks.weights import SMALL_WIDTH, WIDTH, Weights, module_of, shapes

BACKENDS = ("numpy", "torch", "jax")
PRECISIONS = ("f32", "f16", "bf16", "f64")
FORMATS = ("safetensors", "msgpack", "phlox")
MORE = (("numpy", "f32", "json"), ("numpy", "f32", "safetensors.zst"))
"""Formats that are read completely, by design: shown for information."""


def run() -> list[Ratio]:
    """All rows of the table."""
    width = SMALL_WIDTH if quick() else WIDTH
    rows: list[Ratio] = []
    with tempfile.TemporaryDirectory() as folder:
        for backend, precision, format in (*itertools.product(BACKENDS, PRECISIONS, FORMATS), *MORE):
            rows += _measured(backend, precision, format, width, Path(folder))
    return rows


def _measured(backend: str, precision: str, format: str, width: int, folder: Path) -> list[Ratio]:
    file = folder / f"saved.{format}"
    command = [sys.executable, "-m", "benchmarks.record_memory", backend, precision, str(width), str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None and child.stdout is not None
        rows: list[Ratio] = []
        for line in child.stdout:
            step = json.loads(line)
            before = _resident(child.pid)
            peak, done = list(before), threading.Event()
            watch = threading.Thread(target=_watch, args=(child.pid, peak, done))
            watch.start()
            print("go", file=child.stdin, flush=True)
            reply = child.stdout.readline()
            done.set()
            watch.join()
            if not reply:
                break
            largest, models = step["largest"], json.loads(reply)["models"]
            for kind, high, low, model in zip(("anonymous", "resident"), peak, before, models, strict=True):
                beyond = max(high - low - model, 0)
                asked = 1.0 if kind == "anonymous" and (backend, precision, format) not in MORE else None
                subject, ratio = f"{kind} memory beyond the model", beyond / largest
                sizes = (beyond * 1e6, largest * 1e6, ratio, ratio, ratio)
                workload = f"{step['what']}, {format}, {precision}, {backend}"
                rows.append(Ratio(workload, subject, "largest tensor", *sizes, asked, measure="bytes"))
    if child.returncode:
        raise RuntimeError(f"{' '.join(command)} failed")
    file.unlink()
    return rows


def _watch(pid: int, peak: list[int], done: threading.Event) -> None:
    while not done.is_set():
        peak[:] = map(max, peak, _resident(pid))
        time.sleep(0.001)


def _resident(pid: int) -> tuple[int, int]:
    """Bytes of anonymous memory, and of anonymous and mapped memory together."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    anonymous, resident = (int(text.split(f"{key}:")[1].split()[0]) * 1024 for key in ("RssAnon", "VmRSS"))
    return anonymous, resident


# --- the measured process


def child(backend: str, precision: str, width: int, file: Path) -> None:
    """Announce each action, wait, run it, and report the size of the model."""
    import phlox as px
    from phlox.backend import backend_by_name

    device = backend_by_name(backend).device()
    sizes = shapes(width)
    pattern = np.random.default_rng(0).standard_normal(1 << 16, np.float32) * np.float32(0.02)
    models = [module_of({name: np.resize(pattern, shape) for name, shape in sizes.items()}, device)]
    total = sum(4 * int(np.prod(shape)) for shape in sizes.values())
    largest = max(4 * int(np.prod(shape)) for shape in sizes.values())
    settings = px.record.PrecisionSettings(float=precision)  # pyright: ignore[reportArgumentType]

    def step(what: str, run: Callable[[], Any], *, anonymous: int = 0, resident: int = 0) -> None:
        _settle()
        print(json.dumps({"what": what, "largest": largest}), flush=True)
        input()
        result = run()
        print(json.dumps({"models": (anonymous, resident)}), flush=True)
        del result

    def load(into: Weights) -> Weights:
        into.load_record(px.record.load(file))
        return into

    first = models[0].w["norm"].val().numpy().copy()
    step("save", lambda: px.record.save(models[0].into_record(), file, settings))
    step("load into a model that has values", lambda: load(models[0]))
    np.testing.assert_allclose(models[0].w["norm"].val().numpy(), first, atol=1e-3)
    models.clear()
    mapped = backend == "numpy" and precision == "f32" and file.suffix not in (".json", ".zst")
    step("load", lambda: load(Weights(sizes, device)), anonymous=0 if mapped else total, resident=total)


def _settle() -> None:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    time.sleep(0.05)
    os.sync()


if __name__ == "__main__":
    child(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# The other libraries are installed only for the benchmarks.
"""From the start of a process to its first prediction: time, and the largest resident size until then.

A model of 10 MB (an MLP) and a batch of one; each contestant runs in new processes, in alternating rounds. Files are in
the page cache. All Python is compiled to bytecode first, as after an installation: an untimed run writes missing files.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import predict
from benchmarks.harness import Ratio, compare, quick

PEERS = ("torch", "jax", "keras", "onnxruntime", "numpy")
ASKED = 0.25
OF_THESE = ("torch", "jax", "keras")
"""The target is relative to the best of these; the others are shown for comparison."""


def run() -> list[Ratio]:
    """All rows of the table."""
    with tempfile.TemporaryDirectory() as folder:
        # Keras takes as long as all others together.
        names = ("phlox", *(name for name in PEERS if name != "keras" or not quick()))
        _write(folder, keras="keras" in names)
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        first = {name: _predict(name, folder, environment)["sum"] for name in names}
        for name in names[1:]:
            np.testing.assert_allclose(first[name], first["phlox"], rtol=1e-3)
        times: dict[str, list[float]] = {name: [] for name in names}
        sizes: dict[str, list[float]] = {name: [] for name in names}
        for turn in range(2 if quick() else 5):
            for name in names if turn % 2 == 0 else reversed(names):
                found = _predict(name, folder, environment)
                times[name].append(found["seconds"])
                sizes[name].append(found["kib"] * 1024)
    return [
        *_rows("time to the first prediction", times),
        *_rows("peak memory to the first prediction", sizes, "bytes"),
    ]


def _rows(workload: str, figures: dict[str, list[float]], measure: str = "seconds") -> list[Ratio]:
    best = min((name for name in OF_THESE if name in figures), key=lambda name: statistics.median(figures[name]))
    return [
        compare(workload, figures, "phlox", peer, target=ASKED if peer == best else None, measure=measure)
        for peer in PEERS
        if peer in figures
    ]


def _predict(name: str, folder: str, environment: dict[str, str]) -> dict[str, Any]:
    command = [sys.executable, predict.__file__, name, folder]
    start = time.monotonic()
    done = subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE)
    found = json.loads(done.stdout.splitlines()[-1])
    return {**found, "seconds": found["ready"] - start}


def _write(folder: str, *, keras: bool) -> None:
    """The same model as each contestant's file."""
    rng = np.random.default_rng(0)
    layers: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = []
    for a, b in pairwise(predict.SIZES):
        layers.append(((rng.normal(size=(a, b)) / a**0.5).astype(np.float32), rng.normal(size=b).astype(np.float32)))
    _write_records(layers, folder)
    if keras:
        _write_keras(layers, folder)
    _write_onnx(layers, Path(folder) / "model.onnx")


def _write_records(layers: list[Any], folder: str) -> None:
    import torch
    from safetensors.numpy import save_file

    from phlox.record import Record, save

    plain: dict[str, Any] = {}
    for i, (weight, bias) in enumerate(layers):
        plain |= {f"{i}.weight": weight, f"{i}.bias": bias}
    save_file(plain, f"{folder}/plain.safetensors")
    save(Record({f"layers.{name}": array for name, array in plain.items()}), f"{folder}/phlox.safetensors")
    # In a Sequential of linear layers with activations between them; torch keeps weights transposed.
    state = {f"{2 * int(name[0])}{name[1:]}": torch.from_numpy(array.T.copy()) for name, array in plain.items()}
    torch.save(state, f"{folder}/torch.pt")


def _write_keras(layers: list[Any], folder: str) -> None:
    program = f"""
import keras, numpy
arrays = numpy.load({folder + "/arrays.npz"!r})
sizes = {predict.SIZES}
layers = [keras.layers.Dense(n, activation="relu" if i < {len(layers) - 1} else None) for i, n in enumerate(sizes[1:])]
model = keras.Sequential([keras.Input((sizes[0],)), *layers])
model.set_weights([arrays[f"arr_{{i}}"] for i in range({2 * len(layers)})])
model.save({folder + "/model.keras"!r})
"""
    np.savez(f"{folder}/arrays.npz", *[array for layer in layers for array in layer])
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, "KERAS_BACKEND": "jax"})


def _write_onnx(layers: list[Any], path: Path) -> None:
    from onnx import TensorProto, helper, numpy_helper

    nodes: list[Any] = []
    arrays: list[Any] = []
    name = "x"
    for i, (weight, bias) in enumerate(layers):
        arrays += [numpy_helper.from_array(weight, f"w{i}"), numpy_helper.from_array(bias, f"b{i}")]
        nodes.append(helper.make_node("Gemm", [name, f"w{i}", f"b{i}"], [f"h{i}"]))
        name = f"h{i}"
        if i < len(layers) - 1:
            nodes.append(helper.make_node("Relu", [name], [f"r{i}"]))
            name = f"r{i}"
    ends = [
        helper.make_tensor_value_info(end, TensorProto.FLOAT, [1, size])
        for end, size in (("x", predict.SIZES[0]), (name, predict.SIZES[-1]))
    ]
    graph = helper.make_graph(nodes, "mlp", ends[:1], ends[1:], arrays)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())

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
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import predict
from benchmarks.harness import Ratio, built, compare, in_turn, quick
from benchmarks.rows import output_of

PEERS = ("torch", "jax", "keras", "onnxruntime", "numpy")
ASKED = 0.25
NAMES = ("weight", "bias")
OF_THESE = ("torch", "jax", "keras")
"""The target is relative to the best of these; the others are shown for comparison."""


def run() -> list[Ratio]:
    """All rows of the table."""
    with tempfile.TemporaryDirectory() as folder:
        # Keras takes as long as all others together.
        names = ("phlox", *(name for name in PEERS if name != "keras" or not quick()))
        layers = _layers()
        first = built({name: partial(_first, name, layers, folder) for name in names})
        for prediction in first.values():
            np.testing.assert_allclose(prediction, next(iter(first.values())), rtol=1e-3)
        sizes: dict[str, list[float]] = {name: [] for name in first}

        def seconds(name: str) -> float:
            found = _predict(name, folder)
            sizes[name].append(found["kib"] * 1024)
            return found["seconds"]

        times = in_turn({name: partial(seconds, name) for name in first}, range(2 if quick() else 5))
    return [
        *_rows("time to the first prediction", names[1:], times),
        *_rows("peak memory to the first prediction", names[1:], {name: sizes[name] for name in times}, "bytes"),
    ]


def _rows(
    workload: str, peers: Sequence[str], figures: dict[str, list[float]], measure: str = "seconds"
) -> list[Ratio]:
    there = [name for name in OF_THESE if name in figures]
    best = min(there, key=lambda name: statistics.median(figures[name]), default=None)
    return [
        compare(workload, figures, "phlox", peer, target=ASKED if peer == best else None, measure=measure)
        for peer in peers
    ]


def _first(name: str, layers: list[Any], folder: str) -> float:
    """The sum of what a contestant predicts from the file that is written for it."""
    WRITERS[name](layers, folder)
    return _predict(name, folder)["sum"]


def _predict(name: str, folder: str) -> dict[str, Any]:
    command = [sys.executable, predict.__file__, name, folder]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = time.monotonic()
    done = output_of(command, environment)
    found = json.loads(done.splitlines()[-1])
    return {**found, "seconds": found["ready"] - start}


def _layers() -> list[Any]:
    """The weights and the biases of the model, the same for all."""
    rng = np.random.default_rng(0)
    return [
        ((rng.normal(size=(a, b)) / a**0.5).astype(np.float32), rng.normal(size=b).astype(np.float32))
        for a, b in pairwise(predict.SIZES)
    ]


def _named(layers: list[Any]) -> dict[str, Any]:
    return {f"{i}.{name}": array for i, layer in enumerate(layers) for name, array in zip(NAMES, layer, strict=True)}


def _write_record(layers: list[Any], folder: str) -> None:
    from phlox.record import Record, save

    save(Record({f"layers.{name}": array for name, array in _named(layers).items()}), f"{folder}/phlox.safetensors")


def _write_plain(layers: list[Any], folder: str) -> None:
    from safetensors.numpy import save_file

    save_file(_named(layers), f"{folder}/plain.safetensors")


def _write_torch(layers: list[Any], folder: str) -> None:
    import torch

    # In a Sequential of linear layers with activations between them; torch keeps weights transposed.
    arrays = {f"{2 * int(name[0])}{name[1:]}": array for name, array in _named(layers).items()}
    torch.save({name: torch.from_numpy(array.T.copy()) for name, array in arrays.items()}, f"{folder}/torch.pt")


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
    output_of([sys.executable, "-c", program], {**os.environ, "KERAS_BACKEND": "jax"})


def _write_onnx(layers: list[Any], folder: str) -> None:
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
    Path(folder, "model.onnx").write_bytes(model.SerializeToString())


WRITERS: dict[str, Callable[[list[Any], str], None]] = {
    "phlox": _write_record, "torch": _write_torch, "jax": _write_plain, "keras": _write_keras,
    "onnxruntime": _write_onnx, "numpy": _write_plain,
}  # fmt: skip
"""Each writes the model as the file of a contestant."""

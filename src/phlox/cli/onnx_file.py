"""ONNX files on the command line: running them on a file of data, and listing their contents."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from phlox.cli.command import DONE
from phlox.errors import DataError, RecordError
from phlox.host.page import Page, Table, facts
from phlox.host.text import count, size, terminal_width
from phlox.record.patterns import selected

Arrays = dict[str, np.ndarray[Any, Any]]


def is_onnx(path: str) -> bool:
    """Is it an existing file with the suffix .onnx?"""
    return path.lower().endswith(".onnx") and Path(path).is_file()


# --- predict


def predict(model_path: str, file: str, device: str, out: str | None) -> int:
    """Run a model, and print the classes of its rows, or a summary of its outputs."""
    from phlox.interop.onnx import load

    model: Any = load(model_path, device=device)
    inputs, labels = _inputs(model, Path(file))
    result: Any = model(**inputs)
    outputs: dict[str, Any] = result if len(model.outputs) > 1 else {model.outputs[0].name: result}
    arrays: Arrays = {name: x.numpy() for name, x in outputs.items() if hasattr(x, "numpy")}
    if out is not None:
        with Path(out).open("wb") as stream:
            np.savez(stream, **_savable(arrays))
        print(f"{out}: {', '.join(arrays)}")
        return DONE
    first: np.ndarray[Any, Any] = next(iter(arrays.values()), np.empty((0, 0)))
    if len(arrays) == 1 and first.ndim == 2 and first.dtype.kind == "f" and first.shape[1] > 1 and len(first):
        from phlox.cli.predict import print_classes

        best = [f"{value:.4g}" for value in first.max(axis=-1).tolist()]
        print_classes("class", first.argmax(axis=-1), best, "value", labels)
        return DONE
    rows = [[name, str(array.dtype), str(array.shape), *_range(array)] for name, array in arrays.items()]
    table = Table(["output", "type", "shape", "min", "max", "mean"], rows, 3)
    print(Page("", parts=[table]).text(terminal_width()))
    return DONE


def _savable(arrays: Arrays) -> dict[str, Any]:
    return {name.replace("/", "."): array for name, array in arrays.items()}


def _range(values: np.ndarray[Any, Any]) -> list[str]:
    if not values.size:
        return ["-", "-", "-"]
    return [f"{float(value):.4g}" for value in (values.min(), values.max(), values.mean())]


def _inputs(model: Any, path: Path) -> tuple[Arrays, Any]:
    """The inputs of a model from a file, by name, and the labels in it, if it has any."""
    names = [value.name for value in model.inputs]
    if path.suffix == ".npy":
        if len(names) != 1:
            raise DataError(f"{path}: is one array, and the model takes {_described(model)}; give an .npz of them")
        return {names[0]: _as_input(model.inputs[0], _load_arrays(path))}, None
    if path.suffix == ".npz":
        arrays: Any = _load_arrays(path)
        labels = arrays.get("labels")
        by_name = {value.name: _as_input(value, arrays[value.name]) for value in model.inputs if value.name in arrays}
        if by_name:
            return by_name, labels
        if (size := _image_size(model)) is None:
            keys = ", ".join(arrays) or "nothing"
            raise DataError(f"{path}: holds {keys}; the model takes {_described(model)}: name the arrays so")
    elif (size := _image_size(model)) is None:
        raise DataError(f"{path}: the model takes {_described(model)}; give an .npz with arrays of these names")
    from phlox.data import read_images

    images = read_images(path, size=size)
    return {names[0]: images.images}, images.labels


def _load_arrays(path: Path) -> Any:
    try:
        content: Any = np.load(path, allow_pickle=False)
        return dict(content) if path.suffix == ".npz" else content
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file; check the path") from None
    except Exception as error:
        raise DataError(f"{path}: cannot be read as an array of NumPy ({error})") from None


def _as_input(value: Any, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An array for an input; integers and booleans become floats if the input takes floats."""
    from phlox.interop.onnx.elements import FLOATS

    return array.astype(np.float32) if value.element in FLOATS and array.dtype.kind in "iub" else array


def _image_size(model: Any) -> tuple[int, int] | None:
    """The height and width of the images of one channel that a model takes, if it takes such images."""
    shape = model.inputs[0].shape if len(model.inputs) == 1 else None
    if shape is None or len(shape) != 4 or shape[1] != 1 or isinstance(shape[2], str) or isinstance(shape[3], str):
        return None
    return shape[2], shape[3]


def _described(model: Any) -> str:
    return "; ".join(map(str, model.inputs)) or "no inputs"


# --- inspect


def inspect(path: str, options: argparse.Namespace) -> int:
    """Print the contents of an ONNX file; unknown operators are marked."""
    from phlox.interop.onnx.reading import Tensors, read_model
    from phlox.interop.onnx.summary import summary_of

    proto, folder, name = read_model(path)
    summary = summary_of(proto, Tensors(folder, name))
    shown = summary.initializers
    if options.pattern:
        matching = selected(options.pattern, [entry.name for entry in shown])
        shown = [entry for entry in shown if entry.name in matching]
    if options.stats or options.verify:
        raise RecordError(f"{path}: --stats and --verify are of records; an ONNX file has no checksums")
    if options.sort is not None:
        shown = sorted(shown, key=lambda entry: entry.name if options.sort == "name" else -entry.bytes)
    if options.json:
        print(json.dumps(summary.as_json(path, shown[: options.limit]), indent=2))
        return DONE
    counts = Counter(summary.operators)
    marked = [f"{name} {number}{' (unknown)' * (name in summary.unknown)}" for name, number in counts.most_common()]
    pairs = [
        ("File", path),
        ("Format", f"ONNX, IR version {summary.ir_version}"),
        ("Operator sets", ", ".join(f"{domain} {version}" for domain, version in summary.opsets.items())),
        ("Written by", summary.producer or "unknown"),
        *(("Input", text) for text in summary.inputs),
        *(("Output", text) for text in summary.outputs),
        ("Operators", ", ".join(marked)),
    ]
    rows = [[entry.name, str(entry.shape), entry.type, size(entry.bytes)] for entry in shown]
    total = f"Total: {count(len(shown), 'initializer')}, {size(sum(entry.bytes for entry in shown))}"
    table = Table(["initializer", "shape", "type", "bytes"], rows, 3, options.limit)
    print(Page("", parts=[facts(pairs), table, total]).text(terminal_width()))
    return DONE

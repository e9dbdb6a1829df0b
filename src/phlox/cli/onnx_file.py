"""ONNX files on the command line: running them on a file of data, and listing their contents."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

from phlox.cli.arrays import Input, print_outputs, read_inputs
from phlox.cli.command import DONE
from phlox.errors import RecordError
from phlox.host.page import Page, Table, facts
from phlox.host.text import count, size, terminal_width
from phlox.record.patterns import selected


def is_onnx(path: str) -> bool:
    """Is it an existing file with the suffix .onnx?"""
    return path.lower().endswith(".onnx") and Path(path).is_file()


# --- predict


def predict(model_path: str, file: str, device: str, out: str | None) -> int:
    """Run a model, and print the classes of its rows, or a summary of its outputs."""
    from phlox.interop.onnx import load
    from phlox.interop.onnx.elements import FLOATS

    model: Any = load(model_path, device=device)
    arguments = [Input(value.name, value.shape, value.element in FLOATS, str(value)) for value in model.inputs]
    inputs, labels = read_inputs(arguments, Path(file))
    result: Any = model(**inputs)
    outputs: dict[str, Any] = result if len(model.outputs) > 1 else {model.outputs[0].name: result}
    return print_outputs({name: x.numpy() for name, x in outputs.items() if hasattr(x, "numpy")}, labels, out)


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

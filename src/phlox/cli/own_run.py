"""The model of a user's own run on the command line: predict with it, verify it, and give it to other commands."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from phlox.cli.arrays import Input, print_outputs, read_inputs
from phlox.cli.command import DIFFERENT, DONE
from phlox.errors import RunError

_OF_DEMO = "phlox.models.digits:DigitsNet"
_TOLERANCE = {"f64": 1e-4, "f32": 1e-4, "bf16": 0.05, "f16": 0.01}
"""By precision, the largest difference from the saved outputs, relative to the largest of them."""


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Declare the argument that allows a run's own classes."""
    parser.add_argument(
        "--trust", action="store_true", help="define the classes of the run's program by running its model.py"
    )


def is_own(folder: str | Path) -> bool:
    """Is it the folder of a run other than those of `phlox demo`, which says how its model is made?"""
    try:
        content: Any = json.loads((Path(folder) / "architecture.json").read_text(encoding="utf-8"))
        return any(model.get("module", model)["class"] != _OF_DEMO for model in content["models"].values())
    except OSError:
        return False
    except (ValueError, AttributeError, TypeError, KeyError, RecursionError):  # damaged, which is said later
        return not (Path(folder) / "predictions.npz").exists()


def run_model(options: argparse.Namespace, folder: str, device: Any) -> Any:
    """The model of the run."""
    from phlox.train.observers.folder.run_model import RunModel

    return RunModel(folder, device, trust=options.trust)


def inputs_of(run: Any) -> list[Input]:
    """The inputs of the model by name; `RunError` if the run does not say how it is called."""
    run.arguments(run.inputs)
    return [
        Input(name, ("rows", *x.shape[1:]), x.dtype.kind == "f", f"{name}: {x.dtype}, rows of shape {x.shape[1:]}")
        for name, x in run.inputs.items()
    ]


def predict(options: argparse.Namespace) -> int:
    """Compute the outputs for the inputs in a file."""
    run = run_model(options, options.model, options.device)
    arrays, labels = read_inputs(inputs_of(run), Path(options.file))
    if missing := [name for name in run.inputs if name not in arrays]:
        raise RunError(f"{options.file}: has no array {missing[0]}; the model takes {', '.join(run.inputs)}")
    outputs = run(arrays)
    names = [f"output{number}" for number in range(len(outputs))]
    return print_outputs(dict(zip(names, outputs, strict=True)), labels, options.out)


def verify(options: argparse.Namespace) -> int:
    """Compare the outputs for the sample of the run with those after its training."""
    run = run_model(options, options.run_folder, options.device)
    print(f"model built from the files of the run on {run.device}; no initializer and no constructor ran")
    if not run.outputs:
        run.arguments(run.inputs)
        raise RunError(f"{run.path}: its sample has no outputs to compare with")
    allowed = _TOLERANCE[run.device.backend.float_element]
    differences = [
        float(np.abs(np.asarray(got, np.float64) - was).max(initial=0.0) / max(np.abs(was).max(initial=0.0), 1e-30))
        for got, was in zip(run(run.inputs), run.outputs, strict=True)
    ]
    print(f"largest difference of the outputs for {len(run.outputs[0])} rows: {max(differences):.1e} of the largest")
    if max(differences) <= allowed:
        return DONE
    print(f"phlox: {run.path}: the outputs differ by more than {allowed:g}, which rounding explains", file=sys.stderr)
    return DIFFERENT


def export_inputs(run: Any) -> list[tuple[str, str, tuple[int | str, ...]]]:
    """The inputs of the model as `phlox export` takes them: name, kind and sizes."""
    specs = run.specs()
    if not all(hasattr(spec, "shape") for spec in specs):
        raise RunError(f"{run.path}: the inputs of its model are nested; give --input for each")
    return [(f"x{number or ''}", spec.kind.name, spec.shape) for number, spec in enumerate(specs)]

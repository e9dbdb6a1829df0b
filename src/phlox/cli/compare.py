"""`phlox compare`: the model of a run on several engines, layer by layer."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from phlox.cli.arrays import read_inputs
from phlox.cli.command import DIFFERENT, DONE, Command, whole
from phlox.cli.diff import tolerance
from phlox.cli.own_run import add_trust, inputs_of, is_own, run_model
from phlox.cli.records import plain


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("run_folder", metavar="RUN_DIR", help="the folder of the run")
    parser.add_argument(
        "--on",
        required=True,
        metavar="A,B,...",
        help="engines, such as numpy:f64,jax,torch:bf16, or ONNX files; the first is the reference",
    )
    parser.add_argument("--file", metavar="FILE", help="inputs as for predict (default: those that the run has saved)")
    parser.add_argument("--images", type=whole, default=16, metavar="N", help="number of rows (default: 16)")
    parser.add_argument(
        "--tolerance",
        type=tolerance,
        default=1e-3,
        metavar="X",
        help="largest difference, relative to a layer's largest magnitude (default: 1e-3)",
    )
    parser.add_argument("--no-gradients", action="store_true", help="compare only the outputs of layers")
    parser.add_argument("--html", metavar="FILE", help="also write the comparison as an HTML page")
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    add_trust(parser)


def run(options: argparse.Namespace) -> int:
    """Run the command, and return the exit status."""
    from phlox.data import read_images
    from phlox.debug import compare
    from phlox.models import DigitsRun

    model: Any
    inputs: Any
    if is_own(options.run_folder):
        own = run_model(options, options.run_folder, "numpy")
        rows = own.inputs if options.file is None else read_inputs(inputs_of(own), Path(options.file))[0]
        model, inputs = own.model, own.arguments({name: x[: max(options.images, 1)] for name, x in rows.items()})
    else:
        of_run = DigitsRun(options.run_folder, "numpy")
        file = options.file or of_run.path / "predictions.npz"
        images = read_images(file, size=of_run.recipe.model.size).images
        model, inputs = of_run.model, [images[: max(options.images, 1)]]
    backends = [name.strip() for name in options.on.split(",") if name.strip()]
    comparison = compare(
        model,
        inputs,
        backends,
        tolerance=options.tolerance,
        gradients=not options.no_gradients,
    )
    if options.html is not None:
        comparison.to_html(options.html)
    if options.json:
        named = {"reference": comparison.reference, "agree": comparison.ok, "first_beyond": comparison.first_beyond()}
        print(json.dumps(plain({**named, "rows": comparison.rows}), indent=2, allow_nan=False))
    else:
        print(comparison)
    return DONE if comparison.ok else DIFFERENT


COMMAND = Command(
    description="Run the model of a run on several engines, and compare each layer, value and gradient, with the first "
    "engine. The exit status is 1 if a layer differs by more than the tolerance; the first such layer is named.",
    arguments=arguments,
    run=run,
)

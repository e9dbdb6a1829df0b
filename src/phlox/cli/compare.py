"""`phlox compare`: the model of a run on several engines, layer by layer."""

from __future__ import annotations

import argparse
import json

from phlox.cli.command import DIFFERENT, DONE, Command, whole
from phlox.cli.diff import tolerance
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
    parser.add_argument("--file", metavar="FILE", help="8x8 images (default: predictions.npz of the run)")
    parser.add_argument("--images", type=whole, default=16, metavar="N", help="number of images (default: 16)")
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


def run(options: argparse.Namespace) -> int:
    """Run the command, and return the exit status."""
    from phlox.data import read_images
    from phlox.debug import compare
    from phlox.models import DigitsRun

    of_run = DigitsRun(options.run_folder, "numpy")
    file = options.file or of_run.path / "predictions.npz"
    images = read_images(file, size=of_run.recipe.model.size).images
    backends = [name.strip() for name in options.on.split(",") if name.strip()]
    comparison = compare(
        of_run.model,
        [images[: max(options.images, 1)]],
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

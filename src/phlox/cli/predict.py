"""`phlox predict`: classify images from a file, or compute an ONNX file."""

from __future__ import annotations

import argparse

from phlox.cli.arrays import print_classes
from phlox.cli.command import DONE, Command
from phlox.cli.own_run import add_trust, is_own
from phlox.cli.own_run import predict as predict_own
from phlox.errors import DataError


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("model", metavar="RUN_DIR|MODEL.onnx", help="the folder of a run, or an ONNX file")
    parser.add_argument(
        "file",
        metavar="FILE",
        help="an .npz of inputs by name, or an .npy; for images also .csv or .png",
    )
    parser.add_argument("--device", default="numpy", metavar="NAME", help="numpy (default), jax, torch, ...")
    parser.add_argument("--out", metavar="FILE.npz", help="write the outputs to this file, by name")
    add_trust(parser)


def run(options: argparse.Namespace) -> int:
    """Run the command, and return the exit status."""
    if options.model.lower().endswith(".onnx"):
        from phlox.cli.onnx_file import predict

        return predict(options.model, options.file, options.device, options.out)
    if is_own(options.model):
        return predict_own(options)
    if options.out is not None:
        raise DataError("--out: writes outputs of an ONNX file or of your own run; the demo's predictions are printed")
    from phlox.data import read_images
    from phlox.models import DigitsRun

    digits = DigitsRun(options.model, options.device)
    data = read_images(options.file, size=digits.recipe.model.size)
    probabilities = digits.predict(data.images)
    classes, best = probabilities.argmax(axis=-1), probabilities.max(axis=-1)
    print_classes(
        "digit", classes, [f"{probability:.1%}" for probability in best.tolist()], "probability", data.labels, "image"
    )
    return DONE


COMMAND = Command(
    description="Run the model of a run, or an ONNX file, on the inputs in a file: print the class of each row, and "
    "the accuracy if the file has labels; or the ranges of other outputs.",
    arguments=arguments,
    run=run,
)

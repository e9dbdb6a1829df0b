"""`phlox predict`: classify images from a file, or compute an ONNX file."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from phlox.cli.command import DONE, Command
from phlox.errors import DataError
from phlox.host.page import Page, Table


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("model", metavar="RUN_DIR|MODEL.onnx", help="the folder of a run, or an ONNX file")
    parser.add_argument(
        "file", metavar="FILE", help="images: .npz, .csv or .png; for an ONNX file also .npy, or .npz of inputs by name"
    )
    parser.add_argument("--device", default="numpy", metavar="NAME", help="numpy (default), jax, torch, ...")
    parser.add_argument("--out", metavar="FILE.npz", help="write the outputs of an ONNX file to this file, by name")


def run(options: argparse.Namespace) -> int:
    """Run the command, and return the exit status."""
    if options.model.lower().endswith(".onnx"):
        from phlox.cli.onnx_file import predict

        return predict(options.model, options.file, options.device, options.out)
    if options.out is not None:
        raise DataError("--out: writes the outputs of an ONNX file; the model of a run prints its predictions")
    from phlox.data import read_images
    from phlox.models import DigitsRun

    digits = DigitsRun(options.model, options.device)
    data = read_images(options.file, size=digits.recipe.model.size)
    probabilities = digits.predict(data.images)
    classes, best = probabilities.argmax(axis=-1), probabilities.max(axis=-1)
    print_classes("digit", classes, [f"{probability:.1%}" for probability in best.tolist()], "probability", data.labels)
    return DONE


def print_classes(noun: str, classes: Any, values: Sequence[str], value_name: str, labels: Any) -> None:
    """A line for each image: its class, a value of it, and its label if there are labels; and the accuracy."""
    rows = [[str(index), str(cls), value] for index, (cls, value) in enumerate(zip(classes, values, strict=True))]
    for row, cls, label in zip(rows, classes, [] if labels is None else labels, strict=False):
        row += [str(label), "wrong" if label != cls else ""]
    print(Page("", parts=[Table(["image", noun, value_name, "label", ""], rows, {4})]).text())
    if labels is not None:
        correct = int((classes == labels).sum())
        print(f"accuracy: {correct / len(classes):.2%} ({correct} of {len(classes)} images)")


COMMAND = Command(
    description="Classify images from a file with the model of a run: print the digit and its probability for "
    "each image, and the accuracy if the file has labels. Or run an ONNX file, with NumPy and the onnx package.",
    arguments=arguments,
    run=run,
)

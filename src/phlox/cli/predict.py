"""`phlox predict`: classify images from a file."""

from __future__ import annotations

import argparse

from phlox.cli.command import DONE, Command


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("run_folder", metavar="RUN_DIR", help="the folder of the run")
    parser.add_argument("file", metavar="FILE", help="8x8 images: .npz or .csv (values 0 to 16), or a .png")
    parser.add_argument("--device", default="numpy", metavar="NAME", help="numpy (default), jax, torch, ...")


def run(options: argparse.Namespace) -> int:
    """Run the command, and return the exit status."""
    from phlox.data import read_images
    from phlox.models import DigitsRun

    digits = DigitsRun(options.run_folder, options.device)
    given = read_images(options.file, size=digits.recipe.model.size)
    probabilities = digits.predict(given.images)
    classes, best = probabilities.argmax(axis=-1), probabilities.max(axis=-1)
    print("image  digit  probability" + ("  label" if given.labels is not None else ""))
    for number, (digit, probability) in enumerate(zip(classes.tolist(), best.tolist(), strict=True)):
        line = f"{number:5}  {digit:5}  {probability:11.1%}"
        if given.labels is not None:
            label = int(given.labels[number])
            line += f"  {label:5}" + ("  wrong" if label != digit else "")
        print(line)
    if given.labels is not None:
        correct = int((classes == given.labels).sum())
        print(f"accuracy: {correct / len(classes):.2%} ({correct} of {len(classes)} images)")
    return DONE


COMMAND = Command(
    description="Classify images from a file with the model of a run. Prints the digit and its probability for "
    "each image, and the accuracy if the file has labels.",
    arguments=arguments,
    run=run,
)

"""`phlox predict`: classify images from a file."""

from __future__ import annotations

import argparse

from phlox.data import read_images
from phlox.models import DigitsRun


def predict(options: argparse.Namespace) -> int:
    """Carry out the command, and return the exit status."""
    run = DigitsRun(options.run, options.device)
    given = read_images(options.file, size=run.recipe.model.size)
    probabilities = run.predict(given.images)
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
    return 0

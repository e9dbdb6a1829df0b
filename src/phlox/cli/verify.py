"""`phlox verify`: does a saved model still make the predictions that it made after training?"""

from __future__ import annotations

import argparse
import sys

from phlox.cli.command import DIFFERENT, DONE, Command
from phlox.cli.own_run import add_trust, is_own, verify


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("run_folder", metavar="RUN_DIR", help="the folder of the run")
    parser.add_argument("--device", default="numpy", metavar="NAME", help="numpy (default), jax, torch, ...")
    add_trust(parser)


def run(options: argparse.Namespace) -> int:
    """Run the command, and return the exit status."""
    if is_own(options.run_folder):
        return verify(options)
    from phlox.models import DigitsRun

    digits = DigitsRun(options.run_folder, options.device)
    result = digits.verify()
    ties = ", the others are ties within rounding" if result.ok and result.agreeing < result.images else ""
    print(f"model built from config and record on {digits.device}; no initializer ran")
    print(f"{result.agreeing} of {result.images} predictions agree{ties}")
    print(f"largest difference in probability: {result.largest_difference:.1e}")
    if result.ok:
        return DONE
    print(
        f"phlox: {digits.path}: the predictions differ by more than half precision explains; "
        "config, record and predictions are not from the same run",
        file=sys.stderr,
    )
    return DIFFERENT


COMMAND = Command(
    description="Build the model of a run from its config and record, and compare its predictions on the test images "
    "with the predictions that were saved after training. The exit status is 1 if they do not agree.",
    arguments=arguments,
    run=run,
)

"""`phlox demo`: train, test and save a model, and verify the saved model in a new process."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import phlox
from phlox.cli.command import DONE, Command
from phlox.host.text import terminal_width

if TYPE_CHECKING:
    from phlox.backend import Device
    from phlox.models import DigitsRecipe, DigitsTraining


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add("--device", default="numpy", metavar="NAME", help="numpy (default), jax, torch, torch:gpu:0, ...")
    add("--compile", action="store_true", help="compile each step into one program, if the engine can (jax)")
    add("--epochs", type=int, metavar="N", help="number of passes over the data (default: 80)")
    add("--seed", type=int, metavar="N", help="seed of the random numbers (default: 0)")
    add("--config", metavar="FILE", help="a config.json to use, from another run or your own")
    add("--out", default="runs/demo", metavar="DIR", help="where to save the run (default: runs/demo)")
    add("--resume", action="store_true", help="resume the interrupted run in DIR")
    add("--overwrite", action="store_true", help="replace the run in DIR, once the new one is complete")


def run(options: argparse.Namespace) -> int:
    """Run the command, and return the exit status."""
    from phlox.backend import as_device
    from phlox.models import DigitsTraining
    from phlox.models.recipe import CURVES, REPORT
    from phlox.train import RunFolder, progress

    recipe = _recipe(options)
    device = as_device(options.device)
    bar = progress(unit="images")
    bar.lines = 10
    training = DigitsTraining(recipe, device, compile=options.compile)
    with RunFolder(options.out, overwrite=options.overwrite, resume=options.resume) as folder:
        print(_headline(training, device, recipe.seed, compile=options.compile))
        print(
            _wrapped(f"Ctrl-C is safe: the run is saved, and --resume goes on. Open {folder.path / REPORT}"), flush=True
        )
        begun = perf_counter()
        try:
            path = training.run(folder, [bar])
        except KeyboardInterrupt:
            again = f"{program()} demo --out {options.out} --resume"
            raise KeyboardInterrupt(f"the run in {folder.path} was saved; go on with: {again}") from None
    last = training.learner.history[-1]
    tested = len(training.data.test_labels)
    correct = round(last.validation["accuracy"] * tested)
    print(f"Test accuracy: {correct / tested:.2%} ({correct} of {tested} images), {perf_counter() - begun:.1f} s")
    print(f"Saved in {path}:\n{_wrapped(' '.join(folder.files), '  ')}", flush=True)
    if CURVES not in folder.files:
        print(
            "The curves are in report.html; the extra 'train' draws curves.png too",
            flush=True,
        )
    status = _verify_in_new_process(path)
    if status == DONE:
        print(f"Try: {program()} predict {path} {path / 'predictions.npz'}")
    return status


def _recipe(options: argparse.Namespace) -> DigitsRecipe:
    from phlox.models import DigitsRecipe

    recipe = DigitsRecipe() if options.config is None else DigitsRecipe.load(options.config)
    changes = {"epochs": options.epochs, "seed": options.seed}
    return recipe.replace(**{name: value for name, value in changes.items() if value is not None})


def _headline(training: DigitsTraining, device: Device, seed: int, *, compile: bool) -> str:
    remark = "" if not compile else ", compiled" if device.backend.compiles else ", which cannot compile"
    images, tests = len(training.data.train_labels), len(training.data.test_labels)
    size = training.learner.model.num_params()
    return (
        f"Handwritten digits: {images:,} for training, {tests} for testing\n"
        f"Model: {size:,} parameters, on {device}{remark}, seed {seed}"
    )


def _wrapped(text: str, indent: str = "") -> str:
    """A text in lines that fit the terminal."""
    width = min(terminal_width() or 110, 110)
    return textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def program() -> str:
    """The command that started this program, for hints."""
    if Path(sys.argv[0]).name != "phlox":
        return "python -m phlox"
    return "phlox" if shutil.which("phlox") else sys.argv[0]


def _verify_in_new_process(path: Path) -> int:
    """Run `phlox verify` on the folder, print its output, and return its exit status."""
    environment: dict[str, Any] = {**os.environ}
    # Use the Phlox that this process imported, and import nothing from the current folder (-P).
    sources = [str(Path(phlox.__path__[0]).parent), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sources))
    command = [sys.executable, "-P", "-m", "phlox.cli", "verify", str(path.absolute())]
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    sys.stderr.write(finished.stderr)
    if finished.stdout:
        print("In a new process:\n" + textwrap.indent(finished.stdout, "  "), end="")
    return finished.returncode


COMMAND = Command(
    description="Train a small convolutional network on handwritten digits, test it on the fifth of the data that "
    "is kept for testing, save it, and check in a new process that the saved model makes the same predictions.",
    arguments=arguments,
    run=run,
)

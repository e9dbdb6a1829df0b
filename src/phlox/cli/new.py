"""`phlox new`: a project to begin with: a model, its training with settings, and tests."""

from __future__ import annotations

import argparse
from pathlib import Path

from phlox.cli.command import DONE, Command
from phlox.errors import RunError

_FILES = Path(__file__).parent / "project"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("folder", metavar="NAME", help="the folder to make; nothing that is there is replaced")


def run(options: argparse.Namespace) -> int:
    """Run the command, and return the exit status."""
    folder = Path(options.folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(f"{folder}: exists already, and is not an empty folder; give another name")
    files = sorted(_FILES.glob("*.txt"))
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        text = file.read_text(encoding="utf-8").replace("{{name}}", folder.resolve().name)
        (folder / file.stem).write_text(text, encoding="utf-8")
    print(f"{folder}: {', '.join(file.stem for file in files)}")
    print(f"Try: cd {folder} && python train.py")
    return DONE


COMMAND = Command(
    description="Make a project: a model, a program that trains it with settings and resumes, tests, and a README. It "
    "runs at once, on handwritten digits; put your model and your data in their place.",
    arguments=arguments,
    run=run,
)

"""Parses the command line, and turns errors into one sentence and an exit status."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence

from phlox.cli.command import DIFFERENT, INTERRUPTED, MISUSED, Parser, sentence_of
from phlox.errors import PhloxError
from phlox.host.text import printable
from phlox.version import __version__

COMMANDS = {
    "demo": "train a small convolutional network on handwritten digits",
    "chat": "talk to a language model in the terminal",
    "train-lm": "train a small language model, with its tokenizer, on a text file",
    "new": "make a project to begin with: a model, its training, tests",
    "predict": "classify images from a file with the model of a run, or compute an ONNX file",
    "serve": "serve a language model with OpenAI's protocol, or the predictions of another model",
    "export": "write a model as an ONNX file, run it, and show how far its results are from the model's",
    "verify": "check that a saved model still makes the predictions it made after training",
    "convert": "write a record in another format, precision or compression, or with other names",
    "inspect": "show the contents of a record file or an ONNX file",
    "diff": "show how two records differ",
    "runs": "list the runs under a folder, with their values and the settings that differ",
    "watch": "follow a run in the terminal",
    "launch": "run a program in several processes, on this host or several",
    "compare": "compare the model of a run on several engines, layer by layer",
    "report": "show runs side by side in one HTML page",
    "summary": "show the layers of a model, with their shapes, parameters and operations",
    "info": "show versions, engines, devices and caches",
    "backends": "show which operations each backend supports, and how",
    "plan": "compute what a training step costs each device of a mesh",
    "tune": "find the fastest settings for a program on this machine",
}
"""The commands in the order of the help, with one line about each.

Each is the `COMMAND` of the module of its name, with "_" for "-".
"""

REMEDIES = {
    "verify=False reads it": "--ignore-checksums reads it",
    "give the recorder or `load` a larger max_bytes": "give a larger --max-bytes",
    "use another precision, such as FULL, BFLOAT16 or PrecisionSettings(float=None)": "give another --precision",
    "use another precision, such as PrecisionSettings(int=None)": "give other --ints",
    "remap: ": "--rename: ",
    "allow it to run: trust=True": "allow it to run: --trust",
    " (a function that gives None for it)": " (--exclude)",
}
"""The remedy in an error for Python -> the remedy on the command line."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line (`sys.argv` if None) and return the exit status.

    0: done. 1: a comparison found a difference: in the predictions of `verify`, in the records of `diff`. 2: wrong
    input; one sentence on standard error says what, where, and what to do. 130: interrupted.
    """
    options = parser().parse_args(arguments)
    if (reconfigure := getattr(sys.stdout, "reconfigure", None)) is not None:
        reconfigure(errors="backslashreplace")  # names may contain characters that the terminal cannot show
    try:
        status = options.run(options)
        sys.stdout.flush()
    except KeyboardInterrupt as interruption:
        detail = f"; {interruption}" if str(interruption) else ""
        print(f"phlox: interrupted{detail}", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has closed the pipe; nothing more can be written, not even at exit.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DIFFERENT
    except (PhloxError, OSError) as error:
        print(f"phlox: {printable(_for_the_command_line(sentence_of(error)), keep=chr(10))}", file=sys.stderr)
        return MISUSED
    return status


def _for_the_command_line(sentence: str) -> str:
    for remedy, option in REMEDIES.items():
        sentence = sentence.replace(remedy, option)
    return sentence


def parser() -> Parser:
    """The parser of the command line."""
    top = Parser(prog="phlox", description="Deep learning: one model, any engine.", allow_abbrev=False)
    top.add_argument("--version", action="version", version=f"phlox {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, line in COMMANDS.items():
        commands.add_parser(name, help=line, allow_abbrev=False).module = f"phlox.cli.{name.replace('-', '_')}"
    return top

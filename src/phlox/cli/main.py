"""Reading the command line, and what becomes of errors: one sentence, and an exit status."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from phlox.errors import PhloxError
from phlox.version import __version__

FAILED, MISUSED, INTERRUPTED = 1, 2, 130


class Parser(argparse.ArgumentParser):
    """Reports a wrong option in one line, without the usage before it."""

    def error(self, message: str) -> NoReturn:
        self.exit(MISUSED, f"{self.prog}: {message}; see {self.prog} --help\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out a command line (`sys.argv` if None) and return the exit status.

    0: done. 1: the predictions of `verify` do not agree. 2: wrong input, and one sentence on the standard error says
    what, where, and what to do. 130: interrupted.
    """
    options = parser().parse_args(arguments)
    try:
        status = _run(options)
        sys.stdout.flush()
    except KeyboardInterrupt as interruption:
        detail = f"; {interruption}" if str(interruption) else ""
        print(f"phlox: interrupted{detail}", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read the output has seen enough; nothing more can be written, not even at the exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (PhloxError, OSError) as error:
        print(f"phlox: {error}", file=sys.stderr)
        return MISUSED
    return status


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    top = Parser(prog="phlox", description="Deep learning: one model, any engine.", allow_abbrev=False)
    top.add_argument("--version", action="version", version=f"phlox {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)

    demo = commands.add_parser(
        "demo",
        help="train a small convolutional network on handwritten digits",
        description="Train a small convolutional network on handwritten digits, test it on a fifth that it has not "
        "seen, save it, and check in a new process that what was saved predicts the same.",
        allow_abbrev=False,
    )
    demo.add_argument("--device", default="numpy", metavar="NAME", help="numpy (default), jax, torch, torch:gpu:0, ...")
    demo.add_argument("--compile", action="store_true", help="run each step as one program, where the engine can (jax)")
    demo.add_argument("--epochs", type=int, metavar="N", help="how often to go through the data (default: 80)")
    demo.add_argument("--seed", type=int, metavar="N", help="another seed, other weights (default: 0)")
    demo.add_argument("--config", metavar="FILE", help="a config.json to train by, from another run or your own")
    demo.add_argument("--out", default="runs/demo", metavar="DIR", help="where to save the run (default: runs/demo)")
    demo.add_argument("--overwrite", action="store_true", help="replace the run in DIR, once the new one is complete")

    predict = commands.add_parser(
        "predict",
        help="classify images from a file with the model of a run",
        description="Classify images from a file with the model of a run. Prints the digit and its probability for "
        "each, and the accuracy where the file has labels.",
        allow_abbrev=False,
    )
    predict.add_argument("run", metavar="RUN_DIR", help="the folder of the run")
    predict.add_argument("file", metavar="FILE", help="8x8 images: .npz or .csv (values 0 to 16), or a .png")
    predict.add_argument("--device", default="numpy", metavar="NAME", help="numpy (default), jax, torch, ...")

    verify = commands.add_parser(
        "verify",
        help="check that a saved model predicts what it did when it was trained",
        description="Build the model of a run from its config and record, and compare its predictions on the images "
        "tested on with those of the model that was trained. Exit status 1 if they do not agree.",
        allow_abbrev=False,
    )
    verify.add_argument("run", metavar="RUN_DIR", help="the folder of the run")
    verify.add_argument("--device", default="numpy", metavar="NAME", help="numpy (default), jax, torch, ...")

    backends = commands.add_parser(
        "backends",
        help="show which operations each backend has, and how",
        description="Print every operation of the contract by family and how each backend comes by it: native (a "
        "function of its own), derived (from other operations) or - (unsupported). At half precision, f32 marks what "
        "is computed in single precision and rounded once.",
        allow_abbrev=False,
    )
    backends.add_argument("--backend", action="append", metavar="NAME", help="only this one (may be given repeatedly)")
    backends.add_argument("--float", metavar="ELEMENT", help="float elements: f64, f32 (default), bf16 or f16")
    backends.add_argument("--int", metavar="ELEMENT", help="integer elements: i64 or i32 (default)")
    backends.add_argument("--markdown", action="store_true", help="as tables of Markdown")
    backends.add_argument("--into", metavar="FILE", help="write them into a page, after its mark, as docs/backends.md")
    return top


def _run(options: argparse.Namespace) -> int:
    # Imported here, so that help and complaints about options come at once.
    if options.command == "demo":
        from phlox.cli.demo import demo

        return demo(options)
    if options.command == "backends":
        from phlox.cli.backends import backends

        return backends(options)
    if options.command == "predict":
        from phlox.cli.predict import predict

        return predict(options)
    from phlox.cli.verify import verify

    return verify(options)

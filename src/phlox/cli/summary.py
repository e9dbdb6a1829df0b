"""`phlox summary`: the layers of a model, with the shapes, parameters and costs of each."""

from __future__ import annotations

import argparse

from phlox.cli.command import DONE, Command
from phlox.cli.export import inputs_of, loaded, spec
from phlox.cli.own_run import add_trust


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="the folder of a run, a Hugging Face folder, or NAME in the program FILE.py: FILE.py:NAME",
    )
    parser.add_argument(
        "--input", dest="inputs", type=spec, action="append", metavar="NAME:KIND:SIZES",
        help="an input, such as x:float:8,1,28,28, once for each argument (default: those of the run)",
    )  # fmt: skip
    parser.add_argument("--record", metavar="FILE", help="the record with the parameters of FILE.py:NAME")
    parser.add_argument("--device", default="numpy", metavar="NAME", help="numpy (default), jax, torch, ...")
    add_trust(parser)


def run(options: argparse.Namespace) -> int:
    """Run the command, and return the exit status."""
    from phlox.backend import as_device

    device = as_device(options.device)
    model, default = loaded(options, device)
    given = [(name, kind, tuple(_sizes(sizes))) for name, kind, sizes in options.inputs or default]
    if not given:
        print(model.summary())
        return DONE
    specs, _ = inputs_of(model, given, device)
    print(model.summary(**specs) if isinstance(specs, dict) else model.summary(*specs))
    return DONE


def _sizes(sizes: tuple[int | str, ...]) -> list[int]:
    """The sizes of an input, with one row for an open axis."""
    return [size if isinstance(size, int) else 1 for size in sizes]


COMMAND = Command(
    description="Show the layers of a model: for each its output, parameters, and the operations of a forward pass. "
    "Open axes have the size 1.",
    arguments=arguments,
    run=run,
)

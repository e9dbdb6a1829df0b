"""`phlox tune`: find the settings that make a program's steps fastest on this machine."""

from __future__ import annotations

import argparse
from pathlib import Path

from phlox.backend import backend_names
from phlox.backend.settings import FILE, VARIABLES, applied, as_file, checked, read_file
from phlox.cli.command import DIFFERENT, DONE, Command, count, seconds
from phlox.cli.tuning import report
from phlox.cli.tuning.search import Configuration, Search
from phlox.cli.tuning.trial import Program
from phlox.errors import DataError, DeviceError
from phlox.host.text import count as counted
from phlox.host.text import terminal_width
from phlox.record.io.files import atomic_write

_VALUES = {
    "device": "a device: numpy, jax, torch, torch:gpu:0, ...",
    "allocator": "keep, system",
    "threads": "an integer from 1",
    "xla_flags": "XLA flags: --xla_...",
    "torch_codegen": "inductor, none",
    "torch_passes": "names after `-`, with commas between: -winograd,-attention",
    "verify": "1, 0",
    "reproducible": "1, 0",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add("script", nargs="?", metavar="SCRIPT", help="a Python program that trains or predicts")
    add(
        "args", nargs=argparse.REMAINDER, metavar="ARGS", help="the arguments of SCRIPT; options of tune come before it"
    )
    add("--devices", metavar="NAMES", help="devices to try, separated by commas (default: all backends)")
    add(
        "--xla-flags",
        action="append",
        default=[],
        metavar="FLAGS",
        help="XLA flags to try as well: --xla-flags=--xla_... (repeatable)",
    )
    add("--seconds", type=seconds, default=2.0, metavar="S", help="how long to measure steps in each run (default: 2)")
    add("--rounds", type=count, default=3, metavar="N", help="how often to measure the fastest settings (default: 3)")
    add("--limit", type=seconds, default=120.0, metavar="S", help="time limit of a run (default: 120)")
    add("--save", metavar="FILE", help=f"write the best settings to FILE, such as phlox-tuning.json, for {FILE}=FILE")
    add("--dry-run", action="store_true", help="only show what would be tried")
    add("--list", action="store_true", help="show all settings, and their present values")


def run(options: argparse.Namespace) -> int:
    """Run the command, and return the exit status."""
    if options.list:
        print(report.listing(applied(), {key: [VARIABLES[key], _VALUES[key]] for key in VARIABLES}))
        return DONE
    search = _search(options)
    if options.dry_run:
        _print_candidates(search)
        return DONE
    if options.save is not None:
        _check_writable(Path(options.save))
    print(f"Measuring {options.script}. It runs many times, and writes its output files each time.", flush=True)
    try:
        search.go()
    except KeyboardInterrupt:
        if not search.present.trials:
            raise
        print(f"\n{report.results(search).text(terminal_width())}", flush=True)
        raise KeyboardInterrupt("nothing was written; the table shows the results so far") from None
    print(f"\n{report.results(search).text(terminal_width())}\n")
    if search.present.problem:
        print("The script fails without any change, so there is nothing to compare.")
        return DIFFERENT
    if options.save is not None:
        best = search.best().settings.over(applied())
        with atomic_write(Path(options.save)) as file:
            file.write(as_file(best, report.remarks(search)).encode())
    print(report.advice(search, options.save))
    return DONE


def _search(options: argparse.Namespace) -> Search:
    if options.script is None:
        raise DataError("SCRIPT is missing: the program to measure; `phlox tune --list` shows what can be set")
    script = Path(options.script)
    if not script.is_file():
        raise DataError(f"{script}: is {'not a file' if script.exists() else 'missing'}; give a Python program")
    for flags in options.xla_flags:
        checked("xla_flags", flags, "--xla-flags")
    devices = None if options.devices is None else [name.strip() for name in options.devices.split(",")]
    for name in devices or ():
        if name.partition(":")[0] not in backend_names():
            raise DeviceError(f"--devices: unknown device {name!r} (known: {', '.join(backend_names())})")
    return Search(
        Program(options.script, options.args, options.seconds, options.limit),
        applied(),
        devices=devices,
        flags=options.xla_flags,
        rounds=options.rounds,
        tell=lambda configuration: print(report.line(configuration), flush=True),
    )


def _print_candidates(search: Search) -> None:
    devices = search.other_devices()
    present = applied().device or "numpy"
    print("First unchanged" + (f"; if SCRIPT names no device, also on {', '.join(devices)}" if devices else ""))
    print("Then, on the fastest of these, each of")
    for name in (present, *devices):
        tried = [Configuration(settings).name for settings in search.worth_trying(name.partition(":")[0])]
        print(f"  {name}:")
        for label in tried:
            print(f"    {label}")
    print(
        "Then all that helped together, and finally the fastest, alternating with the present configuration, "
        f"{counted(search.rounds, 'time')}"
    )
    for note in dict.fromkeys(search.notes):
        print(f"Note: {note}.")


def _check_writable(path: Path) -> None:
    if path.exists():
        read_file(path)  # fails if it is not a settings file, which is then not overwritten
    elif not path.absolute().parent.is_dir():
        raise DataError(f"{path}: the folder {path.absolute().parent} is missing")


COMMAND = Command(
    description="Run a program several times, each time in a new process with other settings (device, allocator, "
    "threads, XLA flags, code generation on PyTorch), and measure its steps. Print the fastest settings. The program "
    "runs unchanged. Its steps are the calls of functions that phlox.compile returned or, without any, the steps of "
    "its optimizers. Each run writes the program's output files again.",
    arguments=arguments,
    run=run,
)

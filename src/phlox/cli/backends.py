"""`phlox backends`: which operations each backend supports, and how."""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path
from typing import Any, cast

from phlox.backend import Backend, backend_names, load_backend
from phlox.backend.contract.support_table import SupportTable
from phlox.cli.command import DONE, Command
from phlox.errors import DataError, DeviceError, EngineNotInstalledError

MARK = "<!-- phlox backends --markdown -->"
"""The table of a page starts after this line."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--backend", action="append", metavar="NAME", help="only this one (may be given repeatedly)")
    parser.add_argument("--float", metavar="ELEMENT", help="float dtype: f64, f32 (default), bf16 or f16")
    parser.add_argument("--int", metavar="ELEMENT", help="integer dtype: i64 or i32 (default)")
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    parser.add_argument(
        "--into", metavar="FILE", help="write the tables into a page, after its marker, such as docs/backends.md"
    )


def run(options: argparse.Namespace) -> int:
    """Run the command, and return the exit status."""
    names = options.backend or backend_names()
    elements = {key: value for key, value in (("float", options.float), ("int", options.int)) if value is not None}
    table = SupportTable({name: backend(name, elements) for name in names})
    if options.into is not None:
        write_into(Path(options.into), table.markdown())
        print(f"wrote the table into {options.into}")
        return DONE
    print(table.markdown() if options.markdown else table.text())
    if any(engine is None for engine in table.backends.values()):
        print("\n" + "\n".join(missing(names)))
    return DONE


def write_into(page: Path, table: str) -> None:
    """Replace everything after the marker of a page by the table."""
    head, mark, _ = page.read_text(encoding="utf-8").partition(MARK)
    if not mark:
        raise DataError(f"{page}: has no line {MARK!r}; add it where the table should start")
    page.write_text(f"{head}{mark}\n\n{table}\n", encoding="utf-8")


def backend(name: str, elements: dict[str, str]) -> Backend | None:
    """The backend of this name with these dtypes, or None if its engine is not installed."""
    try:
        cls = load_backend(name)
    except EngineNotInstalledError:
        return None
    try:
        return cast(Any, cls)(**elements)
    except TypeError:
        raise DeviceError(f"{name}: the {' and '.join(elements)} dtype of this backend is fixed") from None


def missing(names: list[str]) -> list[str]:
    """The lines that say how to install each missing engine."""
    lines: list[str] = []
    for name in names:
        try:
            load_backend(name)
        except EngineNotInstalledError as error:
            lines += textwrap.wrap(str(error), 100)
    return lines


COMMAND = Command(
    description="Print every operation of the contract by family, and how each backend implements it: native (by a "
    "function of its own), derived (from other operations) or - (unsupported). At half precision, f32 marks the "
    "operations that are computed in single precision and rounded once.",
    arguments=arguments,
    run=run,
)

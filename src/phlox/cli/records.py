"""Shared by the commands that read records: their options, opening a file, and JSON output."""

from __future__ import annotations

import argparse
from dataclasses import fields, is_dataclass
from typing import Any, cast

from phlox.cli.command import whole
from phlox.record.inspection.summary import RecordFile, open_file
from phlox.record.values import to_json


def reading_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options for reading files."""
    parser.add_argument(
        "--max-bytes",
        type=whole,
        metavar="N",
        help="the largest size that a compressed file may decompress to (default: 64 times its size, at least 1 GiB)",
    )
    parser.add_argument("--ignore-checksums", action="store_true", help="read a file that another program has changed")


def opened(path: str, options: argparse.Namespace) -> RecordFile:
    """The record in a file, opened with these options; no tensor is read."""
    return open_file(path, max_bytes=options.max_bytes, verify=not options.ignore_checksums)


def plain(value: Any) -> Any:
    """Dataclasses, named tuples and non-finite floats as JSON values (floats as in files: `to_json`)."""
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        items = cast("tuple[Any, ...]", value)
        named = getattr(items, "_asdict", None)
        return [plain(item) for item in items] if named is None else plain(named())
    if isinstance(value, list):
        return [plain(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in cast("dict[str, Any]", value).items()}
    return to_json(value)

"""`phlox inspect`: the contents of a record file, without reading its tensors."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from phlox.cli.command import DONE, Command, whole
from phlox.cli.onnx_file import inspect, is_onnx
from phlox.cli.records import opened, plain, reading_arguments
from phlox.errors import RecordError
from phlox.host.page import Page, Part, Table, facts
from phlox.host.text import count, size, terminal_width
from phlox.record.entry import TensorEntry
from phlox.record.inspection.summary import RecordFile, Statistics, damages, statistics, totals
from phlox.record.io.checksums import FIRST_SCHEMA
from phlox.record.patterns import selected
from phlox.record.record import Record
from phlox.record.values import to_json

_MAY_HAVE_CHECKSUMS = ("pytorch", "npz", "sharded")
_LONGEST = 1000
"""The most letters of a metadata text; the vocabulary of a language model has millions."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("file", metavar="FILE", help="a file of any format and compression, with or without its suffix")
    parser.add_argument(
        "pattern", metavar="PATTERN", nargs="*", default=[], help="only these entries: encoder, '**.bias', '!head'"
    )
    parser.add_argument(
        "--sort", choices=["name", "size"], help="sort by name, or the largest first (default: the order in FILE)"
    )
    parser.add_argument("--limit", type=whole, metavar="N", help="show the first N entries")
    parser.add_argument(
        "--stats",
        action="store_true",
        help="show minimum, maximum, mean and number of non-finite elements of each listed tensor",
    )
    parser.add_argument("--verify", action="store_true", help="read every tensor and check the checksums")
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    reading_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Run the command, and return the exit status."""
    if is_onnx(options.file):
        return inspect(options.file, options)
    file = opened(options.file, options)
    record = file.record
    paths, lost = _chosen(record, options.pattern)
    if options.sort == "name":
        paths.sort()
    elif options.sort == "size":
        paths.sort(key=lambda path: -_bytes(record[path]))
    if options.verify:
        _verify(file)
    shown = paths[: options.limit]
    stats = {p: statistics(record.tensors[p].tensor) for p in shown if options.stats and p in record.tensors}
    if options.json:
        print(json.dumps(plain(_as_json(file, paths, shown, stats, lost)), indent=2, allow_nan=False))
        return DONE
    parts = [*_about(file), _entries(record, shown, stats if options.stats else None, len(paths) - len(shown))]
    parts += [
        Page("Cannot be read", parts=[Table(["", ""], [*lost.items()], 2)]),
        Page("Aliases", parts=[Table(["", ""], [[alias, f"-> {path}"] for alias, path in record.aliases.items()], 2)]),
        _total(record, paths),
    ]
    if options.verify:
        checked = "checksums ignored" if options.ignore_checksums else _checked(file)
        parts.append(f"Read every tensor: {checked}")
    print(Page("", parts=parts).text(terminal_width()))
    return DONE


def _chosen(record: Record, patterns: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The selected entries, and the selected unreadable entries with the reason."""
    if not patterns:
        return record.paths(), dict(record.unreadable)
    names = {path: [path] for path in (*record, *record.unreadable)}
    for alias, path in record.aliases.items():
        names[path].append(alias)
    chosen = selected(patterns, names)
    return [path for path in record if path in chosen], {p: why for p, why in record.unreadable.items() if p in chosen}


def _bytes(entry: Any) -> int:
    return entry.tensor.stored_as[1] if isinstance(entry, TensorEntry) else 0


def _checked(file: RecordFile) -> str:
    header = file.record.header
    if header is None and file.format in _MAY_HAVE_CHECKSUMS:
        return "checksums agree, where it has them"
    has_them = header is not None and header.schema >= FIRST_SCHEMA
    return "checksums agree" if has_them else "this file has no checksums"


def _verify(file: RecordFile) -> None:
    damaged = damages(file.record)
    if damaged:
        others = f" (and {count(len(damaged) - 1, 'other tensor')} cannot be read either)" if len(damaged) > 1 else ""
        raise RecordError(f"{damaged[0].reason}{others}")


def _about(file: RecordFile) -> list[Part]:
    header, metadata = file.record.header, file.record.metadata
    schema = "" if header is None else f"schema {header.schema}"
    pairs = [
        ("File", str(file.path)),
        ("Format", ", ".join(filter(None, (file.format, file.compression, schema)))),
        ("Written by", "unknown (no Phlox header)" if header is None else f"Phlox {header.phlox}"),
        ("Precision", "" if header is None else header.precision),
        ("Size", size(file.size)),
        ("Names", "none: the entries are identified by their positions" if file.record.positional else ""),
    ]
    texts = [[key, text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."] for key, text in metadata.items()]
    return [facts(pairs), Page("Metadata", parts=[Table(["", ""], texts, 2)])]


def _entries(record: Record, paths: Sequence[str], stats: dict[str, Statistics] | None, hidden: int) -> Table:
    if stats is None:
        heads = ["path", "kind", "shape", "precision", "bytes", "id or value"]
        rows = [_row(path, record[path]) for path in paths]
        return Table(heads, rows, {0, 1, 2, 3, 5}, more=hidden, spare=(1,))  # the precision implies the kind
    heads = ["path", "shape", "precision", "min", "max", "mean", "not finite", "value"]
    rows = [_row_of_statistics(path, record[path], stats) for path in paths]
    return Table(heads, rows, {0, 1, 2, 7}, more=hidden)


def _row(path: str, entry: Any) -> list[str]:
    if not isinstance(entry, TensorEntry):
        return [path, "value", "", "", "", _value(entry)]
    tensor = entry.tensor
    precision, nbytes = tensor.stored_as
    return [path, tensor.kind, str(tensor.shape), precision, size(nbytes), (entry.id or "")[:8]]


def _row_of_statistics(path: str, entry: Any, stats: dict[str, Statistics]) -> list[str]:
    if not isinstance(entry, TensorEntry):
        return [path, *[""] * 6, _value(entry)]
    s, tensor = stats[path], entry.tensor
    numbers = [_number(number) for number in (s.min, s.max, s.mean)]
    odd = f"{s.non_finite:,}" if s.non_finite else ""
    return [path, str(tensor.shape), tensor.stored_as[0], *numbers, odd]


def _value(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _number(number: float | int | bool | None) -> str:
    if number is None:
        return "-"
    return f"{number:.4g}" if isinstance(number, float) else str(number)


def _total(record: Record, paths: Sequence[str]) -> Page:
    entries = [record[path] for path in paths]
    tensors = [entry.tensor for entry in entries if isinstance(entry, TensorEntry)]
    values = f" and {count(len(entries) - len(tensors), 'value')}" if len(entries) > len(tensors) else ""
    elements, nbytes = sum(tensor.size for tensor in tensors), sum(map(_bytes, entries))
    said = [f"{count(len(tensors), 'tensor')}{values}", count(elements, "element"), size(nbytes)]
    rows = [
        [name, count(total.tensors, "tensor"), count(total.elements, "element"), size(total.bytes)]
        for name, total in totals(entries).items()
    ]
    return Page("Total", said, [Table([""] * 4, rows, 1)] if len(rows) > 1 else [])


def _as_json(
    file: RecordFile,
    paths: Sequence[str],
    shown: Sequence[str],
    stats: dict[str, Statistics],
    lost: dict[str, str],
) -> dict[str, Any]:
    record, header = file.record, file.record.header
    entries: list[dict[str, Any]] = []
    for path in shown:
        entry = record[path]
        if isinstance(entry, TensorEntry):
            tensor = entry.tensor
            precision, nbytes = tensor.stored_as
            item: dict[str, Any] = {
                "path": path, "kind": tensor.kind, "shape": tensor.shape, "precision": precision, "bytes": nbytes,
                "id": entry.id,
            }  # fmt: skip
            entries.append(item | ({"statistics": stats[path]} if path in stats else {}))
        else:
            entries.append({"path": path, "kind": "value", "value": to_json(entry)})
    return {
        "file": str(file.path),
        "format": file.format,
        "compression": file.compression,
        "size": file.size,
        "schema": header and header.schema,
        "precision": header and header.precision,
        "phlox": header and header.phlox,
        "positional": record.positional,
        "metadata": dict(record.metadata),
        "aliases": dict(record.aliases),
        "entries": entries,
        "unreadable": lost,
        "totals": {name: asdict(total) for name, total in totals(record[path] for path in paths).items()},
    }


COMMAND = Command(
    description="Print format, metadata, entries, shapes, precisions and sizes of a record file of Phlox, "
    "safetensors, PyTorch, NumPy or GGUF; or inputs, outputs, operators and initializers of an ONNX file. It reads no "
    "tensor unless --stats or --verify is given.",
    arguments=arguments,
    run=run,
    intermixed=True,
)

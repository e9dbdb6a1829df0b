"""`phlox convert`: write a record in another format, precision or compression, or with other names."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from phlox.cli.command import DONE, Command
from phlox.cli.records import opened, reading_arguments
from phlox.errors import RecordError
from phlox.host.text import count, printable, size
from phlox.record import (
    BinaryRecorder,
    GgufRecorder,
    JsonRecorder,
    PrecisionSettings,
    Record,
    Recorder,
    SafetensorsRecorder,
)
from phlox.record.formats.registry import READERS, RECORDERS
from phlox.record.io.compression import SUFFIXES, Compression
from phlox.record.loading.renaming import rename
from phlox.record.patterns import selected

FLOATS = ["as-is", "f64", "f32", "bf16", "f16"]
_WORDS = {"double": "f64", "full": "f32", "half": "f16", "bfloat16": "bf16"}
"""Other words for precisions."""
INTS = ["as-is", "i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8"]
COMPRESSIONS: dict[str, Compression | None] = {"none": None, "gzip": "gzip", "zstd": "zstd"}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add("source", metavar="SRC", help="a file of any format and compression, with or without its suffix")
    add("target", metavar="DST", help="its suffix selects the format and compression: .safetensors, .json.gz, ...")
    add(
        "--precision",
        choices=FLOATS,
        type=lambda word: _WORDS.get(word, word),
        default="as-is",
        help="dtype of floats: %(choices)s (default: as-is)",
        metavar="NAME",
    )
    add("--ints", choices=INTS, default="as-is", help="dtype of ints: %(choices)s (default: as-is)", metavar="NAME")
    add(
        "--format",
        choices=[recorder.format for recorder in RECORDERS],
        metavar="NAME",
        help="%(choices)s (default: by the suffix of DST; safetensors without one)",
    )
    add("--compression", choices=COMPRESSIONS, metavar="NAME", help="%(choices)s (default: by the suffix of DST)")
    add(
        "--include", action="append", metavar="PATTERN", help="only these entries: encoder, '**.bias', ... (repeatable)"
    )
    add("--exclude", action="append", metavar="PATTERN", help="all entries except these (repeatable)")
    add("--rename", action="append", metavar="REGEX=NEW", help="replace each match in every path (repeatable)")
    add("--no-names", action="store_true", help="binary: omit paths, ids and aliases")
    add("--pretty", action="store_true", help="json: with line breaks")
    add("--decimal", action="store_true", help="json: numbers as decimals, not as base64")
    add("--type", metavar="NAME", help="gguf: what floats of two axes or more are: F16, Q8_0, Q4_K, ...")
    add("--overwrite", action="store_true", help="replace DST once the new file is complete; DST may be SRC")
    reading_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Run the command, and return the exit status."""
    recorder = _recorder(options)
    target = _target(Path(options.target), recorder)
    if target.is_dir():
        raise RecordError(f"{target}: is a folder; give the name of a file in it")
    if not options.overwrite and target.exists():
        raise RecordError(f"{target}: exists already; give another name, or --overwrite to replace it")
    file = opened(options.source, options)
    record = _renamed(_selected(file.record, options), options)
    for path, why in record.unreadable.items():
        raise RecordError(f"{options.source}: {path}: {why}; omit it with --exclude '{path}'")
    written = recorder.save(record, target)
    before = ", ".join(filter(None, (file.format, file.compression, size(file.size))))
    after = ", ".join(filter(None, (recorder.format, recorder.compression, size(written.stat().st_size))))
    contents = count(len(record.tensors), "tensor")
    if record.values:
        contents += f" and {count(len(record.values), 'value')}"
    print(printable(f"{file.path} ({before}) -> {written} ({after}): {contents}"))
    return DONE


def _recorder(options: argparse.Namespace) -> Recorder:
    target = Path(options.target)
    named = next((recorder for recorder in RECORDERS if recorder.has_ending(target.name)), None)
    chosen = next((recorder for recorder in RECORDERS if recorder.format == options.format), None)
    if named and chosen and named is not chosen:
        raise RecordError(
            f"{target}: has the suffix of {named.format}, not of {chosen.format}; omit --format, "
            f"or give a name that ends in {chosen.suffix}"
        )
    if not named and (reader := next((reader for reader in READERS if reader.has_ending(target.name)), None)):
        formats = ", ".join(recorder.suffix for recorder in RECORDERS)
        raise RecordError(f"{target}: Phlox reads {reader.format} files but does not write them; it writes {formats}")
    recorder = chosen or named or SafetensorsRecorder
    extra: dict[str, Any] = {}
    for flag, owner, settings in (
        ("no_names", BinaryRecorder, {"names": False}),
        ("pretty", JsonRecorder, {"indent": 2}),
        ("decimal", JsonRecorder, {"numbers": "decimal"}),
        ("type", GgufRecorder, {"type": options.type}),
    ):
        if getattr(options, flag):
            if recorder is not owner:
                raise RecordError(
                    f"--{flag.replace('_', '-')} is for the format {owner.format}, not for {recorder.format}"
                )
            extra |= settings
    ints = None if options.ints == "as-is" else options.ints
    floats = None if options.precision == "as-is" else options.precision
    precision = PrecisionSettings(float=floats, int=ints)
    return recorder(precision, _compression(target, recorder, options.compression), **extra)


def _compression(target: Path, recorder: type[Recorder], chosen: str | None) -> Compression | None:
    ends: dict[str, Compression | None] = {
        suffix + end: name for suffix in recorder.suffixes() for name, end in SUFFIXES.items()
    }
    named: Compression | None = None
    for end, name in ends.items():
        if name is not None and target.name.endswith(end):
            named = name
    if chosen is None:
        return named
    if named not in (None, COMPRESSIONS[chosen]):
        raise RecordError(f"{target}: has the suffix of {named}, which contradicts --compression {chosen}")
    return COMPRESSIONS[chosen]


def _target(path: Path, recorder: Recorder) -> Path:
    """The path with the suffix that the recorder adds."""
    end = SUFFIXES[recorder.compression]
    if not path.name:
        raise RecordError(f"{path}: is not the name of a file")
    for suffix in recorder.suffixes():
        if path.name.endswith(suffix + end):
            return path
        if path.name.endswith(suffix):
            return path.with_name(path.name + end)
    return path.with_name(path.name + recorder.suffix + end)


def _selected(record: Record, options: argparse.Namespace) -> Record:
    if not (options.include or options.exclude):
        return record
    _check_named(record, options.source, "--include and --exclude")
    paths = [*record, *record.aliases, *record.unreadable]
    matching = selected(options.include, paths) if options.include else set(paths)
    matching -= selected(options.exclude, paths) if options.exclude else set()
    if not matching:
        raise RecordError(
            f"{options.source}: --include and --exclude leave none of its {count(len(record), 'entry', 'entries')}"
        )
    return rename(record, lambda path: path if path in matching else None).record


def _renamed(record: Record, options: argparse.Namespace) -> Record:
    remap: dict[str, str] = {}
    rules: list[str] = options.rename or []
    for rule in rules:
        regex, sign, new = rule.rpartition("=")  # a regex is more likely to contain a = than a path
        if not sign or not regex or regex in remap:
            raise RecordError(
                f"--rename {rule!r}: expected REGEX=NEW, and each REGEX once, such as '[.]gamma$=.weight'"
            )
        remap[regex] = new
    if not remap:
        return record
    _check_named(record, options.source, "--rename")
    renaming = rename(record, remap)
    if renaming.unused:
        shown = ", ".join(record.paths()[:3])
        raise RecordError(f"--rename: no path matches {renaming.unused[0]!r}; the first ones are {shown}")
    return renaming.record


def _check_named(record: Record, source: str, option: str) -> None:
    if record.positional:
        raise RecordError(f"{source}: its entries have no names, only positions; {option} cannot select any")


COMMAND = Command(
    description="Write the record in SRC to DST in another format, precision or compression, one tensor at a time. "
    "Ids, aliases, metadata and values are kept. It reads every format of phlox.record.load, including PyTorch and "
    "NumPy files. A compressed SRC is decompressed into memory.",
    arguments=arguments,
    run=run,
)

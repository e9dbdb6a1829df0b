"""Looks for files that a reader of records takes amiss: guided by coverage, for as long as you like.

    pip install atheris && python tools/fuzz_records.py safetensors CORPUS... --seconds 600

CORPUS are folders of files to begin with (`tests/record/golden/*`); what is found on the way is added to the first of
them. Whatever happens but a record or a RecordError, in a few seconds and within 2 GB, is a finding: the file that did
it is left in this folder, and what it shows belongs into the tests of its format.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

atheris: Any = import_module("atheris")  # which only those who fuzz have installed

with atheris.instrument_imports(include=["phlox.record", "json", "zipfile"]):
    from phlox.errors import RecordError
    from phlox.record.formats.reader import Reader
    from phlox.record.formats.registry import registry

    READERS = registry.READERS  # imported when it is asked for: here, where it is watched

_MOST = 1 << 24
"""Bytes that a file may unpack to here."""


def main() -> None:
    """Read the command line and fuzz."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    readers = {reader.format: reader for reader in READERS}
    parser.add_argument("format", choices=readers)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("corpus", nargs="*", type=Path)
    options = parser.parse_intermixed_args()
    both = [readers[options.format](max_bytes=_MOST, verify=verify) for verify in (False, True)]
    limits = [f"-max_total_time={options.seconds}", "-rss_limit_mb=2048", "-timeout=10", "-max_len=20000"]

    def try_both(data: bytes) -> None:
        for reader in both:
            attempt(reader, data)

    atheris.Setup([sys.argv[0], *limits, *map(str, options.corpus)], try_both)
    atheris.Fuzz()


def attempt(reader: Reader, data: bytes) -> None:
    """Read a file whole; any error but RecordError goes on."""
    try:
        record = reader.from_bytes(data)
        for entry in record.tensors.values():
            if entry.tensor.nbytes <= 4 * _MOST:
                entry.tensor.read()
                entry.tensor.packed()
        repr(record)
    except RecordError as error:
        str(error)


if __name__ == "__main__":
    main()

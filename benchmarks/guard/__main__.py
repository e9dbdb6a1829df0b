"""`python -m benchmarks.guard KIND FILE [NAME ...]`: count or measure in this process, as the guard has it done."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.guard.command import in_this_process

if __name__ == "__main__":
    in_this_process(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])

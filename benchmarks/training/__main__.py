"""`python -m benchmarks.training PART FILE`: writes the rows of one part as JSON, for `benchmarks.training.run`."""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from pathlib import Path

if __name__ == "__main__":
    rows = importlib.import_module(f"benchmarks.training.{sys.argv[1]}").run()
    Path(sys.argv[2]).write_text(json.dumps([dataclasses.asdict(row) for row in rows]), encoding="utf-8")

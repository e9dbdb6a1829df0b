"""What a training costs beside its steps: `fit` against a loop by hand, Keras and Lightning; loading; checkpoints.

Each part runs in a process of its own.
"""

from __future__ import annotations

from benchmarks.harness import Ratio
from benchmarks.rows import rows_of

PARTS = ("fitting", "loading", "checkpoints")
"""The modules with the rows. `loading` imports no JAX, which does not go with the processes of its peer."""


def run() -> list[Ratio]:
    """All rows."""
    return [row for part in PARTS for row in rows_of(f"benchmarks.training.{part}")]

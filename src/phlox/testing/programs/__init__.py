"""Random programs, which must give the same on every engine, eagerly and compiled.

    python -m phlox.testing.programs torch f32 --count 600

draws programs of some ten operations, runs them in one of the `WAYS` on the backend and on `NumPy(float="f64")`, and
prints each that differs, shrunk to few lines that can be copied into a file. A program stays away from points where a
rounding may change more than the last digits: ties, jumps, kinks, overflow. PyTorch compiles one in some two seconds.
"""

from __future__ import annotations

from phlox.testing.programs.drawing import random_program
from phlox.testing.programs.program import Memory, Program, merged
from phlox.testing.programs.running import WAYS, differences, least_margin, run
from phlox.testing.programs.shrinking import shrunk

__all__ = ["WAYS", "Memory", "Program", "differences", "least_margin", "merged", "random_program", "run", "shrunk"]

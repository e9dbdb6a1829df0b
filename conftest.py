"""For pytest: Phlox is imported whole before its files are collected one by one, and examples may take their time."""

from __future__ import annotations

from hypothesis import settings

# Collecting `phlox/tensor/*.py` first would leave the package under the name of the function `phlox.tensor`.
import phlox as phlox

# A shared machine may stall at any example; how fast things are is measured in `benchmarks/`.
settings.register_profile("phlox", settings.default, deadline=None)
settings.load_profile("phlox")

"""For pytest: Phlox is imported whole before its files are collected one by one."""

from __future__ import annotations

# Collecting `phlox/tensor/*.py` first would leave the package under the name of the function `phlox.tensor`.
import phlox as phlox

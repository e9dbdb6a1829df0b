"""The random numbers that every engine draws: their definition, in NumPy, and its tables."""

from __future__ import annotations

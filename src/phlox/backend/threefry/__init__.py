"""The random numbers that every engine draws: their specification, its implementation in NumPy, and its tables."""

from __future__ import annotations

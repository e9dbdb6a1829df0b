"""Compiled programs on PyTorch: a function is traced to a graph, which passes improve and Inductor compiles."""

from __future__ import annotations

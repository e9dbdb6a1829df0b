"""The table of all operations; see `phlox.testing.conformance.row.Row`."""

from __future__ import annotations

from importlib import import_module

from phlox.testing.conformance.row import Row

_COMPOSED = ("nn", "packed", "loss", "attention", "conv", "pooling")
_FAMILIES = (
    "arithmetic", "special", "activation", "whole", "reduction", "shape", "indexing", "linalg", "signal",
    *_COMPOSED, "update",
)  # fmt: skip

FAMILIES: dict[str, list[Row]] = {name: import_module(f"{__name__}.{name}").ROWS for name in _FAMILIES}
ROWS: list[Row] = [row for rows in FAMILIES.values() for row in rows]
COMPOSITES: list[Row] = [row for name in _COMPOSED for row in FAMILIES[name]]

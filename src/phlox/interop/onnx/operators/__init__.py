"""The operators, a file a family; importing a file adds its operators to the table."""

from __future__ import annotations

from importlib import import_module

FAMILIES = (
    "elementwise", "activation", "reduction", "shape", "indexing", "matrix", "convolution", "pooling", "norm",
    "attention", "resize", "sampling", "recurrent", "control", "sequence", "quantized", "random", "signal", "text",
    "detection", "microsoft",
)  # fmt: skip


def import_all() -> None:
    """Fill the table."""
    for family in FAMILIES:
        import_module(f"{__name__}.{family}")

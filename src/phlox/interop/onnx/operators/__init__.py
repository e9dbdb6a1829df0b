"""The operators, one file for each family; importing a file adds its operators to the table."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

from phlox.interop.onnx.registry import TABLE, Compute, Operator

FAMILIES = (
    "elementwise", "reduction", "shape", "indexing", "convolution", "pooling", "norm", "attention", "resize",
    "sampling", "recurrent", "control", "sequence", "quantized", "signal",
)  # fmt: skip


def import_all() -> None:
    """Fill the table."""
    for family in FAMILIES:
        import_module(f"{__name__}.{family}")


def register(name: str, compute: Compute, *, domain: str = "", since: int = 1, static: Iterable[int] = ()) -> None:
    """Add an operator of another domain, or another way of computing a known one, for models loaded from now on.

    Args:
        name: as ONNX calls it.
        compute: `compute(node, *inputs)` gives the output, or a tuple of several. `node.get(name, default)` are the
            attributes; inputs are tensors, and None where an optional one is absent.
        domain: of the operator set.
        since: the first version of the operator set for which it is right.
        static: the indices of inputs that are passed as NumPy arrays, because the shape of the result depends on them.

    >>> register("Twice", lambda node, x: x * node.get("times", 2.0), domain="my.operators")
    """
    import_all()
    TABLE.add(Operator(name, since, compute, frozenset(static), domain=domain))

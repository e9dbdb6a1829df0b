"""Counting the floating-point operations of code that runs on arrays without values."""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass

from phlox.host.signal_guard import scope


@dataclass(slots=True)
class Work:
    """Floating-point operations; in a product an addition and a multiplication are two."""

    products: int = 0
    """The operations of matrix products and convolutions."""
    others: int = 0
    """The other operations: one per element of the result, or of the input of a reduction."""

    @property
    def total(self) -> int:
        """All of them."""
        return self.products + self.others


_work: ContextVar[Work | None] = ContextVar("phlox_counted_work", default=None)


def counted(work: Work | None) -> AbstractContextManager[Work | None]:
    """Within this scope (and thread or task) operations on `Abstract` backends are added to `work`, if it is given."""
    return scope(_work, work)


def add_products(flops: int) -> None:
    """Count the operations of a product."""
    work = _work.get()
    if work is not None:
        work.products += flops


def add_others(flops: int) -> None:
    """Count the operations of anything else."""
    work = _work.get()
    if work is not None:
        work.others += flops

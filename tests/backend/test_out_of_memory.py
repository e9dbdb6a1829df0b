"""What the engines say when there is no memory, in one sentence of ours."""

from __future__ import annotations

from typing import Any

import pytest

from phlox.backend import Jax, NumPy, Torch
from phlox.backend.out_of_memory import out_of_memory
from phlox.errors import OutOfMemoryError

THEIRS = [
    (NumPy(), MemoryError("Unable to allocate 7.28 TiB for an array with shape (1000000000000,)"), "7.28 TiB"),
    (NumPy(), MemoryError(), None),
    (Torch(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes."), "4 KiB"),
    (Torch(), RuntimeError("DefaultCPUAllocator: can't allocate memory: tried 8000000000000 bytes"), "7.276 TiB"),
    (None, MemoryError("100 bytes"), "100 bytes"),
]


@pytest.mark.parametrize("backend, error, amount", THEIRS)
def test_it_says_what_was_asked_of_whom_and_how_much(backend: Any, error: Exception, amount: str | None) -> None:
    ours = out_of_memory("exp", backend, error)
    assert isinstance(ours, OutOfMemoryError) and isinstance(ours, MemoryError)
    where = "" if backend is None else f" on {backend!r}"
    asked = "" if amount is None else f", {amount} were asked for"
    assert str(ours) == f"exp{where}: out of memory{asked}; take less at once, or a lower precision"


@pytest.mark.parametrize("backend", [NumPy(), Jax(), Torch(), None], ids=repr)
def test_another_error_is_none_of_it(backend: Any) -> None:
    assert out_of_memory("exp", backend, ValueError("shapes of 8 bytes")) is None
    assert out_of_memory("exp", backend, RuntimeError("no such kernel")) is None


def test_what_has_been_said_below_is_said_again_with_the_place() -> None:
    inner = out_of_memory("exp", None, MemoryError())
    assert inner is not None
    assert str(out_of_memory("Linear", NumPy(), inner)) == f"Linear: {inner}"

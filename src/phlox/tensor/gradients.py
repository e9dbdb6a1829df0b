"""`Gradients`: what `backward` found."""

from __future__ import annotations

from typing import Any

from phlox.backend import Backend


class Gradients:
    """The gradients of one backward pass; ask for one with `tensor.grad(gradients)`."""

    __slots__ = ("backend", "found")

    def __init__(self, backend: Backend, found: dict[int, Any]) -> None:
        self.backend = backend
        self.found = found

    def __len__(self) -> int:
        return len(self.found)

    def __repr__(self) -> str:
        return f"Gradients(of {len(self)} leaves on {self.backend!r})"

"""Floor 2: a batch axis as a decorator of backends, like the tape; `phlox.vmap` uses it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phlox.batching.frames import Frame, Randomness, entered, innermost, outside
from phlox.batching.order import is_below, joined, seen_from_inside
from phlox.lazy import lazily

if TYPE_CHECKING:
    from phlox.batching.decorator import Batched
    from phlox.batching.mapped import Mapped

__all__ = [
    "Batched", "Frame", "Mapped", "Randomness", "entered", "innermost", "is_below", "joined", "outside",
    "seen_from_inside",
]  # fmt: skip

__getattr__, __dir__ = lazily(__name__, {"decorator": "Batched", "mapped": "Mapped"})

"""Arrays in slices over processes as a decorator of backends, for engines whose processes communicate explicitly."""

from __future__ import annotations

from phlox.sharding.decorator import Sharded
from phlox.sharding.slices import Slice

__all__ = ["Sharded", "Slice"]

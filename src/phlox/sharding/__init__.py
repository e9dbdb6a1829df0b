"""Arrays cut into slices, one in each process: a decorator for engines whose processes communicate explicitly."""

from __future__ import annotations

from phlox.sharding.decorator import Sharded
from phlox.sharding.slices import Slice

__all__ = ["Sharded", "Slice"]

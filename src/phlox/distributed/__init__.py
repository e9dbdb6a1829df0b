"""From one device to many machines: processes, meshes, layouts, collectives, and records in shards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phlox.lazy import lazily

if TYPE_CHECKING:
    from phlox.distributed.collectives import broadcast, gather, mean, sum
    from phlox.distributed.layout import Layout, tensor_parallel
    from phlox.distributed.mesh import Mesh

__all__ = ["Layout", "Mesh", "broadcast", "gather", "mean", "sum", "tensor_parallel"]

__getattr__, __dir__ = lazily(
    __name__,
    {"collectives": "broadcast gather mean sum", "layout": "Layout tensor_parallel", "mesh": "Mesh"},
)

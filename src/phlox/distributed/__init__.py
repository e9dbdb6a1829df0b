"""From one device to many machines: processes, meshes, layouts, collectives, and records in shards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phlox.lazy import lazily

if TYPE_CHECKING:
    from phlox.distributed.agreement import check_agreement
    from phlox.distributed.group import attempt, barrier, initialize, is_main, rank, shutdown, size
    from phlox.distributed.layout import Layout, tensor_parallel
    from phlox.distributed.mesh import Mesh
    from phlox.distributed.objects import broadcast_object, gather_objects

__all__ = [
    "Layout",
    "Mesh",
    "attempt",
    "barrier",
    "broadcast_object",
    "check_agreement",
    "gather_objects",
    "initialize",
    "is_main",
    "rank",
    "shutdown",
    "size",
    "tensor_parallel",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "agreement": "check_agreement",
        "group": "attempt barrier initialize is_main rank shutdown size",
        "layout": "Layout tensor_parallel",
        "mesh": "Mesh",
        "objects": "broadcast_object gather_objects",
    },
)

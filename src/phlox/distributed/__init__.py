"""From one device to many machines: processes, meshes, layouts, collectives, and records in shards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phlox.lazy import lazily

if TYPE_CHECKING:
    from phlox.distributed.checkpoints.saving import SaveHandle, latest, load, save
    from phlox.distributed.collectives import broadcast, gather, mean, no_sync, sum
    from phlox.distributed.layout import Layout, tensor_parallel
    from phlox.distributed.mesh import Mesh
    from phlox.distributed.processes.agreement import check_agreement
    from phlox.distributed.processes.group import attempt, barrier, initialize, is_main, rank, shutdown, size
    from phlox.distributed.processes.objects import broadcast_object, gather_objects

__all__ = [
    "Layout", "Mesh", "SaveHandle", "attempt", "barrier", "broadcast", "broadcast_object", "check_agreement", "gather",
    "gather_objects", "initialize", "is_main", "latest", "load", "mean", "no_sync", "rank", "save", "shutdown", "size",
    "sum", "tensor_parallel",
]  # fmt: skip

__getattr__, __dir__ = lazily(
    __name__,
    {
        "processes.agreement": "check_agreement",
        "collectives": "broadcast gather mean no_sync sum",
        "processes.group": "attempt barrier initialize is_main rank shutdown size",
        "layout": "Layout tensor_parallel",
        "mesh": "Mesh",
        "processes.objects": "broadcast_object gather_objects",
        "checkpoints.saving": "SaveHandle latest load save",
    },
)

"""From one device to many machines: processes, meshes, layouts, collectives, and records in shards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phlox.lazy import lazily

if TYPE_CHECKING:
    from phlox.distributed.layout import Layout, tensor_parallel
    from phlox.distributed.mesh import Mesh
    from phlox.distributed.saving import SaveHandle, latest, load, save

__all__ = ["Layout", "Mesh", "SaveHandle", "latest", "load", "save", "tensor_parallel"]

__getattr__, __dir__ = lazily(
    __name__, {"layout": "Layout tensor_parallel", "mesh": "Mesh", "saving": "SaveHandle latest load save"}
)

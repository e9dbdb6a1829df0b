"""From one device to many machines: processes, meshes, layouts, collectives, and records in shards."""

from __future__ import annotations

from phlox.lazy import lazily

__all__: list[str] = []

__getattr__, __dir__ = lazily(__name__, {})

"""The regression guard: what the key paths cost, as counts that do not depend on the hour, recorded and compared."""

from __future__ import annotations

from benchmarks.guard.command import check, record

__all__ = ["check", "record"]

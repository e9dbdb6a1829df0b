"""How `phlox tune` finds settings: it measures candidates one after the other, each in a new process, and compares."""

from __future__ import annotations

"""How `phlox tune` finds settings: candidates are measured in processes of their own, in turn, and compared."""

from __future__ import annotations

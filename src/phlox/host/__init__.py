"""Floor 0: the processor and its memory, for every engine: threads, memory, memory-mapped files, casts, signals."""

from __future__ import annotations

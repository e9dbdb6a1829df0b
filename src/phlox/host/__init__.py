"""Floor 0: the processor and its memory, for every engine: threads, mapped files, casts, signals; HTML for notebooks."""

from __future__ import annotations

"""Floor 0: the processor and its memory, for every engine: threads, mapped files, casts, signals; text and HTML."""

from __future__ import annotations

"""GGUF, the format of llama.cpp, read and written."""

from __future__ import annotations

from phlox.record.formats.gguf.recorder import GgufRecorder as GgufRecorder

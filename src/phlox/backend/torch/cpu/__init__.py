"""What PyTorch computes faster on a CPU by another of its libraries, or not at all."""

from __future__ import annotations

"""What PyTorch does better on a processor by another of its libraries, or not at all."""

from __future__ import annotations

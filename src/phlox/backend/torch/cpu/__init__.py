"""Operations that another library computes faster on a CPU than PyTorch, or that PyTorch lacks."""

from __future__ import annotations

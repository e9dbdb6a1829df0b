"""The operations of the contract on PyTorch, one file a family."""

from __future__ import annotations

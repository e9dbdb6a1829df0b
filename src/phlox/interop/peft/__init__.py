"""Adapters in the files of PEFT: `load_adapter` and `save_adapter`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phlox.lazy import lazily

if TYPE_CHECKING:
    from phlox.interop.peft.loading import load_adapter as load_adapter
    from phlox.interop.peft.saving import save_adapter as save_adapter

__getattr__, __dir__ = lazily(__name__, {"loading": "load_adapter", "saving": "save_adapter"})

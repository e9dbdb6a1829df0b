"""Models as files for other programs: ONNX, run and compared with the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phlox.lazy import lazily

if TYPE_CHECKING:
    from phlox.export.to_onnx import OnnxReport, onnx

__all__ = ["OnnxReport", "onnx"]

__getattr__, __dir__ = lazily(__name__, {"to_onnx": "OnnxReport onnx"})

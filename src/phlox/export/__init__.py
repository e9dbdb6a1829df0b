"""Models as files for other programs: ONNX, StableHLO and PyTorch, run and compared with the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phlox.lazy import lazily

if TYPE_CHECKING:
    from phlox.export.report import ExportReport
    from phlox.export.to_onnx import OnnxReport, onnx
    from phlox.export.to_stablehlo import stablehlo
    from phlox.export.to_torch import torch

__all__ = ["ExportReport", "OnnxReport", "onnx", "stablehlo", "torch"]

__getattr__, __dir__ = lazily(
    __name__,
    {"report": "ExportReport", "to_onnx": "OnnxReport onnx", "to_stablehlo": "stablehlo", "to_torch": "torch"},
)

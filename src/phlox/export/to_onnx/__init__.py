"""Models as ONNX files: see `phlox.export.onnx`.

`export` is the call as a whole; `trace` runs the model on `engine`, whose arrays are values of a `graph`; `table` has
an operator for each operation; `passes` clean the graph, `model_file` writes it, and `check` runs the file.
"""

from __future__ import annotations

from phlox.export.to_onnx.export import onnx
from phlox.export.to_onnx.report import Difference, OnnxReport

__all__ = ["Difference", "OnnxReport", "onnx"]

"""ONNX models as modules: loaded from files, computed on any engine, trained, compiled and saved."""

from __future__ import annotations

from phlox.interop.onnx.loading import load as load
from phlox.interop.onnx.module import OnnxModule as OnnxModule
from phlox.lazy import lazily

__all__ = ["OnnxModule", "load"]

__getattr__, __dir__ = lazily(__name__, {})

"""ONNX models as modules: loaded from files, computed on any engine, trained, compiled and saved."""

from __future__ import annotations

from phlox.interop.onnx.loading import load as load
from phlox.interop.onnx.module import OnnxModule as OnnxModule
from phlox.interop.onnx.node import Node as Node
from phlox.interop.onnx.operators import register as register
from phlox.lazy import lazily

__all__ = ["Node", "OnnxModule", "load", "register"]

__getattr__, __dir__ = lazily(__name__, {})

"""Models with weights of few bits."""

from __future__ import annotations

from phlox.module.packed import Packed
from phlox.quantization.awq import Awq, InputScaled
from phlox.quantization.calibration import Calibration
from phlox.quantization.gptq import Gptq
from phlox.quantization.loading import load_quantized
from phlox.quantization.quantize import quantize
from phlox.quantization.report import PackedWeight, QuantizationReport, compare_quantized
from phlox.quantization.schemes import SCHEMES, Scheme
from phlox.quantization.training import FakeQuantized, fake_quantize

__all__ = [
    "SCHEMES", "Awq", "Calibration", "FakeQuantized", "Gptq", "InputScaled", "Packed", "PackedWeight",
    "QuantizationReport", "Scheme", "compare_quantized", "fake_quantize", "load_quantized",
    "quantize",
]  # fmt: skip

"""Which constants of a graph are parameters of the model, what their paths are, and which of them are trained."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from phlox.interop.onnx.registry import TABLE
from phlox.module.fields import RESERVED

_ROLES = {
    ("MatMul", 0): "weight", ("MatMul", 1): "weight", ("Gemm", 1): "weight", ("Gemm", 2): "bias",
    ("Conv", 1): "weight", ("Conv", 2): "bias", ("ConvTranspose", 1): "weight", ("ConvTranspose", 2): "bias",
    ("LSTM", 1): "weight", ("LSTM", 2): "recurrent", ("LSTM", 3): "bias", ("LSTM", 7): "peephole",
    ("GRU", 1): "weight", ("GRU", 2): "recurrent", ("GRU", 3): "bias",
    ("RNN", 1): "weight", ("RNN", 2): "recurrent", ("RNN", 3): "bias",
    ("Gather", 0): "weight", ("PRelu", 1): "slope", ("Add", 0): "bias", ("Add", 1): "bias",
    ("Mul", 0): "scale", ("Mul", 1): "scale",
    ("BatchNormalization", 1): "gamma", ("BatchNormalization", 2): "beta",
    ("BatchNormalization", 3): "mean", ("BatchNormalization", 4): "variance",
    ("LayerNormalization", 1): "gamma", ("LayerNormalization", 2): "beta", ("RMSNormalization", 1): "gamma",
    ("GroupNormalization", 1): "gamma", ("GroupNormalization", 2): "beta",
    ("InstanceNormalization", 1): "gamma", ("InstanceNormalization", 2): "beta",
}  # fmt: skip
"""The name of an operator's operand in a path, if its initializer has no meaningful name."""

_PRODUCTS = frozenset({
    "MatMul", "Gemm", "Conv", "ConvTranspose", "LSTM", "GRU", "RNN", "BatchNormalization", "LayerNormalization",
    "RMSNormalization", "GroupNormalization", "InstanceNormalization", "PRelu", "Einsum", "Attention",
    "SkipLayerNormalization", "FusedMatMul",
})  # fmt: skip
"""Operators whose constant operands are weights, whether they are initializers or constants."""

_NO_WEIGHTS = frozenset({
    "Where", "Pow", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Mod", "Min", "Max", "Range",
    "Loop", "OneHot", "QuantizeLinear", "ScatterElements", "ScatterND", "Scatter", "DynamicQuantizeLinear",
    "QLinearConv", "QLinearMatMul", "NonMaxSuppression", "IsInf", "IsNaN", "Sign", "Floor", "Ceil", "Round",
})  # fmt: skip
"""Operators whose constant operands are options."""

_OPTIONS = {("Clip", 1), ("Clip", 2), ("Pad", 2), ("Resize", 1), ("Resize", 2), ("DequantizeLinear", 1)}
_STATISTICS = {("BatchNormalization", 3), ("BatchNormalization", 4)}
_MADE_UP = re.compile(
    r"(onnx::|val_?\d|_?val_|const|Constant|ortshared|tensor_?\d|[a-zA-Z]{0,2}_?\d+$|/|.*_output_\d+$|_v_|_inlfunc|node_)"
)
"""Names that exporters make up."""
_OF_PHLOX = re.compile(r"(constant|shape)(_.*)?")
"""Names that `px.export.onnx` gives to values that are not parameters."""
_RUNNING = re.compile(r"(.*[./])?running_(mean|var)")
_INTEGERS = 1024
"""Integer tensors with at least this many elements are parameters, which move with the model; others are constants."""


@dataclass(frozen=True, slots=True)
class Use:
    """One use of a value: a node, and the index of the operand."""

    operator: str
    domain: str
    version: int
    name: str
    operand: int


@dataclass(slots=True)
class Weights:
    """The parameters found so far: path -> values, and which are trained."""

    values: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict[str, "np.ndarray[Any, Any]"])
    trained: set[str] = field(default_factory=set[str])

    def add(self, name: str, values: np.ndarray[Any, Any], uses: list[Use], *, trained: bool) -> str:
        """Add a parameter, and return its path, made from its name or from the name of the node that uses it."""
        path = clean(name) if name and not _MADE_UP.match(name) else _by_use(name, uses)
        count = 2
        base = path
        while path in self.values:
            path, count = f"{base}_{count}", count + 1
        self.values[path] = values
        if trained:
            self.trained.add(path)
        return path


def role(
    name: str, values: np.ndarray[Any, Any], uses: list[Use], *, initializer: bool, ours: bool = False
) -> str | None:
    """What a constant is: a "trained" or a "fixed" parameter; or None, a constant of the graph.

    `ours`: whether Phlox has written the file; then its parameters have their own names.
    """
    if not uses or not values.size or (ours and (not initializer or _OF_PHLOX.fullmatch(name))):
        return None
    kind = values.dtype.name
    if kind == "bool" or kind.startswith(("int", "uint")):
        return "fixed" if values.size >= _INTEGERS and not any(map(_is_option, uses)) else None
    if not kind.startswith(("float", "bfloat")) or not values.ndim:
        return None
    if any((use.operator, use.operand) in _STATISTICS for use in uses) or _RUNNING.fullmatch(name):
        return "fixed"
    if any(use.operator in _NO_WEIGHTS or _is_option(use) for use in uses):
        return None
    if not initializer and (values.size < 2 or not any(use.operator in _PRODUCTS for use in uses)):
        return None
    return "trained" if np.isfinite(values.astype(np.float32, copy=False)).all() else None


def _is_option(use: Use) -> bool:
    if (use.operator, use.operand) in _OPTIONS:
        return True
    operator = TABLE.find(use.domain, use.operator, use.version)
    return operator is not None and use.operand in operator.static


def _by_use(name: str, uses: list[Use]) -> str:
    use = next((use for use in uses if (use.operator, use.operand) in _ROLES), uses[0])  # through what changes layout
    part = _ROLES.get((use.operator, use.operand), f"input{use.operand}")
    owner = clean(use.name) if use.name else use.operator
    above, _, last = owner.rpartition(".")
    own = re.fullmatch(rf"{use.operator}(_[0-9]+)?", last)
    return f"{above if above and own else owner}.{part}"


def clean(name: str) -> str:
    """A name as a path: `/encoder/layer.0/MatMul` is `encoder.layer.0.MatMul`."""
    parts = re.split(r"[./:]+", name)
    path = ".".join(re.sub(r"[^\w\-]", "_", part) for part in parts if part) or "weight"
    return f"{path}_" if path in RESERVED or path.startswith("_phlox") or path in _TAKEN else path


_TAKEN = frozenset({"program", "training"})

"""Checks of PyTorch tensors that users pass, by their methods: PyTorch is not imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_WITHOUT_NUMBERS: dict[Callable[[Any], bool], str] = {
    lambda x: hasattr(x, "materialize"): "a parameter without a shape; call the PyTorch module once, or materialize()",
    lambda x: x.is_meta: "a tensor of the meta device, which has no values; give one of a module that was loaded",
    lambda x: x.is_nested: "a nested tensor; give its parts, as unbind() gives them",
    lambda x: x.is_quantized: "a quantized tensor; call dequantize() first",
    lambda x: not str(x.layout).endswith(".strided"): "a sparse or opaque tensor; call to_dense() first",
    lambda x: hasattr(x, "full_tensor"): "a tensor in shards; call full_tensor() first",
    lambda x: hasattr(x, "get_mask"): "a masked tensor; call to_tensor(0.0) first, or with another value",
    lambda x: hasattr(x, "__tensor_flatten__"): "a tensor computed from others; dequantize() may give a plain one",
}
"""The kinds of tensors without numbers of their own, each with a remedy, in the order of the checks."""


def is_torch(x: object) -> bool:
    """Is this a tensor of PyTorch?"""
    return hasattr(x, "resolve_neg") and hasattr(x, "detach")


def plain(x: Any) -> Any:
    """The tensor without a gradient and without a pending negation; ValueError, with a remedy, if it has no numbers.

    DLPack does not pass on the pending negation of a tensor, such as the imaginary part of a conjugate.
    """
    for matches, remedy in _WITHOUT_NUMBERS.items():
        if matches(x):
            raise ValueError(remedy)
    x = x.detach()
    return x.resolve_conj().resolve_neg() if x.is_neg() or x.is_conj() else x

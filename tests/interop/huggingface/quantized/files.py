"""Folders of small models with quantized weights, made by the definitions of their formats, in NumPy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

import phlox as px
from phlox.interop import huggingface
from phlox.models import GptConfig, LlamaConfig

TOKENS = np.random.default_rng(0).integers(0, 23, (2, 9))
MODELS: dict[str, Any] = {
    "llama": LlamaConfig(vocabulary=23, context=16, n_layers=2, d_model=32, n_heads=2, d_hidden=48),
    "gpt2": GptConfig(vocabulary=23, context=16, n_layers=2, d_model=32, n_heads=2),
}
PLACES = {
    "llama": ["attention.query", "attention.key", "attention.value", "attention.out", "gate", "up", "down"],
    "gpt2": ["attention.query", "attention.key", "attention.value", "attention.out", "up", "down"],
}

Quantize = Callable[[Any], tuple[dict[str, Any], Any]]
"""A weight [outputs, inputs] to its entries below the layer, and to the values that these mean."""


def words(codes: Any, bits: int) -> Any:
    """Codes along the last axis, as Python's integers put them together, the first in the lowest bits."""
    per_word = 32 // bits
    result = np.zeros((*codes.shape[:-1], -(-codes.shape[-1] // per_word)), object)
    for index, code in np.ndenumerate(codes):
        result[(*index[:-1], index[-1] // per_word)] += int(code) << (bits * (index[-1] % per_word))
    return np.where(result < 1 << 31, result, result - (1 << 32)).astype(np.int32)


def make(root: Path, kind: str, quantize: Quantize, config: dict[str, Any]) -> tuple[Path, Path]:
    """A folder with quantized weights, and one with what they mean in floats."""
    quantized, plain = root / "quantized", root / "plain"
    px.random.seed(0)
    model = MODELS[kind].init("numpy").map(lambda _, param: param.map(lambda x: x * 3.0))
    for folder in (quantized, plain):
        huggingface.save(model, folder)
    of_layers = load_file(quantized / "model.safetensors")
    values = dict(of_layers)
    for name in list(of_layers):
        if ("layers." in name or ".h." in name) and of_layers[name].ndim == 2:
            weight = of_layers.pop(name)
            entries, value = quantize(weight.T if kind == "gpt2" else weight)
            of_layers |= {
                f"{name.removesuffix('.weight')}.{own}": np.ascontiguousarray(x) for own, x in entries.items()
            }
            values[name] = np.ascontiguousarray(value.T if kind == "gpt2" else value).astype(np.float32)
    save_file(of_layers, quantized / "model.safetensors", {"format": "pt"})
    save_file(values, plain / "model.safetensors", {"format": "pt"})
    edit_config(quantized, {"quantization_config": config})
    return quantized, plain


def edit_config(folder: Path, changes: dict[str, Any]) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_weights(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "model.safetensors"
    tensors = {name: array.copy() for name, array in load_file(path).items()}
    edit(tensors)
    save_file(tensors, path, {"format": "pt"})


def logits(model: Any) -> Any:
    return model(px.tensor(TOKENS, device=model.tokens.weight.device)).numpy()


def assert_means(folders: tuple[Path, Path], coding: str, kind: str = "llama", device: str = "numpy") -> Any:
    """The quantized folder gives packed weights, and the logits of the plain one."""
    model = huggingface.load(folders[0], device=device)
    plain = huggingface.load(folders[1], device=device)
    for place in PLACES[kind]:
        weight = px.merge(model).blocks[1]
        packed, expected = model.blocks[1], plain.blocks[1]
        for name in place.split("."):
            weight, packed, expected = (getattr(part, name) for part in (weight, packed, expected))
        assert isinstance(packed.weight, px.quantization.Packed) and packed.weight.coding == coding, place
        np.testing.assert_allclose(weight.weight.val().numpy(), expected.weight.val().numpy(), rtol=1e-6, atol=3e-7)
    np.testing.assert_allclose(logits(model), logits(plain), rtol=1e-4, atol=2e-5)
    return model

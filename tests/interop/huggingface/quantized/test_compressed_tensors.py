"""compressed-tensors: files made by hand, loaded as packed weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from phlox.errors import ConfigError, RecordError
from phlox.interop import huggingface
from tests.interop.huggingface.quantized.files import assert_means, edit_config, edit_weights, make, words

GROUP = 16


def config(weights: dict[str, Any], format: str = "pack-quantized", **more: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "input_activations": None, "output_activations": None, "weights": weights}
    return {
        "quant_method": "compressed-tensors", "format": format, "quantization_status": "compressed", "version": "0.9",
        "ignore": ["lm_head"], "global_compression_ratio": 1.5, "kv_cache_scheme": None, "sparsity_config": {},
        "transform_config": {}, "config_groups": {"group_0": group}, **more,
    }  # fmt: skip


def weights(bits: int, strategy: str, symmetric: bool, kind: str = "int") -> dict[str, Any]:
    return {
        "num_bits": bits, "type": kind, "strategy": strategy, "symmetric": symmetric, "dynamic": False,
        "group_size": GROUP if strategy == "group" else None, "actorder": None, "observer": "minmax",
        "observer_kwargs": {}, "block_structure": None,
    }  # fmt: skip


def quantized(weight: Any, bits: int, strategy: str, symmetric: bool, form: str) -> tuple[dict[str, Any], Any]:
    """(q - zero) scale, for q in the range of signed integers, or f8_e4m3."""
    rows, columns = weight.shape
    grouped = weight.reshape({"tensor": (1, 1, -1), "channel": (rows, 1, -1), "group": (rows, -1, GROUP)}[strategy])
    half = 448.0 if form == "float" else 1 << (bits - 1)
    low, high = (np.minimum(grouped.min(-1), 0.0), np.maximum(grouped.max(-1), 0.0))
    scale = np.maximum(high, -low) / (half - (form != "float")) if symmetric else (high - low) / (2 * half - 1)
    scale = scale.astype(ml_dtypes.bfloat16).astype(np.float32)
    zero = np.zeros_like(scale) if symmetric else np.clip(np.round(-half - low / scale), -half, half - 1)
    scales, zeros = (np.broadcast_to(x[..., None], grouped.shape).reshape(rows, columns) for x in (scale, zero))
    shape = {"tensor": (1,), "channel": (rows, 1), "group": (rows, columns // GROUP)}[strategy]
    entries: dict[str, Any] = {"weight_scale": scale.reshape(shape).astype(ml_dtypes.bfloat16).astype(np.float32)}
    if form == "float":
        levels = (weight / scales).astype(ml_dtypes.float8_e4m3fn)
        return {**entries, "weight": levels}, levels.astype(np.float32) * scales
    levels = np.clip(np.round(weight / scales + zeros), -half, half - 1)
    if form == "packed":
        entries |= {"weight_packed": words(levels + half, bits), "weight_shape": np.array([rows, columns])}
    else:
        entries["weight"] = levels.astype(np.int8)
    if not symmetric:
        entries["weight_zero_point"] = zero.reshape(shape).astype(np.int8)
        if form == "packed" and strategy != "tensor":
            entries["weight_zero_point"] = words((zero.reshape(shape) + half).T, bits).T
    return entries, (levels - zeros) * scales


def folders(root: Path, bits: int, strategy: str, symmetric: bool, form: str) -> tuple[Path, Path]:
    kind = "float" if form == "float" else "int"
    format = {"packed": "pack-quantized", "plain": "int-quantized", "float": "float-quantized"}[form]
    own = config(weights(bits, strategy, symmetric, kind), format)
    return make(root, "llama", lambda weight: quantized(weight, bits, strategy, symmetric, form), own)


CASES = [
    *((bits, strategy, symmetric, "packed") for bits in (4, 8) for strategy in ("group", "channel", "tensor")
      for symmetric in (True, False)),
    (8, "channel", True, "plain"), (8, "group", False, "plain"), (8, "tensor", False, "plain"),
    (8, "channel", True, "float"), (8, "tensor", True, "float"),
]  # fmt: skip


@pytest.mark.parametrize(("bits", "strategy", "symmetric", "form"), CASES)
def test_every_scheme(bits: int, strategy: str, symmetric: bool, form: str, tmp_path: Path) -> None:
    made = folders(tmp_path, bits, strategy, symmetric, form)
    assert_means(made, "e4m3" if form == "float" else f"int{bits}")


@pytest.mark.parametrize("device", ["torch", "jax"])
def test_other_engines(device: str, tmp_path: Path) -> None:
    assert_means(folders(tmp_path, 4, "group", False, "packed"), "int4", device=device)


def test_targets_by_name_pattern_and_class(tmp_path: Path) -> None:
    """The first layer is in 8 bits, all others in 4; of several groups, the closest target counts."""
    count = 0

    def quantize(weight: Any) -> Any:
        nonlocal count
        count += 1
        return quantized(weight, 8 if count <= 7 else 4, "channel", True, "packed")

    of_8, of_4 = ({"targets": targets, "weights": weights(bits, "channel", True)} for bits, targets in (
        (8, ["re:.*layers\\.0\\..*"]), (4, ["Linear"])))  # fmt: skip
    made = make(tmp_path, "llama", quantize, config({}, config_groups={"a": of_4, "b": of_8}))
    model = assert_means(made, "int4")
    assert model.blocks[0].up.weight.coding == "int8"


PROJECTION = "model.layers.1.mlp.up_proj"
DAMAGES: dict[str, tuple[Any, str]] = {
    "no scale": (lambda t: t.pop(f"{PROJECTION}.weight_scale"), r"up_proj\.weight_scale: it is missing"),
    "a scale of another shape": (
        lambda t: t.update({f"{PROJECTION}.weight_scale": np.ones((3, 2), np.float32)}),
        r"up_proj\.weight_scale: it must have shape \(48, 2\), found \(3, 2\)",
    ),
    "words of another type": (
        lambda t: t.update({f"{PROJECTION}.weight_packed": np.ones((48, 4))}),
        r"up_proj\.weight_packed: it must be int32, found float64",
    ),
    "no zero points": (lambda t: t.pop(f"{PROJECTION}.weight_zero_point"), "weight_zero_point: it is missing"),
    "an order of columns": (
        lambda t: t.update({f"{PROJECTION}.weight_g_idx": np.arange(32, dtype=np.int32) % 2}),
        r"up_proj\.weight_g_idx: it gives groups of columns that are not next to each other; quantize",
    ),
    "two at once": (
        lambda t: [t.pop(f"{PROJECTION}.weight_scale"), t.pop("model.layers.0.mlp.up_proj.weight_shape")],
        r"(?s)layers\.0\.mlp\.up_proj\.weight_shape: it is missing.*1\.mlp\.up_proj\.weight_scale: it is missing",
    ),
    "another size": (
        lambda t: t.update({f"{PROJECTION}.weight_shape": np.array([48, 24])}),
        r"up_proj\.weight_packed: it must have shape \(48, 3\), found \(48, 4\)",
    ),
    "a layer that the model does not have": (
        lambda t: [t.update({name.replace("up_proj", "side_proj"): t[name]}) for name in list(t) if PROJECTION in name],
        "side_proj",
    ),
}  # fmt: skip


def test_damaged_entries(tmp_path: Path) -> None:
    folder, _ = folders(tmp_path, 4, "group", False, "packed")
    data = (folder / "model.safetensors").read_bytes()
    for edit, message in DAMAGES.values():
        (folder / "model.safetensors").write_bytes(data)
        edit_weights(folder, edit)
        with pytest.raises(RecordError, match=message):
            huggingface.load(folder)


CONFIGS: list[tuple[dict[str, Any], str]] = [
    (config(weights(4, "group", True), "marlin-24"), "format 'marlin-24' of compressed-tensors is not supported"),
    (config(weights(3, "group", True)), "int of 3 bits is not supported"),
    (config(weights(4, "block", True)), "strategy 'block' is not supported"),
    (config(weights(4, "group", True) | {"dynamic": True}), "dynamic=True is not supported"),
    (config(weights(4, "group", True) | {"rotation": 2}), "rotation=2 is not known"),
    (config(weights(4, "group", True), kv_cache_scheme={"num_bits": 8}), "kv_cache_scheme=.* is not supported"),
    (config(weights(4, "group", True), sparsity_config={"format": "sparse-24-bitmask"}), "format='sparse-24-bitmask'"),
    (config(weights(4, "group", True), unheard=1), "unheard=1 is not known"),
    (config({}, config_groups={"a": None}), "config_groups: a is missing"),
    (config({}, config_groups={"a": {"targets": ["Linear"], "weights": weights(8, "channel", True),
            "input_activations": {"num_bits": 8}}}), "input_activations=.* is not supported: inputs of layers"),
    (config({}, config_groups={"a": {"targets": ["re:("], "weights": weights(8, "channel", True)}}), r"'re:\(' is no"),
]  # fmt: skip


def test_configs_that_are_refused(tmp_path: Path) -> None:
    folder, _ = folders(tmp_path, 4, "channel", True, "packed")
    for own, message in CONFIGS:
        edit_config(folder, {"quantization_config": own})
        with pytest.raises(ConfigError, match=message):
            huggingface.load(folder)
    edit_config(folder, {"quantization_config": config({}, config_groups={
        "a": {"targets": ["model.norm"], "weights": weights(4, "channel", True)}})})  # fmt: skip
    with pytest.raises(RecordError, match=r"q_proj\.weight_scale: it is there, but no config group"):
        huggingface.load(folder)

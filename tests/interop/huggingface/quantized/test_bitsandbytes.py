"""bitsandbytes: files made by hand, loaded as packed weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from phlox.backend.contract.nn.packed import CODINGS
from phlox.errors import ConfigError, RecordError
from phlox.interop import huggingface
from tests.interop.huggingface.quantized.files import assert_means, edit_config, edit_weights, make

CONFIG: dict[str, Any] = {
    "quant_method": "bitsandbytes", "_load_in_4bit": True, "_load_in_8bit": False, "load_in_4bit": True,
    "load_in_8bit": False, "bnb_4bit_compute_dtype": "bfloat16", "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_use_double_quant": True, "bnb_4bit_quant_storage": "uint8", "llm_int8_skip_modules": None,
    "llm_int8_threshold": 6.0, "llm_int8_has_fp16_weight": False, "llm_int8_enable_fp32_cpu_offload": False,
}  # fmt: skip


def quantized(weight: Any, kind: str, block: int, outer: int | None) -> tuple[dict[str, Any], Any]:
    """Blocks over the flat matrix, the first code of a byte in its higher half; `outer` is the block of scales."""
    levels, dynamic = CODINGS[kind].levels, CODINGS["dynamic8"].levels
    flat = np.pad(weight.reshape(-1), (0, -weight.size % block)).reshape(-1, block)
    absmax = np.abs(flat).max(1)
    codes = np.abs(flat[..., None] / absmax[:, None, None] - levels).argmin(-1)
    state: dict[str, Any] = {"quant_type": kind, "blocksize": block, "dtype": "float16", "shape": list(weight.shape)}
    entries: dict[str, Any] = {"weight.quant_map": levels, "weight.absmax": absmax}
    if outer is not None:
        offset = float(absmax.mean())
        rest = np.pad(absmax - offset, (0, -len(absmax) % outer)).reshape(-1, outer)
        scale = np.abs(rest).max(1)
        numbers = np.abs(rest[..., None] / scale[:, None, None] - dynamic).argmin(-1)
        absmax = (dynamic[numbers] * scale[:, None]).reshape(-1)[: len(absmax)] + offset
        entries["weight.absmax"] = numbers.reshape(-1)[: len(absmax)].astype(np.uint8)
        entries |= {"weight.nested_absmax": scale, "weight.nested_quant_map": dynamic}
        state |= {"nested_blocksize": outer, "nested_dtype": "float32", "nested_offset": offset}
    pairs = codes.reshape(-1)[: weight.size].reshape(-1, 2).astype(np.uint8)
    entries["weight"] = (pairs[:, :1] << 4) | pairs[:, 1:]
    entries[f"weight.quant_state.bitsandbytes__{kind}"] = np.frombuffer(json.dumps(state).encode(), np.uint8)
    return entries, (levels[codes] * absmax[:, None]).reshape(-1)[: weight.size].reshape(weight.shape)


CASES = [("llama", "nf4", 16, None), ("llama", "fp4", 64, 8), ("gpt2", "nf4", 32, 4), ("gpt2", "nf4", 16, 8)]


@pytest.mark.parametrize(("kind", "coding", "block", "outer"), CASES)
def test_four_bits(kind: str, coding: str, block: int, outer: int | None, tmp_path: Path) -> None:
    """Also where a block of 64 ends in another row of 48 than it began, and scales within a fused matrix."""
    folders = make(tmp_path, kind, lambda weight: quantized(weight, coding, block, outer), CONFIG)
    assert_means(folders, coding, kind)


def test_nested_scales_stay_small_and_other_types_may_hold_the_codes(tmp_path: Path) -> None:
    def quantize(weight: Any) -> Any:
        weight = np.tile(weight, (1, 4))[:, : weight.shape[1]]
        entries, value = quantized(weight, "nf4", 8, 32)
        return entries | {"weight": entries["weight"].reshape(-1, 2).view(ml_dtypes.bfloat16)}, value

    model = assert_means(make(tmp_path, "llama", quantize, CONFIG), "nf4", device="torch")
    weight = model.blocks[0].attention.query.weight
    assert weight.scales.coding == "dynamic8" and weight.scales.scales.shape == (32, 1)


def test_eight_bits(tmp_path: Path) -> None:
    def quantize(weight: Any) -> Any:
        scale = np.abs(weight).max(1)
        codes = np.round(weight / scale[:, None] * 127.0)
        entries = {"weight": codes.astype(np.int8), "SCB": scale, "weight_format": np.array(0, np.uint8)}
        return entries, codes * scale[:, None] / 127.0

    for kind in ("llama", "gpt2"):
        assert_means(make(tmp_path / kind, kind, quantize, CONFIG), "int8", kind)


PLACE = "model.layers.0.mlp.up_proj.weight"
STATE = f"{PLACE}.quant_state.bitsandbytes__nf4"
DAMAGES: list[tuple[Any, str]] = [
    (lambda t: t.pop(f"{PLACE}.absmax"), r"up_proj\.weight\.absmax: it is missing"),
    (lambda t: t.update({f"{PLACE}.absmax": np.ones(5, np.float32)}), r"must have shape \(96,\), found \(5,\)"),
    (lambda t: t.update({PLACE: t[PLACE][:-1]}), r"up_proj\.weight: it has 767 bytes"),
    (lambda t: t.update({f"{PLACE}.quant_map": np.zeros(16, np.float32)}), "quant_map: it has other levels than"),
    (lambda t: t.pop(STATE), r"quant_state\.bitsandbytes__nf4: it is missing"),
    (lambda t: t.update({STATE: np.arange(9, dtype=np.uint8)}), "bitsandbytes__nf4: it is no JSON object"),
    (
        lambda t: t.update({STATE: np.frombuffer(b'{"shape": [2], "blocksize": 4}', np.uint8)}),
        "must have the shape of a",
    ),
    (lambda t: t.pop(PLACE), r"up_proj\.weight: it is missing"),
]


def test_damaged_entries(tmp_path: Path) -> None:
    folder, _ = make(tmp_path, "llama", lambda weight: quantized(weight, "nf4", 16, None), CONFIG)
    data = (folder / "model.safetensors").read_bytes()
    for edit, message in DAMAGES:
        (folder / "model.safetensors").write_bytes(data)
        edit_weights(folder, edit)
        with pytest.raises(RecordError, match=message):
            huggingface.load(folder)
    edit_config(folder, {"quantization_config": CONFIG | {"bnb_rotation": True}})
    with pytest.raises(ConfigError, match="bnb_rotation=True is not known, and may change"):
        huggingface.load(folder)

"""Saving packed weights: what is loaded again is what was saved, and the files are those of the formats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open

import phlox as px
from phlox.backend import Torch
from phlox.backend.contract.nn.packed import unpacked_codes
from phlox.errors import ConfigError
from phlox.interop import huggingface
from phlox.quantization import Gptq
from tests.interop.huggingface.quantized.files import MODELS, TOKENS, logits

WEIGHTS = "blocks.**.weight"


def model(kind: str = "llama", device: Any = "numpy") -> Any:
    px.random.seed(0)
    return MODELS[kind].init(device)


def tensors(folder: Path) -> dict[str, tuple[str, list[int]]]:
    with safe_open(folder / "model.safetensors", "np") as file:
        return {name: (file.get_slice(name).get_dtype(), file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118


def config(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())["quantization_config"]


UP = "model.layers.0.mlp.up_proj.weight"
SCHEMES: list[tuple[dict[str, Any], dict[str, tuple[str, list[int]]]]] = [
    ({"scheme": "int8"}, {"_packed": ("I32", [48, 8]), "_scale": ("F32", [48, 1]), "_shape": ("I64", [2])}),
    ({"scheme": "int4", "group": 16},
     {"_packed": ("I32", [48, 4]), "_scale": ("F32", [48, 2]), "_shape": ("I64", [2])}),
    ({"scheme": "int4", "group": 16, "symmetric": False},
     {"_packed": ("I32", [48, 4]), "_scale": ("F32", [48, 2]), "_shape": ("I64", [2]), "_zero_point": ("I32", [6, 2])}),
    ({"scheme": "int8", "symmetric": False},
     {"_packed": ("I32", [48, 8]), "_scale": ("F32", [48, 1]), "_shape": ("I64", [2]),
      "_zero_point": ("I32", [12, 1])}),
    ({"scheme": "f8_e4m3"}, {"": ("F8_E4M3", [48, 32]), "_scale": ("F32", [48, 1])}),
]  # fmt: skip


@pytest.mark.parametrize(("options", "expected"), SCHEMES)
def test_compressed_tensors(options: dict[str, Any], expected: dict[str, Any], tmp_path: Path) -> None:
    small = px.quantize(model(), WEIGHTS, **options)
    huggingface.save(small, tmp_path, precision="bf16" if options["scheme"] == "f8_e4m3" else "f32")
    assert {name: kind for name, kind in tensors(tmp_path).items() if name.startswith(UP)} == {
        UP + end: kind for end, kind in expected.items()
    }
    again = huggingface.load(tmp_path, device="numpy")
    for name in ("gate", "down"):
        values = [getattr(x.blocks[1], name).weight.val().numpy() for x in (again, small)]
        np.testing.assert_allclose(values[0], values[1], rtol=1e-6, atol=1e-6)
    huggingface.save(again, tmp_path / "again")
    own = config(tmp_path)
    assert own == config(tmp_path / "again") and own["quant_method"] == "compressed-tensors"
    (group,) = own["config_groups"].values()
    assert UP.removesuffix(".weight") in group["targets"] and "lm_head" not in group["targets"]


def test_codes_are_as_the_format_has_them(tmp_path: Path) -> None:
    """Of weights that are the codes themselves."""
    weight = np.tile(np.arange(-8.0, 8.0), (32, 2)).clip(-7, 7)
    small = model()
    small.blocks[0].up.weight.set(px.tensor(np.tile(weight, (2, 1))[:48].T * 0.5, device="numpy", kind=px.Float))
    huggingface.save(px.quantize(small, "blocks.0.up.weight", "int4", group=16), tmp_path)
    with safe_open(tmp_path / "model.safetensors", "np") as file:
        words = file.get_tensor(f"{UP}_packed")
        np.testing.assert_array_equal(file.get_tensor(f"{UP}_scale"), np.full((48, 2), 0.5, np.float32))
    # -7 -7 -6 ... 0 as 1 1 2 ... 7 from the lowest bits on, then 8 ... 15.
    assert [hex(word) for word in words[0].view(np.uint32)] == ["0x76543211", "0xfedcba98"] * 2


@pytest.mark.parametrize(("kind", "device"), [("llama", "numpy"), ("gpt2", "torch")])
def test_bitsandbytes(kind: str, device: str, tmp_path: Path) -> None:
    small = px.quantize(model(kind, device), WEIGHTS, "nf4", group=32 if kind == "gpt2" else 16)
    if kind == "llama":
        with pytest.raises(ConfigError, match=r"has groups of 16; bitsandbytes has blocks of 32 to 4096"):
            huggingface.save(small, tmp_path)
        small = px.quantize(model(), "blocks.*.up.weight", "nf4", group=32)
    huggingface.save(small, tmp_path, precision="f16")
    layer = "transformer.h.0.attn.c_attn" if kind == "gpt2" else UP.removesuffix(".weight")
    rows = 96 if kind == "gpt2" else 48
    kinds = {name.removeprefix(layer): x for name, x in tensors(tmp_path).items() if name.startswith(f"{layer}.weight")}
    state = kinds.pop(".weight.quant_state.bitsandbytes__nf4")
    assert state[0] == "U8" and kinds == {
        ".weight": ("U8", [rows * 16, 1]), ".weight.absmax": ("F32", [rows]), ".weight.quant_map": ("F32", [16]),
    }  # fmt: skip
    own = config(tmp_path)
    assert own["load_in_4bit"] and own["bnb_4bit_quant_type"] == "nf4" and own["bnb_4bit_compute_dtype"] == "float16"
    assert "lm_head" in own["llm_int8_skip_modules"] and layer not in own["llm_int8_skip_modules"]
    again = huggingface.load(tmp_path, device=device)
    values = [x.blocks[0].up.weight.val().numpy() for x in (again, small)]
    np.testing.assert_array_equal(values[0], values[1])
    np.testing.assert_allclose(logits(again), logits(small), rtol=2e-2, atol=2e-3)  # other weights are in f16


def test_plain_models_say_nothing_of_quantization(tmp_path: Path) -> None:
    small = px.quantize(model(), WEIGHTS, "int8")
    huggingface.save(small, tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    huggingface.save(px.merge(small), tmp_path, config=settings)
    assert "quantization_config" not in json.loads((tmp_path / "config.json").read_text())
    np.testing.assert_allclose(logits(huggingface.load(tmp_path, device="numpy")), logits(small), rtol=1e-5, atol=1e-6)


def shifted(weight: Any) -> Any:
    weight.offsets = px.Param(weight.scales.val() * 0.3, trained=False)
    return weight


REFUSED: dict[str, tuple[Any, str]] = {
    "another scheme": (lambda: px.quantize(model(), WEIGHTS, "nvfp4"), "weights of e2m1 do not go into one folder"),
    "two methods": (
        lambda: px.quantize(px.quantize(model(), "blocks.0.up.weight", "nf4", group=32), "blocks.1.up.weight", "int8"),
        "weights of int8 and nf4 do not go into one folder",
    ),
    "an embedding": (lambda: px.quantize(model(), "tokens.weight", "int8"), r"phlox\.merge\(model, 'tokens\.weight'\)"),
    "an adapter": (lambda: px.lora(model(), "blocks.0.up.weight", rank=2), "computed as by Lora: blocks.0.up.weight"),
    "Conv1D": (lambda: px.quantize(model("gpt2"), WEIGHTS, "int8"), "c_attn is a Conv1D in transformers, which has no"),
    "a part of a matrix": (
        lambda: px.quantize(model("gpt2"), "blocks.**.query.weight", "nf4", group=32),
        "blocks.0.attention.query.weight, .* are parts of larger matrices",
    ),
    "parts that differ": (
        lambda: px.quantize(px.quantize(model("gpt2"), "blocks.**.query.weight", "nf4", group=32), [
            "blocks.**.key.weight", "blocks.**.value.weight"], "nf4", group=16),
        "the parts of transformer.h.0.attn.c_attn.weight are packed in different ways",
    ),
    "offsets": (
        lambda: px.reparameterize(px.quantize(model(), "blocks.0.up.weight", "int8"), "blocks.0.up.weight", shifted),
        "the offsets of model.layers.0.mlp.up_proj.weight are no zero points",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_transformers_does_not_have(case: str, tmp_path: Path) -> None:
    make, message = REFUSED[case]
    with pytest.raises(ConfigError, match=message):
        huggingface.save(make(), tmp_path)
    assert not (tmp_path / "config.json").exists()


def test_calibrated_weights(tmp_path: Path) -> None:
    tokens = px.tensor(TOKENS, device="numpy")
    small = px.quantize(model(), "blocks.*.up.weight", "int4", group=16, calibration=Gptq([tokens]))
    huggingface.save(small, tmp_path)
    np.testing.assert_allclose(logits(huggingface.load(tmp_path, device="numpy")), logits(small), rtol=1e-6, atol=1e-6)


def test_values_of_f8_are_those_of_the_type(tmp_path: Path) -> None:
    small = px.quantize(model(), WEIGHTS, "f8_e4m3")
    huggingface.save(small, tmp_path)
    record = px.record.load(tmp_path / "model.safetensors").tensors
    value = record[UP].tensor.read()
    assert value.dtype == ml_dtypes.float8_e4m3fn
    product = value.astype(np.float32) * record[f"{UP}_scale"].tensor.read()
    np.testing.assert_array_equal(product, small.blocks[0].up.weight.val().numpy().T)


def test_zero_points_at_half_precision(tmp_path: Path) -> None:
    """There the offsets are rounded, and the zero points that they come from are found all the same."""
    small = px.quantize(
        model(device=Torch(float="bf16").device()), "blocks.*.up.weight", "int4", group=16, symmetric=False
    )
    huggingface.save(small, tmp_path)
    with safe_open(tmp_path / "model.safetensors", "np") as file:
        zeros = unpacked_codes(np.ascontiguousarray(file.get_tensor(f"{UP}_zero_point").T), 4).T[:48]
        scales = file.get_tensor(f"{UP}_scale")
    offsets = small.blocks[0].up.weight.offsets.val().to_full_precision().numpy()
    np.testing.assert_allclose(zeros.astype(np.float32) * -scales, offsets, rtol=2**-8)

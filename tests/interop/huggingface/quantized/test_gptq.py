"""GPTQ and AWQ: files made by hand, loaded as packed weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phlox.errors import ConfigError, RecordError
from phlox.interop import huggingface
from tests.interop.huggingface.quantized.files import assert_means, edit_config, edit_weights, make, words

GROUP = 16
GPTQ: dict[str, Any] = {
    "quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": True, "damp_percent": 0.01,
    "checkpoint_format": "gptq", "pack_dtype": "int32", "true_sequential": True,
}  # fmt: skip
AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "GEMM"}
ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def rounded(weight: Any, bits: int, symmetric: bool) -> tuple[Any, Any, Any, Any]:
    """Codes [inputs, outputs], zero points and scales [groups, outputs], and what they mean [outputs, inputs]."""
    grouped = weight.T.reshape(-1, GROUP, weight.shape[0])
    most = (1 << bits) - 1
    low, high = np.minimum(grouped.min(1), -0.01), np.maximum(grouped.max(1), 0.01)
    scale = np.maximum(-low, high) * 2 / most if symmetric else (high - low) / most
    scale = scale.astype(np.float16)
    zero = np.full(scale.shape, 1 << (bits - 1)) if symmetric else np.clip(np.round(-low / scale), 1, most)
    codes = np.clip(np.round(grouped / scale[:, None] + zero[:, None]), 0, most)
    value = ((codes - zero[:, None]) * scale[:, None].astype(np.float32)).reshape(weight.T.shape).T
    return codes.reshape(weight.T.shape), zero, scale, value


def gptq(weight: Any, bits: int, symmetric: bool, less: int) -> tuple[dict[str, Any], Any]:
    codes, zero, scale, value = rounded(weight, bits, symmetric)
    groups = np.arange(weight.shape[1], dtype=np.int32) // GROUP
    entries = {"qweight": words(codes.T, bits).T, "qzeros": words(zero - less, bits), "scales": scale, "g_idx": groups}
    return entries, value


def awq(weight: Any) -> tuple[dict[str, Any], Any]:
    codes, zero, scale, value = rounded(weight, 4, False)
    own = [words(x.reshape(len(x), -1, 8)[..., ORDER].reshape(len(x), -1), 4) for x in (codes, zero)]
    return {"qweight": own[0], "qzeros": own[1], "scales": scale}, value


@pytest.mark.parametrize(
    ("kind", "bits", "symmetric", "version"),
    [("llama", 4, True, "gptq"), ("llama", 4, False, "gptq"), ("llama", 8, True, "gptq"),
     ("llama", 8, False, "gptq_v2"), ("gpt2", 4, False, "gptq")],
)  # fmt: skip
def test_gptq(kind: str, bits: int, symmetric: bool, version: str, tmp_path: Path) -> None:
    config = GPTQ | {"bits": bits, "checkpoint_format": version}
    made = make(tmp_path, kind, lambda weight: gptq(weight, bits, symmetric, int(version == "gptq")), config)
    assert_means(made, f"int{bits}" if symmetric else f"uint{bits}", kind)


@pytest.mark.parametrize("device", ["numpy", "torch", "jax"])
def test_awq(device: str, tmp_path: Path) -> None:
    assert_means(make(tmp_path, "llama", awq, AWQ), "uint4", device=device)


PLACE = "model.layers.1.self_attn.q_proj"


def test_what_is_refused(tmp_path: Path) -> None:
    folder, _ = make(tmp_path, "llama", lambda weight: gptq(weight, 4, True, 1), GPTQ)
    data = (folder / "model.safetensors").read_bytes()
    order = np.arange(32, dtype=np.int32) % 2
    for edit, message in (
        (lambda t: t.update({f"{PLACE}.g_idx": order}), r"q_proj\.g_idx: it gives groups .* with desc_act=False"),
        (lambda t: t.pop(f"{PLACE}.qzeros"), r"q_proj\.qzeros: it is missing"),
        (
            lambda t: t.update({f"{PLACE}.scales": np.ones((3, 32), np.float16)}),
            r"q_proj\.qweight: it has shape \(4, 32\)",
        ),
    ):
        (folder / "model.safetensors").write_bytes(data)
        edit_weights(folder, edit)
        with pytest.raises(RecordError, match=message):
            huggingface.load(folder)
    for config, message in (
        (GPTQ | {"bits": 3}, r"bits=3 is not supported; \(4, 8\) are"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format='marlin' is not supported"),
        (GPTQ | {"dynamic": {"a": {}}}, "dynamic=.* is not supported: layers would have different bits"),
        (GPTQ | {"hessian": 1}, "hessian=1 is not known"),
        (AWQ | {"version": "gemv"}, "version='gemv' of AWQ is not supported"),
    ):
        edit_config(folder, {"quantization_config": config})
        with pytest.raises(ConfigError, match=message):
            huggingface.load(folder)

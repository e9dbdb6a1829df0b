"""Loading quantized folders: methods, memory, and what a model does with its weights afterwards."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox.errors import ConfigError, RecordError
from phlox.interop import huggingface
from phlox.models import LlamaConfig
from tests.interop.huggingface.quantized.files import TOKENS, edit_config, edit_weights, logits, make
from tests.interop.huggingface.quantized.test_bitsandbytes import CONFIG, quantized


@pytest.mark.parametrize("method", ["hqq", "fp8", ""])
def test_other_methods_are_refused_by_name(method: str, tmp_path: Path) -> None:
    folder, _ = make(tmp_path, "llama", lambda weight: quantized(weight, "nf4", 16, None), CONFIG)
    edit_config(folder, {"quantization_config": {"quant_method": method, "bits": 4}})
    with pytest.raises(
        ConfigError, match=f"quant_method='{method}' cannot be loaded; supported are: compressed-tensors"
    ):
        huggingface.load(folder)
    data = {"model_type": "gpt2", "quantization_config": {"quant_method": method, "bits": 4}}
    with pytest.raises(ConfigError, match="cannot be loaded"):
        huggingface.config_from(data)


def test_an_empty_config_means_plain_weights(tmp_path: Path) -> None:
    _, plain = make(tmp_path, "llama", lambda weight: quantized(weight, "nf4", 16, None), CONFIG)
    edit_config(plain, {"quantization_config": {}})
    assert type(huggingface.load(plain, device="numpy").blocks[0].up.weight) is px.Param


def test_a_tied_head_is_not_quantized_alone(tmp_path: Path) -> None:
    folder, _ = make(tmp_path, "llama", lambda weight: quantized(weight, "nf4", 16, None), CONFIG)
    edit_config(folder, {"tie_word_embeddings": True})
    head, _ = quantized(np.ones((23, 32), np.float32), "nf4", 16, None)
    edit_weights(folder, lambda t: [t.pop("lm_head.weight"), t.update({f"lm_head.{n}": x for n, x in head.items()})])
    with pytest.raises(RecordError, match="lm_head.weight: a quantized weight cannot be tied to another entry"):
        huggingface.load(folder)


def test_adapters_train_and_records_and_programs_work(tmp_path: Path) -> None:
    folder, _ = make(tmp_path, "llama", lambda weight: quantized(weight, "nf4", 16, 8), CONFIG)
    model = huggingface.load(folder, device="numpy")
    compiled = px.compile(lambda m, x: m(x))(huggingface.load(folder, device="jax"), px.tensor(TOKENS, device="jax"))
    np.testing.assert_allclose(compiled.numpy(), logits(model), rtol=1e-4, atol=1e-5)
    again = huggingface.load(folder, device="numpy").load_record(model.into_record())
    np.testing.assert_array_equal(logits(again), logits(model))
    tuned = px.lora(model, "blocks.*.up.weight", rank=2).train()
    _, grads = px.value_and_grad(lambda m: m(px.tensor(TOKENS, device="numpy")).square().mean())(tuned)
    trained = [path for path, param in tuned.named_params() if grads.get(param.id) is not None]
    assert trained and all("up.weight" in path and "codes" not in path and "scales" not in path for path in trained)


def test_the_model_is_never_held_in_floats(tmp_path: Path) -> None:
    """Of a file of 3 MB, whose weights take 20 in f32, no more than the file is in memory, and parts of one matrix."""
    model: Any = LlamaConfig(vocabulary=16, context=16, n_layers=8, d_model=256, n_heads=2, d_hidden=512).init("numpy")
    path = tmp_path / "model.safetensors"
    huggingface.save(px.quantize(model, "blocks.**.weight", "nf4"), tmp_path)
    huggingface.load(tmp_path, device="numpy")  # what is imported and cached once
    tracemalloc.start()
    loaded = huggingface.load(tmp_path, device="numpy")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1.1 * path.stat().st_size + 4 * 256 * 512 / 2 + 1e6, peak / path.stat().st_size
    assert loaded.blocks[3].up.weight.nbytes < 0.15 * 4 * 256 * 512

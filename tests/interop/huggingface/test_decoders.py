"""Small random models of each family of decoders give the logits and texts of transformers, and go back."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox.errors import ConfigError
from phlox.interop import huggingface
from phlox.models import DecoderConfig, LlamaConfig

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 10000.0}
LONG = {
    "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 8,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5], "long_factor": [2.0, 2.1, 2.2, 2.3, 3.4, 4.5],
}  # fmt: skip
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral": ("Mistral", {"sliding_window": 4}),
    "mistral whole": ("Mistral", {"head_dim": 16, "sliding_window": None}),
    "qwen2": ("Qwen2", {}),
    "qwen2 windows": ("Qwen2", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 2}),
    "qwen3": ("Qwen3", {"head_dim": 16, "tie_word_embeddings": True, "attention_bias": True}),
    "smollm3": ("SmolLM3", {"no_rope_layer_interval": 3}),
    "olmo2": ("Olmo2", {}),
    "gemma": ("Gemma", {"head_dim": 16}),
    "gemma2": ("Gemma2", {"head_dim": 12, "sliding_window": 4, "query_pre_attn_scalar": 24}),
    "gemma3": ("Gemma3", {"head_dim": 16, "sliding_window": 4, "num_hidden_layers": 7}),
    "phi3": ("Phi3", {"sliding_window": 5, "rope_parameters": {**PLAIN, "partial_rotary_factor": 0.5}}),
    "phi3 long": ("Phi3", {"original_max_position_embeddings": 8, "rope_parameters": LONG}),
    "gpt_neox": ("GPTNeoX", {"hidden_size": 64}),
    "gpt_neox in turn": ("GPTNeoX", {"hidden_size": 64, "use_parallel_residual": False}),
    "llama yarn": ("Llama", {"rope_parameters": YARN}),
    "llama yarn scaled": ("Llama", {"rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.5}}),
    "llama dynamic": ("Llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}),
}
TOKENS = np.arange(3, 17)[None]


def theirs(kind: str, more: dict[str, Any]) -> tuple[Any, Any, Any]:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    sizes = {key: value for key, value in SIZES.items() if kind != "GPTNeoX" or key != "num_key_value_heads"}
    config = getattr(transformers, f"{'Gemma3Text' if kind == 'Gemma3' else kind}Config")(**{**sizes, **more})
    torch.manual_seed(0)
    cls = getattr(transformers, f"{kind}ForCausalLM")
    model = cls(config).eval()
    corrections = [buffer for name, buffer in model.named_buffers() if name.endswith("correction_bias")]
    for parameter in (*model.parameters(), *corrections):
        parameter.data += torch.randn_like(parameter) * 0.05
    return torch, cls, model


@pytest.mark.parametrize("case", CASES)
def test_logits_and_texts_are_theirs(case: str, tmp_path: Path) -> None:
    # A cache that is filled in pieces; with the long factors, keys before the border have the short ones.
    check_model(*CASES[case], tmp_path, pieces=() if case == "phi3 long" else (0, 3, 4, 9, 14))


def check_model(kind: str, more: dict[str, Any], tmp_path: Path, pieces: Sequence[int] = (0, 3, 4, 9, 14)) -> None:
    """A random model of a kind gives its logits and text on each engine, and is read by transformers when saved.

    Two texts in one row have the logits of each text alone.
    """
    torch, cls, reference = theirs(kind, more)
    reference.save_pretrained(tmp_path / "theirs")
    with torch.no_grad():
        expected = reference(torch.tensor(TOKENS)).logits.numpy()
        text = reference.generate(torch.tensor(TOKENS), max_new_tokens=8, do_sample=False, pad_token_id=0).numpy()
        alone = [reference(torch.tensor(TOKENS[:, span])).logits.numpy() for span in (slice(5), slice(5, 14))]
    for backend in ("numpy", "jax", "torch"):
        model = huggingface.load(tmp_path / "theirs", device=backend)
        logits = model(px.tensor(TOKENS, device=backend)).numpy()
        np.testing.assert_allclose(logits, expected, atol=1e-5, err_msg=backend)
    model = huggingface.load(tmp_path / "theirs", device="numpy")
    tokens = px.tensor(TOKENS, device="numpy")
    packed = model(tokens, segments=px.tensor([[1] * 5 + [2] * 9], device="numpy")).numpy()
    np.testing.assert_allclose(packed, np.concatenate(alone, 1), atol=1e-5)
    np.testing.assert_array_equal(model.generate(tokens, 8, temperature=0.0).numpy(), text)
    if pieces:
        cache, parts = model.init_cache(1, 16), []
        for start, stop in pairwise(pieces):
            logits, cache = model(tokens[:, start:stop], cache=cache)
            parts.append(logits.numpy())
        np.testing.assert_allclose(np.concatenate(parts, 1), expected, atol=1e-5)
    huggingface.save(model, tmp_path / "ours")
    again = cls.from_pretrained(tmp_path / "ours").eval()
    with torch.no_grad():
        np.testing.assert_allclose(again(torch.tensor(TOKENS)).logits.numpy(), expected, atol=2e-6)


def test_what_a_family_does_not_have_is_refused(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"vocabulary": 97, "context": 16, "n_layers": 2, "d_model": 16, "n_heads": 2}
    for config, words in (
        (DecoderConfig(**sizes, family="qwen3"), ("query_norm", "qwen3", "heads")),
        (DecoderConfig(**sizes, family="mistral", logits_cap=30.0), ("logits_cap", "30.0", "mistral")),
        (DecoderConfig(**sizes, family="mistral", unrotated_layers=(1,)), ("unrotated_layers", "mistral")),
        (DecoderConfig(**sizes, family="mistral", embedding_scale=4.0), ("embedding_scale", "mistral")),
        (DecoderConfig(**sizes, family="mistral", d_rotary=4), ("d_rotary", "mistral")),
        (DecoderConfig(**sizes, family="gemma", norm_offset=1.0, embedding_scale=2.0), ("sqrt(d_model)", "2.0")),
        (LlamaConfig(**sizes, logits_cap=30.0), ("logits_cap", "llama")),
        (DecoderConfig(**sizes, family="olmo2", norm_place="both", query_norm="all"), ("norm_place", "olmo2")),
    ):
        with pytest.raises(ConfigError) as caught:
            huggingface.save(config.init("numpy"), tmp_path)
        assert all(word in str(caught.value) for word in words), str(caught.value)
    both_ways = {"model_type": "gemma2", "use_bidirectional_attention": True}
    linear = {"model_type": "qwen2", "layer_types": ["linear_attention"] * 32, "use_sliding_window": True}
    for data, words in (
        ({"model_type": "mistral", "attn_logit_softcapping": 50.0}, ("attn_logit_softcapping", "not known")),
        ({"model_type": "mistral", "partial_rotary_factor": 0.5}, ("partial_rotary_factor", "rotated")),
        (both_ways, ("use_bidirectional_attention", "see all others")),
        (linear, ("linear_attention",)),
        ({"model_type": "qwen3", "num_experts": 8}, ("num_experts", "not known")),
        ({"model_type": "mistral", "layer_types": 3}, ("impossible value", "int")),
        ({"model_type": "qwen2", "num_attention_heads": 0}, ("impossible value", "zero")),
        ({"model_type": "gemma2", "attn_logit_softcapping": 0.0}, ("attention_cap", "positive")),
        ({"model_type": "gemma3_text", "attn_logit_softcapping": 50.0}, ("attn_logit_softcapping", "no cap")),
        ({"model_type": "deepseek_v3", "n_routed_experts": 8}, ("8 groups", "two experts")),
    ):
        with pytest.raises(ConfigError) as caught:
            huggingface.config_from(data)
        assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    ("data", "field", "value"),
    [
        ({"model_type": "smollm3"}, "rotary_base", 2e6),
        ({"model_type": "gemma3_text"}, "rotary_base", 1e6),
        ({"model_type": "gemma3_text"}, "local_rotary_base", 1e4),
        ({"model_type": "gemma2"}, "attention_cap", 50.0),
        ({"model_type": "gemma2"}, "logits_cap", 30.0),
        ({"model_type": "gemma2", "attn_logit_softcapping": None}, "attention_cap", None),
        ({"model_type": "qwen2_moe"}, "experts.top_k", 4),
        ({"model_type": "qwen3_moe"}, "experts.top_k", 8),
        ({"model_type": "deepseek_v3", "n_routed_experts": 256, "num_key_value_heads": 32}, "experts.scale", 2.5),
        ({"model_type": "electra"}, "n_heads", 4),
        ({"model_type": "t5", "scale_decoder_outputs": None}, "logits_scale", 1.0),
    ],
)
def test_what_a_file_leaves_out_or_sets_to_null_is_what_transformers_has(
    data: dict[str, Any], field: str, value: Any
) -> None:
    config: Any = huggingface.config_from(data)
    for name in field.split("."):
        config = getattr(config, name)
    assert config == value

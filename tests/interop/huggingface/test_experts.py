"""Small random models with experts give the logits and texts of transformers; all forms of their files are read."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox.errors import ConfigError
from phlox.interop import huggingface
from phlox.models import DecoderConfig, ExpertsConfig
from tests.interop.huggingface.test_decoders import TOKENS, YARN, check_model, theirs

QWEN: dict[str, Any] = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
QWEN2: dict[str, Any] = {**QWEN, "shared_expert_intermediate_size": 40}
GPT_OSS: dict[str, Any] = {
    "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 12, "sliding_window": 4, "num_hidden_layers": 2,
    "rope_parameters": YARN,
}  # fmt: skip
DEEPSEEK: dict[str, Any] = {
    "num_key_value_heads": 4, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
    "kv_lora_rank": 16, "q_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 12, "v_head_dim": 10,
    "first_k_dense_replace": 1, "num_hidden_layers": 3,
}  # fmt: skip
GROUPS: dict[str, Any] = {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2}
QUICK: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_hidden_layers": 2, "sliding_window": 4}),
    "qwen2_moe": ("Qwen2Moe", {**QWEN2, "decoder_sparse_step": 2, "num_hidden_layers": 2}),
    "qwen3_moe": ("Qwen3Moe", {**QWEN, "mlp_only_layers": [1], "head_dim": 16, "num_hidden_layers": 3}),
    "gpt_oss": ("GptOss", GPT_OSS),
    "deepseek_v2": ("DeepseekV2", {**DEEPSEEK, "q_lora_rank": None}),
    "deepseek_v3": ("DeepseekV3", {**DEEPSEEK, "n_group": 4, "topk_group": 2}),
}
FULL: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral tied": ("Mixtral", {
        "num_local_experts": 4, "head_dim": 16, "tie_word_embeddings": True, "num_experts_per_tok": 3,
        "output_router_logits": True, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
    }),
    "qwen2_moe windows": ("Qwen2Moe", {
        **QWEN2, "mlp_only_layers": [1], "norm_topk_prob": True, "qkv_bias": False, "use_sliding_window": True,
        "sliding_window": 4, "max_window_layers": 3,
    }),
    "qwen3_moe windows": ("Qwen3Moe", {
        **QWEN, "norm_topk_prob": True, "attention_bias": True, "use_sliding_window": True, "sliding_window": 4,
        "tie_word_embeddings": True, "decoder_sparse_step": 3,
    }),
    "gpt_oss whole": ("GptOss", {
        **GPT_OSS, "attention_bias": False, "swiglu_limit": 0.5, "swiglu_alpha": 1.3,
        "layer_types": ["full_attention"] * 2,
    }),
    "gpt_oss defaults": ("GptOss", {"num_local_experts": 4, "num_experts_per_tok": 4, "head_dim": 12}),
    "deepseek_v2 groups": ("DeepseekV2", {
        **DEEPSEEK, **GROUPS, "routed_scaling_factor": 1.5, "attention_bias": True, "mlp_bias": True,
        "rms_norm_eps": 1e-4, "rope_parameters": {**YARN, "mscale": 0.707, "mscale_all_dim": 0.707},
    }),
    "deepseek_v3 halves": ("DeepseekV3", {
        **DEEPSEEK, "q_lora_rank": None, "n_group": 1, "topk_group": 1, "norm_topk_prob": False,
        "rope_interleave": False, "n_shared_experts": 2, "rms_norm_eps": 1e-4, "attention_bias": True,
        "tie_word_embeddings": True, "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.5},
    }),
}  # fmt: skip


@pytest.mark.parametrize("case", QUICK)
def test_logits_and_texts_are_theirs(case: str, tmp_path: Path) -> None:
    check_model(*QUICK[case], tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("case", FULL)
def test_unusual_models_give_their_logits_and_texts(case: str, tmp_path: Path) -> None:
    check_model(*FULL[case], tmp_path)


@pytest.mark.parametrize("case", ["mixtral", "qwen3_moe"])
def test_experts_are_read_as_stacks_too(case: str, tmp_path: Path) -> None:
    torch, _, reference = theirs(*QUICK[case])
    reference.save_pretrained(tmp_path)
    safetensors = pytest.importorskip("safetensors.torch")
    tensors = {name: tensor.clone() for name, tensor in reference.state_dict().items()}
    assert any(name.endswith("experts.gate_up_proj") for name in tensors)
    safetensors.save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with torch.no_grad():
        expected = reference(torch.tensor(TOKENS)).logits.numpy()
    model = huggingface.load(tmp_path, device="numpy")
    np.testing.assert_allclose(model(px.tensor(TOKENS, device="numpy")).numpy(), expected, atol=1e-5)


def test_weights_of_4_bits_stay_packed(tmp_path: Path) -> None:
    # The sizes are whole groups of 32.
    torch, _, reference = theirs("GptOss", {**GPT_OSS, "hidden_size": 64, "intermediate_size": 32, "head_dim": 16})
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    tensors: dict[str, Any] = {}
    for name, parameter in reference.named_parameters():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            n, inputs, outputs = parameter.shape
            blocks = torch.randint(0, 256, (n, outputs, inputs // 32, 16), dtype=torch.uint8)
            scales = torch.randint(118, 124, (n, outputs, inputs // 32), dtype=torch.uint8)
            parameter.data = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
            tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        else:
            tensors[name] = parameter.data
    reference.save_pretrained(tmp_path)
    pytest.importorskip("safetensors.torch").save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    settings = json.loads((tmp_path / "config.json").read_text())
    settings["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with torch.no_grad():
        expected = reference(torch.tensor(TOKENS)).logits.numpy()
    for backend in ("numpy", "torch"):
        model = huggingface.load(tmp_path, device=backend)
        assert list(model.blocks[0].experts.gate.weight.codes) == ["e2m1_g32"]
        tokens = px.tensor(TOKENS, device=backend)
        np.testing.assert_allclose(model(tokens).numpy(), expected, atol=1e-5)
        logits, cache = model(tokens[:, :1], cache=model.init_cache(1, 16))  # unpacks a few matrices
        for i in range(1, TOKENS.shape[1]):
            logits, cache = model(tokens[:, i : i + 1], cache=cache)
        np.testing.assert_allclose(logits.numpy()[:, -1], expected[:, -1], atol=1e-5)
    with pytest.raises(ConfigError, match="packed weights of linear layers alone"):
        huggingface.save(model, tmp_path)


def test_layers_that_predict_further_tokens_are_left_out(tmp_path: Path) -> None:
    torch, _, reference = theirs("DeepseekV3", {**DEEPSEEK, "n_group": 1, "topk_group": 1})
    reference.save_pretrained(tmp_path)
    safetensors = pytest.importorskip("safetensors.torch")
    tensors = safetensors.load_file(tmp_path / "model.safetensors")
    further = {
        name.replace("layers.2.", "layers.3."): part.clone() for name, part in tensors.items() if ".layers.2." in name
    }
    further["model.layers.3.eh_proj.weight"] = torch.ones(3, 3)
    safetensors.save_file({**tensors, **further}, tmp_path / "model.safetensors", {"format": "pt"})
    assert len(huggingface.load(tmp_path, device="numpy").blocks) == 3


def test_losses_of_routers_are_theirs(tmp_path: Path) -> None:
    more = {**QWEN, "output_router_logits": True, "router_aux_loss_coef": 0.1, "mlp_only_layers": [1]}
    torch, _, reference = theirs("Qwen3Moe", {**more, "num_hidden_layers": 3})
    reference.save_pretrained(tmp_path)
    tokens = torch.tensor(TOKENS)
    expected = reference(tokens, labels=tokens).loss.item()
    model = huggingface.load(tmp_path, device="numpy")
    ours = px.tensor(TOKENS, device="numpy")
    # Each position predicts the next token; routers see the last one too.
    x, routings = model.with_routings(ours)
    loss = px.functional.cross_entropy(model.logits(x)[:, :-1], ours[:, 1:]) + px.nn.balance_loss(routings) * 0.1
    np.testing.assert_allclose(loss.item(), expected, rtol=1e-5)


REAL: dict[str, tuple[dict[str, Any], int]] = {
    "DeepSeek-V3": ({
        "model_type": "deepseek_v3", "aux_loss_alpha": 0.001, "ep_size": 1, "first_k_dense_replace": 3,
        "hidden_size": 7168, "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 163840,
        "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256,
        "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 128, "num_experts_per_tok": 8,
        "num_hidden_layers": 61, "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "q_lora_rank": 1536,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rope_theta": 10000, "routed_scaling_factor": 2.5,
        "rope_scaling": {
            "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 4096, "type": "yarn",
        },
        "scoring_func": "sigmoid", "seq_aux": True, "topk_group": 4, "topk_method": "noaux_tc", "v_head_dim": 128,
        "vocab_size": 129280,
    }, 671026419200),
    "gpt-oss-20b": ({
        "model_type": "gpt_oss", "experts_per_token": 4, "hidden_size": 2880, "initial_context_length": 4096,
        "intermediate_size": 2880, "layer_types": ["sliding_attention", "full_attention"] * 12,
        "max_position_embeddings": 131072, "num_attention_heads": 64, "num_experts_per_tok": 4,
        "num_hidden_layers": 24, "num_key_value_heads": 8, "num_local_experts": 32, "rope_theta": 150000,
        "rope_scaling": {
            "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
            "rope_type": "yarn", "truncate": False,
        },
        "quantization_config": {"quant_method": "mxfp4"}, "swiglu_limit": 7.0, "vocab_size": 201088,
    }, 20914757184),
    "Qwen3-30B-A3B": ({
        "model_type": "qwen3_moe", "decoder_sparse_step": 1, "head_dim": 128, "hidden_size": 2048,
        "intermediate_size": 6144, "max_position_embeddings": 40960, "max_window_layers": 48, "mlp_only_layers": [],
        "moe_intermediate_size": 768, "norm_topk_prob": True, "num_attention_heads": 32, "num_experts": 128,
        "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4, "rope_theta": 1000000.0,
        "vocab_size": 151936,
    }, 30532122624),
}  # fmt: skip


@pytest.mark.parametrize("name", REAL)
def test_configs_of_published_models_have_their_number_of_parameters(name: str) -> None:
    settings, count = REAL[name]
    model: Any = huggingface.config_from(settings)
    assert sum(math.prod(param.shape) for param in model.init("numpy").params()) == count


def test_what_a_family_does_not_have_is_refused(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"vocabulary": 97, "context": 16, "n_layers": 2, "d_model": 16, "n_heads": 2}
    experts = ExpertsConfig(n_experts=4, top_k=2, d_hidden=8)
    scaled, some = experts.replace(scale=2.0), experts.replace(layers=(0,))
    for config, words in (
        (DecoderConfig(**sizes, family="mixtral"), ("without experts", "mixtral")),
        (DecoderConfig(**sizes, family="mixtral", experts=some.replace(d_hidden=None)), ("layers", "(0,)")),
        (DecoderConfig(**sizes, family="qwen3_moe", query_norm="heads", experts=scaled), ("scale=2.0", "qwen3_moe")),
        (DecoderConfig(**sizes, family="deepseek_v3", experts=scaled), ("scores", "sigmoid")),
        (DecoderConfig(**sizes, family="mistral", experts=experts), ("experts", "mistral")),
    ):
        with pytest.raises(ConfigError) as caught:
            huggingface.save(config.init("numpy"), tmp_path)
        assert all(word in str(caught.value) for word in words), str(caught.value)
    fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    for data, words in (
        ({"model_type": "mixtral", "router_jitter_noise": 0.1}, ("router_jitter_noise", "noisy")),
        ({"model_type": "mixtral", "layer_types": ["full_attention"] * 32}, ("layer_types", "not known")),
        ({"model_type": "qwen3_moe", "shared_expert_intermediate_size": 8}, ("shared_expert", "not known")),
        ({"model_type": "gpt_oss", "router_bias": False}, ("router_bias", "not known")),
        ({"model_type": "deepseek_v2", "num_key_value_heads": 4}, ("num_key_value_heads=4", "32 heads")),
        ({"model_type": "deepseek_v2", "scoring_func": "sigmoid"}, ("scoring_func", "scores")),
        ({"model_type": "deepseek_v2", "topk_method": "noaux_tc"}, ("noaux_tc",)),
        ({"model_type": "deepseek_v2", "norm_topk_prob": True}, ("norm_topk_prob", "sum")),
        ({"model_type": "deepseek_v3", "topk_method": "greedy"}, ("topk_method", "another way")),
        ({"model_type": "deepseek_v3", "moe_layer_freq": 2}, ("moe_layer_freq",)),
        ({"model_type": "deepseek_v3", "quantization_config": fp8}, ("fp8", "dequantize")),
    ):
        with pytest.raises(ConfigError) as caught:
            huggingface.config_from({"num_attention_heads": 32, **data})
        assert all(word in str(caught.value) for word in words), str(caught.value)

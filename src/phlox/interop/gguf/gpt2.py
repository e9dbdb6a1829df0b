"""GPT-2 in GGUF: as at Hugging Face, but for the weights, whose rows are outputs."""

from __future__ import annotations

from typing import Any

from phlox.interop.adapter import Rule, rename, transpose
from phlox.interop.gguf.family import Architecture, Key
from phlox.interop.huggingface.gpt2 import Gpt2
from phlox.models import GptConfig

_TRANSPOSED = (
    ("blk.*.attn_qkv", "transformer.h.*.attn.c_attn"),
    ("blk.*.attn_output", "transformer.h.*.attn.c_proj"),
    ("blk.*.ffn_up", "transformer.h.*.mlp.c_fc"),
    ("blk.*.ffn_down", "transformer.h.*.mlp.c_proj"),
)


class GgufGpt2(Architecture):
    """`Gpt` as gpt2."""

    name = "gpt2"
    family = Gpt2()
    keys = (
        Key("vocab_size", "vocab_size", is_required=False),
        Key("context_length", "n_positions"),
        Key("embedding_length", "n_embd"),
        Key("block_count", "n_layer"),
        Key("attention.head_count", "n_head"),
        Key("feed_forward_length", "n_inner"),
        Key("attention.layer_norm_epsilon", "layer_norm_epsilon", "f32"),
    )
    assumed = {"activation_function": "gelu_new"}  # noqa: RUF012
    absent = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}  # noqa: RUF012
    names = (
        ("token_embd", "transformer.wte"),
        ("position_embd", "transformer.wpe"),
        ("output_norm", "transformer.ln_f"),
        ("output", "lm_head"),
        ("blk.*.attn_norm", "transformer.h.*.ln_1"),
        ("blk.*.ffn_norm", "transformer.h.*.ln_2"),
    )
    unpacked = ("position_embd.weight",)

    def rules(self, config: GptConfig) -> list[Rule]:
        """See `Architecture.rules`."""
        rules = super().rules(config)
        for theirs, other in _TRANSPOSED:
            rules += [transpose(f"{theirs}.weight", f"{other}.weight"), rename(f"{theirs}.bias", f"{other}.bias")]
        return rules

    def further_keys(self, config: GptConfig) -> dict[str, tuple[str, Any]]:
        """See `Architecture.further_keys`."""
        return {"feed_forward_length": ("u32", config.hidden_width)}

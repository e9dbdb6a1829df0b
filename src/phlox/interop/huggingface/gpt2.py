"""GPT-2 in the files of Hugging Face: fused projections, and weights in Phlox's layout."""

from __future__ import annotations

from typing import Any, ClassVar

from phlox.errors import ConfigError
from phlox.interop.adapter import Rule, rename, split
from phlox.interop.huggingface.family import CausalFamily, Entry
from phlox.interop.huggingface.settings import Settings
from phlox.models import GptConfig

_PAIRS = (
    ("attn.c_proj", "attention.out"),
    ("mlp.c_fc", "up"),
    ("mlp.c_proj", "down"),
)


class Gpt2(CausalFamily):
    """`Gpt` as GPT2LMHeadModel. GPT2Model, which has no head, is loaded if the head is the embedding's transpose."""

    model_type = "gpt2"
    configs = (GptConfig,)
    architectures = ("GPT2LMHeadModel", "GPT2Model")
    prefix = "transformer"
    weights = (("wte.weight", "tokens.weight"), ("wpe.weight", "positions"))
    outer_norms = (("ln_f", "norm"),)
    layers = "h"
    norms = (("ln_1", "norm_1"), ("ln_2", "norm_2"))
    no_weights = ("**.attn.bias", "**.attn.masked_bias")  # former versions saved the causal mask
    unsupported = (
        ("scale_attn_weights", True, "attention scores would not be divided by the square root of the head width"),
        ("is_causal", True, "each token would see all others"),
        ("scale_attn_by_inverse_layer_idx", False, "each layer would divide its attention scores by its index"),
    )

    other_names: ClassVar = {
        "hidden_size": "n_embd",
        "max_position_embeddings": "n_positions",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    }
    # n_ctx is a former name of n_positions; the summary is another head's; attention in f32 is more precise.
    harmless = frozenset({
        "n_ctx", "predict_special_tokens", "reorder_and_upcast_attn", "summary_activation",
        "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj",
    })  # fmt: skip

    entries = (
        Entry("vocab_size", "vocabulary", Settings.whole, 50257),
        Entry("n_positions", "context", Settings.whole, 1024),
        Entry("n_layer", "n_layers", Settings.whole, 12),
        Entry("n_embd", "d_model", Settings.whole, 768),
        Entry("n_head", "n_heads", Settings.whole, 12),
        Entry("n_inner", "d_hidden", Settings.whole, None),
        Entry("resid_pdrop", "dropout", Settings.number, 0.1),
        Entry("embd_pdrop", "embedding_dropout", Settings.number, 0.1, same_as="dropout"),
        Entry("attn_pdrop", "attention_dropout", Settings.number, 0.1, same_as="dropout"),
        Entry("tie_word_embeddings", "tied", Settings.flag, True),
        Entry("layer_norm_epsilon", "epsilon", Settings.number, 1e-5),
        Entry("activation_function", "activation", Settings.activation, "gelu_new"),
        Entry("initializer_range", "init_std", Settings.number, 0.02),
    )

    def settings_of(self, config: GptConfig) -> dict[str, Any]:
        """See `Family.settings_of`."""
        wrong = {
            "rotary=True": config.rotary,
            "bias=False": not config.bias,
            f"n_kv_heads={config.n_kv_heads}": config.n_kv_heads not in (None, config.n_heads),
        }
        for option, is_there in wrong.items():
            if is_there:
                raise ConfigError(f"a Gpt with {option} cannot be saved as a GPT-2, which does not have this option")
        return {"architectures": ["GPT2LMHeadModel"], **self.entries_of(config)}

    def rules(self) -> list[Rule]:
        """See `Family.rules`."""
        rules = super().rules()
        for end, axis in (("weight", 1), ("bias", 0)):
            parts = [f"blocks.*.attention.{name}.{end}" for name in ("query", "key", "value")]
            rules.append(split(f"h.*.attn.c_attn.{end}", parts, axis=axis))
            rules += [rename(f"h.*.{theirs}.{end}", f"blocks.*.{ours}.{end}") for theirs, ours in _PAIRS]
        return rules

    def inputs_first(self, name: str) -> bool:
        """See `Family.inputs_first`: its layers are of the class Conv1D."""
        return name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))

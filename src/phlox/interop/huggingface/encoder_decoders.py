"""The families of encoder-decoders: each is the names of its settings and weights, and what its models share."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, ClassVar, cast

from phlox.errors import ConfigError
from phlox.interop.adapter import Adapter, Rule, rename
from phlox.interop.huggingface.family import CausalFamily, Entry, dense, same_tensors, with_defaults
from phlox.interop.huggingface.settings import ACTIVATION_NAMES, ACTIVATIONS, Settings
from phlox.models import EncoderDecoderConfig
from phlox.record import Record

ENDS = ("weight", "bias")
NO_LIMIT = 1 << 20
"""The context of models with relative positions alone."""


def stop_tokens(settings: Settings, key: str, default: Any) -> tuple[int, ...]:
    """A token or several that end a text."""
    tokens: Any = settings.get(key, default)
    if isinstance(tokens, list):
        return tuple(cast("list[int]", tokens))
    return () if tokens is None else (settings.whole(key, default),)


class EncoderDecoderFamily(CausalFamily):
    """The base. The tables of names have whole names, because layers of encoder and decoder differ."""

    configs = (EncoderDecoderConfig,)
    copies = ("encoder.embed_tokens", "decoder.embed_tokens")
    written: ClassVar[tuple[str, ...]] = ()
    """Fields that further settings say."""
    unsupported = (
        ("is_encoder_decoder", True, "the model would be only one of its halves"),
        ("tie_encoder_decoder", False, "encoder and decoder would share their weights"),
    )

    def further_fields(self, settings: Settings, fields: dict[str, Any]) -> dict[str, Any]:
        """See `Family.further_fields`."""
        start = fields["padding_token"] if fields["start_token"] is None else fields["start_token"]
        return {"family": self.model_type, "start_token": start, **self.constants}

    def settings_of(self, config: EncoderDecoderConfig) -> dict[str, Any]:
        """See `Family.settings_of`."""
        ours = {entry.ours for entry in self.entries} | {"family", "tied", "init_std", *self.written}
        self.check_others(config, EncoderDecoderConfig(), self.constants, ours)
        settings = self.entries_of(config)
        stops: list[int] = list(config.stop_tokens)
        settings["eos_token_id"] = stops[0] if len(stops) == 1 else stops or None
        return {"architectures": [self.architectures[0]], "is_encoder_decoder": True, **settings}

    def adapter(self, config: EncoderDecoderConfig, prefix: str) -> Adapter:
        """See `Family.adapter`."""
        return Adapter([*super().adapter(config, prefix).rules, rename("final_logits_bias", "head_bias")])

    def n_layers(self, config: EncoderDecoderConfig) -> int:
        """See `Family.n_layers`."""
        return config.n_layers + (config.n_decoder_layers or 0)


def t5_rules() -> tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]:
    """The normalizations and linear maps of a T5."""
    norms, linears = list[tuple[str, str]](), list[tuple[str, str]]()
    attention = (("q", "query"), ("k", "key"), ("v", "value"), ("o", "out"))
    for stack, last in (("encoder", 1), ("decoder", 2)):
        layer, block = f"{stack}.block.*.layer", f"{stack}.blocks.*"
        norms += [(f"{stack}.final_layer_norm", f"{stack}.norm"), (f"{layer}.0.layer_norm", f"{block}.norm_1")]
        norms += [(f"{layer}.{last}.layer_norm", f"{block}.norm_2")]
        linears += [(f"{layer}.0.SelfAttention.{a}", f"{block}.attention.{b}") for a, b in attention]
        linears += [(f"{layer}.{last}.DenseReluDense.wo", f"{block}.down")]
    norms += [("decoder.block.*.layer.1.layer_norm", "decoder.blocks.*.cross_norm")]
    linears += [(f"decoder.block.*.layer.1.EncDecAttention.{a}", f"decoder.blocks.*.cross.{b}") for a, b in attention]
    return tuple(norms), tuple(linears)


class T5(EncoderDecoderFamily):
    """T5, T5 1.1 and Flan-T5: relative positions, and a head that is tied or not, which the weights say."""

    model_type = "t5"
    architectures = ("T5ForConditionalGeneration", "T5WithLMHeadModel", "T5Model")
    prefix = ""
    entries = (
        Entry("vocab_size", "vocabulary", Settings.whole, 32128),
        Entry("d_model", "d_model", Settings.whole, 512),
        Entry("d_kv", "d_head", Settings.whole, 64, saved="head_width"),
        Entry("d_ff", "d_hidden", Settings.whole, 2048, saved="hidden_width"),
        Entry("num_layers", "n_layers", Settings.whole, 6),
        Entry("num_decoder_layers", "n_decoder_layers", Settings.whole, None, saved="n_layers"),
        Entry("num_heads", "n_heads", Settings.whole, 8),
        Entry("relative_attention_num_buckets", "buckets", Settings.whole, 32),
        Entry("relative_attention_max_distance", "max_distance", Settings.whole, 128),
        Entry("dropout_rate", "dropout", Settings.number, 0.1),
        Entry("layer_norm_epsilon", "epsilon", Settings.number, 1e-6),
        Entry("pad_token_id", "padding_token", Settings.whole, 0),
        Entry("decoder_start_token_id", "start_token", Settings.whole, None),
        Entry("eos_token_id", "stop_tokens", stop_tokens, 1),
    )
    other_names: ClassVar = {
        "hidden_size": "d_model", "num_attention_heads": "num_heads", "num_hidden_layers": "num_layers",
        "head_dim": "d_kv",
    }  # fmt: skip
    # n_positions is the length of the training data; the factor is that of the initial weights.
    harmless = frozenset({"n_positions", "initializer_factor"})
    constants: ClassVar = {"context": NO_LIMIT, "source_context": NO_LIMIT}
    written = ("activation", "gated", "logits_scale", "attention_dropout", "hidden_dropout", "output_dropout")
    default_activation: ClassVar[str] = "relu"
    weights = (("shared.weight", "tokens.weight"),)
    outer_norms, outer_linears = t5_rules()
    # The first files have positions of the attention to the source, which has none.
    no_weights = ("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",)

    def further_fields(self, settings: Settings, fields: dict[str, Any]) -> dict[str, Any]:
        """See `Family.further_fields`."""
        kind = settings.text("feed_forward_proj", self.default_activation)
        gate, _, name = kind.rpartition("-")
        if gate not in ("", "gated"):
            raise ConfigError(f"{settings.location}: feed_forward_proj={kind!r} is not supported")
        name = settings.text("dense_act_fn", "gelu_new" if kind == "gated-gelu" else name)
        if name not in ACTIVATIONS:
            raise ConfigError(f"{settings.location}: the activation {name!r} in feed_forward_proj is not supported")
        tied = settings.flag("tie_word_embeddings", True)
        is_scaled = settings.flag("scale_decoder_outputs", tied) and self.scales_logits
        rate = fields["dropout"]
        return {
            **super().further_fields(settings, fields),
            "activation": ACTIVATIONS[name],
            "gated": settings.flag("is_gated_act", bool(gate)),
            "tied": tied,
            "logits_scale": fields["d_model"] ** -0.5 if is_scaled else 1.0,
            "attention_dropout": rate,
            "hidden_dropout": rate,
            "output_dropout": rate,
        }

    scales_logits: ClassVar[bool] = True

    def settings_of(self, config: EncoderDecoderConfig) -> dict[str, Any]:
        """See `Family.settings_of`."""
        scale = config.d_model**-0.5
        is_scaled = self.scales_logits and math.isclose(config.logits_scale, scale, rel_tol=1e-6)
        if not is_scaled and config.logits_scale != 1.0:
            raise ConfigError(
                f"a {self.model_type} scales the input of its head by 1"
                f"{' or d_model**-0.5' if self.scales_logits else ''}, got {config.logits_scale}"
            )
        for name in ("attention_dropout", "hidden_dropout", "output_dropout"):
            if getattr(config, name) != config.dropout:
                raise ConfigError(f"a {self.model_type} has one dropout rate, got dropout and another {name}")
        name = ACTIVATION_NAMES[config.activation]
        return {
            **super().settings_of(config),
            "feed_forward_proj": f"gated-{name}" if config.gated else name,
            "dense_act_fn": name,
            "is_gated_act": config.gated,
            # Versions before 5 read the first one, and expect a head in the file if it is false.
            "tie_word_embeddings": is_scaled if self.scales_logits else config.tied,
            **({"scale_decoder_outputs": is_scaled} if self.scales_logits else {}),
        }

    def further_rules(self, config: EncoderDecoderConfig) -> list[Rule]:
        """See `Family.further_rules`."""
        rules: list[Rule] = []
        for stack, last in (("encoder", 1), ("decoder", 2)):
            layer, block = f"{stack}.block.*.layer", f"{stack}.blocks.*"
            bias = f"{layer}.0.SelfAttention.relative_attention_bias.weight"
            rules.append(rename(bias, f"{stack}.relative.*.weight"))
            hidden = (("wi_0", "gate"), ("wi_1", "up")) if config.gated else (("wi", "up"),)
            for theirs, ours in hidden:
                rules += dense(f"{layer}.{last}.DenseReluDense.{theirs}", f"{block}.{ours}")
        return rules

    def fitted(self, config: EncoderDecoderConfig, paths: Iterable[str]) -> EncoderDecoderConfig:
        """See `Family.fitted`: a head of its own is in the file, whatever the config says."""
        record = cast("Record", paths)
        head, embedding = f"{self.head}.weight", self.weights[0][0]
        tied = head not in record or (embedding in record and same_tensors(record[head], record[embedding]))
        return config.replace(tied=tied)


class MT5(T5):
    """The multilingual T5 1.1."""

    model_type = "mt5"
    architectures = ("MT5ForConditionalGeneration", "MT5Model")
    entries = with_defaults(
        T5.entries, vocab_size=250112, d_ff=1024, num_layers=8, num_heads=6, decoder_start_token_id=0
    )
    default_activation = "gated-gelu"
    scales_logits = False


class UMT5(MT5):
    """An mT5 whose layers have relative positions of their own."""

    model_type = "umt5"
    architectures = ("UMT5ForConditionalGeneration", "UMT5Model")
    scales_logits = True
    constants: ClassVar = {**T5.constants, "shared_buckets": False}


def bart_rules(*, embedding_norm: bool, final_norm: bool) -> tuple[Any, Any]:
    """The normalizations and linear maps of a BART and its relatives."""
    norms, linears = list[tuple[str, str]](), list[tuple[str, str]]()
    projections = tuple(zip("qkv", ("query", "key", "value"), strict=True))
    attentions = {"self_attn": "attention", "encoder_attn": "cross"}
    for stack in ("encoder", "decoder"):
        layer, block = f"{stack}.layers.*", f"{stack}.blocks.*"
        norms += [
            (f"{layer}.self_attn_layer_norm", f"{block}.norm_1"),
            (f"{layer}.final_layer_norm", f"{block}.norm_2"),
        ]
        norms += [(f"{stack}.layernorm_embedding", f"{stack}.embedding_norm")] * embedding_norm
        norms += [(f"{stack}.layer_norm", f"{stack}.norm")] * final_norm
        linears += [(f"{layer}.fc1", f"{block}.up"), (f"{layer}.fc2", f"{block}.down")]
        for theirs, ours in list(attentions.items())[: 1 if stack == "encoder" else 2]:
            linears += [(f"{layer}.{theirs}.{a}_proj", f"{block}.{ours}.{b}") for a, b in projections]
            linears += [(f"{layer}.{theirs}.out_proj", f"{block}.{ours}.out")]
    norms += [("decoder.layers.*.encoder_attn_layer_norm", "decoder.blocks.*.cross_norm")]
    return tuple(norms), tuple(linears)


class Bart(EncoderDecoderFamily):
    """Learned positions, layer norms after the sums."""

    model_type = "bart"
    architectures = ("BartForConditionalGeneration", "BartModel")
    prefix = "model"
    sizes: ClassVar = (
        Entry("d_model", "d_model", Settings.whole, 1024),
        Entry("encoder_layers", "n_layers", Settings.whole, 12),
        Entry("decoder_layers", "n_decoder_layers", Settings.whole, 12, saved="n_layers"),
        Entry("encoder_attention_heads", "n_heads", Settings.whole, 16),
        Entry("decoder_attention_heads", "n_decoder_heads", Settings.whole, 16, saved="n_heads"),
        Entry("encoder_ffn_dim", "d_hidden", Settings.whole, 4096, saved="hidden_width"),
        Entry("decoder_ffn_dim", "d_decoder_hidden", Settings.whole, 4096, saved="decoder_hidden_width"),
        Entry("activation_function", "activation", Settings.activation, "gelu"),
        Entry("attention_dropout", "attention_dropout", Settings.number, 0.0),
        Entry("activation_dropout", "hidden_dropout", Settings.number, 0.0),
        Entry("init_std", "init_std", Settings.number, 0.02),
        Entry("tie_word_embeddings", "tied", Settings.flag, True),
    )
    entries = (
        *sizes,
        Entry("vocab_size", "vocabulary", Settings.whole, 50265),
        Entry("max_position_embeddings", "context", Settings.whole, 1024),
        Entry("dropout", "dropout", Settings.number, 0.1),
        Entry("pad_token_id", "padding_token", Settings.whole, 1),
        Entry("decoder_start_token_id", "start_token", Settings.whole, 2),
        Entry("eos_token_id", "stop_tokens", stop_tokens, 2),
    )
    other_names: ClassVar = {
        "hidden_size": "d_model", "num_attention_heads": "encoder_attention_heads",
        "num_hidden_layers": "encoder_layers",
    }  # fmt: skip
    unsupported = (
        *EncoderDecoderFamily.unsupported,
        ("encoder_layerdrop", 0.0, "layers would be left out at random in training"),
        ("decoder_layerdrop", 0.0, "layers would be left out at random in training"),
        ("share_encoder_decoder_embeddings", True, "encoder and decoder would have different embeddings"),
    )
    # The first files say here what is the same in all models of the family.
    harmless = frozenset({
        "normalize_before", "normalize_embedding", "add_final_layer_norm", "add_bias_logits", "classif_dropout",
        "extra_pos_embeddings", "static_position_embeddings", "force_bos_token_to_be_generated",
        "encoder_attention_heads_pruned",
    })  # fmt: skip
    constants: ClassVar = {
        "norm": "layer", "norm_place": "after", "final_norm": False, "embedding_norm": True, "epsilon": 1e-5,
        "positions": "learned", "position_offset": 2, "attention_bias": True, "attention_scale": None,
        "gated": False, "hidden_bias": True, "train_padding": False,
    }  # fmt: skip
    written = ("source_context", "embedding_scale", "head_bias")
    weights = (
        ("shared.weight", "tokens.weight"),
        ("encoder.embed_positions.weight", "encoder.positions"),
        ("decoder.embed_positions.weight", "decoder.positions"),
    )
    outer_norms, outer_linears = bart_rules(embedding_norm=True, final_norm=False)

    def further_fields(self, settings: Settings, fields: dict[str, Any]) -> dict[str, Any]:
        """See `Family.further_fields`."""
        is_scaled = settings.flag("scale_embedding", False)
        scale = math.sqrt(fields["d_model"]) if is_scaled else 1.0
        further = {"source_context": fields["context"], "embedding_scale": scale, "head_bias": True}
        return {**super().further_fields(settings, fields), **further}

    def settings_of(self, config: EncoderDecoderConfig) -> dict[str, Any]:
        """See `Family.settings_of`."""
        is_scaled = math.isclose(config.embedding_scale, math.sqrt(config.d_model), rel_tol=1e-6)
        if config.source_context != config.context or not (is_scaled or config.embedding_scale == 1.0):
            raise ConfigError(
                f"a {self.model_type} has one context, and embeddings that are scaled by sqrt(d_model) or not, got "
                f"{config.source_context} and {config.context}, and {config.embedding_scale}"
            )
        return {**super().settings_of(config), "scale_embedding": is_scaled}

    def fitted(self, config: EncoderDecoderConfig, paths: Iterable[str]) -> EncoderDecoderConfig:
        """See `Family.fitted`: a model without a head has no bias of its logits."""
        return config.replace(head_bias="final_logits_bias" in paths)


class MBart(Bart):
    """A BART with layer norms before, and at the ends of both halves."""

    model_type = "mbart"
    architectures = ("MBartForConditionalGeneration", "MBartModel")
    entries = with_defaults(Bart.entries, decoder_start_token_id=None)
    constants: ClassVar = {**Bart.constants, "norm_place": "before", "final_norm": True}
    outer_norms, outer_linears = bart_rules(embedding_norm=True, final_norm=True)


class Marian(Bart):
    """A BART with sinusoids as positions, which are computed."""

    model_type = "marian"
    architectures = ("MarianMTModel", "MarianModel")
    entries = with_defaults(
        Bart.entries, vocab_size=58101, pad_token_id=58100, decoder_start_token_id=58100, eos_token_id=0
    )
    constants: ClassVar = {
        **Bart.constants, "embedding_norm": False, "positions": "sinusoidal", "position_offset": 0,
    }  # fmt: skip
    weights = Bart.weights[:1]
    outer_norms, outer_linears = bart_rules(embedding_norm=False, final_norm=False)
    no_weights = ("**.embed_positions.weight",)

    def further_fields(self, settings: Settings, fields: dict[str, Any]) -> dict[str, Any]:
        """See `Family.further_fields`."""
        settings.only("decoder_vocab_size", fields["vocabulary"], "encoder and decoder would have different tokens")
        return super().further_fields(settings, fields)


class Whisper(Bart):
    """A spectrogram as the source, with two convolutions; projections of keys have no bias."""

    model_type = "whisper"
    architectures = ("WhisperForConditionalGeneration", "WhisperModel")
    head = "proj_out"
    weights = (
        ("decoder.embed_tokens.weight", "tokens.weight"),
        *Bart.weights[1:],
        *[(f"encoder.conv{number + 1}.{end}", f"convolutions.{number}.{end}") for number in (0, 1) for end in ENDS],
    )
    copies = ()
    entries = (
        *with_defaults(
            Bart.sizes,
            d_model=384,
            encoder_layers=4,
            decoder_layers=4,
            encoder_attention_heads=6,
            decoder_attention_heads=6,
            encoder_ffn_dim=1536,
            decoder_ffn_dim=1536,
        ),
        Entry("vocab_size", "vocabulary", Settings.whole, 51865),
        Entry("num_mel_bins", "n_features", Settings.whole, 80),
        Entry("max_source_positions", "source_context", Settings.whole, 1500),
        Entry("max_target_positions", "context", Settings.whole, 448),
        Entry("dropout", "dropout", Settings.number, 0.0),
        Entry("pad_token_id", "padding_token", Settings.whole, 50256),
        Entry("decoder_start_token_id", "start_token", Settings.whole, 50257),
        Entry("eos_token_id", "stop_tokens", stop_tokens, 50256),
    )
    other_names: ClassVar = {**Bart.other_names, "num_key_value_heads": "encoder_attention_heads"}
    unsupported = (
        *Bart.unsupported,
        ("apply_spec_augment", False, "parts of the spectrogram would be left out at random in training"),
    )
    # The scale of embeddings is not read by their models; the others are those of classifiers and of generation.
    harmless = frozenset({
        "scale_embedding", "use_weighted_layer_sum", "classifier_proj_size", "mask_time_prob", "mask_time_length",
        "mask_time_min_masks", "mask_feature_prob", "mask_feature_length", "mask_feature_min_masks",
        "median_filter_width", "forced_decoder_ids",
    })  # fmt: skip
    constants: ClassVar = {
        **Bart.constants, "norm_place": "before", "final_norm": True, "embedding_norm": False, "position_offset": 0,
        "key_bias": False, "source_positions": "frozen",
    }  # fmt: skip
    written = ()
    outer_norms, outer_linears = bart_rules(embedding_norm=False, final_norm=True)

    def further_fields(self, settings: Settings, fields: dict[str, Any]) -> dict[str, Any]:
        """See `Family.further_fields`."""
        return EncoderDecoderFamily.further_fields(self, settings, fields)

    def settings_of(self, config: EncoderDecoderConfig) -> dict[str, Any]:
        """See `Family.settings_of`."""
        return EncoderDecoderFamily.settings_of(self, config)

    def fitted(self, config: EncoderDecoderConfig, paths: Iterable[str]) -> EncoderDecoderConfig:
        """See `Family.fitted`."""
        return config


ENCODER_DECODERS: tuple[EncoderDecoderFamily, ...] = (T5(), MT5(), UMT5(), Bart(), MBart(), Marian(), Whisper())

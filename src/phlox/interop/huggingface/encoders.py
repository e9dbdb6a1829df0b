"""The families of encoders of texts: each is the names of its settings and weights, and what its models share."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, ClassVar, cast

from phlox.config import Config
from phlox.errors import ConfigError
from phlox.interop.adapter import Adapter, Rule, rename, split
from phlox.interop.huggingface.family import (
    Entry,
    Family,
    Names,
    classes_in,
    dense,
    labels_of,
    norm,
    rules_of,
    with_defaults,
)
from phlox.interop.huggingface.rotary import GLOBAL, LOCAL
from phlox.interop.huggingface.settings import Settings
from phlox.models import EncoderClassifierConfig, EncoderConfig, EncoderMaskedLmConfig

TEXTS = (
    Entry("vocab_size", "vocabulary", Settings.whole, 30522),
    Entry("max_position_embeddings", "context", Settings.whole, 512),
)
INIT = Entry("initializer_range", "init_std", Settings.number, 0.02)
BLOCKS = (
    Entry("num_hidden_layers", "n_layers", Settings.whole, 12),
    Entry("hidden_size", "d_model", Settings.whole, 768),
    Entry("num_attention_heads", "n_heads", Settings.whole, 12),
    Entry("intermediate_size", "d_hidden", Settings.whole, 3072, saved="hidden_width"),
    INIT,
)
FUNCTIONS = (
    Entry("hidden_dropout_prob", "dropout", Settings.number, 0.1),
    Entry("attention_probs_dropout_prob", "attention_dropout", Settings.number, 0.1, same_as="dropout"),
    Entry("hidden_act", "activation", Settings.activation, "gelu"),
    Entry("layer_norm_eps", "epsilon", Settings.number, 1e-12),
)
SIZES = (*TEXTS, *BLOCKS, *FUNCTIONS)
PADDING = Entry("pad_token_id", "padding_index", Settings.whole, None)
SEGMENTS = Entry("type_vocab_size", "segments", Settings.whole, 2)

_EMBEDDINGS = (
    ("embeddings.word_embeddings.weight", "tokens.weight"),
    ("embeddings.position_embeddings.weight", "positions"),
    ("embeddings.token_type_embeddings.weight", "segments.weight"),
)
_LINEARS = (
    ("attention.self.query", "attention.query"),
    ("attention.self.key", "attention.key"),
    ("attention.self.value", "attention.value"),
    ("attention.output.dense", "attention.out"),
    ("intermediate.dense", "up"),
    ("output.dense", "down"),
)
_NORMS = (("attention.output.LayerNorm", "norm_1"), ("output.LayerNorm", "norm_2"))
_KINDS = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")
_UNCOMPARED = ("pooler", "family", "d_hidden", "attention_dropout", "dropout", "activation", "encoder", "bert")
"""Fields whose difference shows in another way, or not at all."""


def kinds_of(name: str, *others: str) -> tuple[str, ...]:
    """The architectures of a family: the model alone, and with each head."""
    return (*[f"{name}{kind}" for kind in _KINDS], *others)


def check_saved(config: Config, again: Config, model_type: str, ignored: Collection[str] = ()) -> None:
    """`ConfigError` for a field that the settings of a family do not say: `again` is the config that they say."""
    for field in (*vars(config), "head_activation"):
        value, read = getattr(config, field, None), getattr(again, field, None)
        if field not in (*_UNCOMPARED, *ignored) and value != read:
            raise ConfigError(
                f"a model with {field}={value!r} cannot be saved as {model_type}, whose models have {read!r}"
            )


class EncoderFamily(Family):
    """The base: names as BERT's."""

    configs = (EncoderConfig, EncoderMaskedLmConfig, EncoderClassifierConfig)
    unsupported = (
        ("position_embedding_type", "absolute", "positions would have no absolute embeddings"),
        ("is_decoder", False, "each token would see only the previous ones"),
        ("is_causal", False, "each token would see only the previous ones"),
    )
    harmless = frozenset({"tie_word_embeddings"})  # the head for masked tokens alone is tied
    inner: ClassVar[str] = "encoder"
    """The field of our config, and of our model, that is the encoder."""
    default_padding: ClassVar[int | None] = 0
    masked: ClassVar[dict[str, Any]] = {}
    text: ClassVar[dict[str, Any]] = {}
    token: ClassVar[dict[str, Any]] = {}
    """Such fields of the configs of models that predict masked tokens, classify texts, and classify tokens."""
    masked_entries: ClassVar[Sequence[Entry]] = ()
    text_entries: ClassVar[Sequence[Entry]] = (Entry("classifier_dropout", "dropout", Settings.number, None),)
    token_entries: ClassVar[Sequence[Entry]] = text_entries
    """The settings that are fields of these configs."""
    with_pooler: ClassVar[tuple[str, ...]] = ("Model",)
    """The kinds of models that have a pooler."""
    weights = _EMBEDDINGS
    outer_norms = (("embeddings.LayerNorm", "norm"),)
    outer_linears = (("pooler.dense", "pooler"),)
    layers = "encoder.layer"
    linears = _LINEARS
    norms = _NORMS
    no_weights = ("**.position_ids",)
    masked_linears: ClassVar[Names] = (("lm_head.dense", "transform"),)
    head_norms: ClassVar[Names] = (("lm_head.layer_norm", "norm"),)
    """The normalization of the layer before the logits."""
    masked_bias: ClassVar[str] = "lm_head.bias"
    decoder: ClassVar[str] = "lm_head.decoder"
    """The layer that is the transpose of the embedding."""
    text_linears: ClassVar[Names] = (("classifier.dense", "transform"), ("classifier.out_proj", "head"))
    """The layers of the head of a model that classifies texts."""
    token_linears: ClassVar[Names] = (("classifier", "head"),)
    """The layers of the head of a model that classifies tokens."""

    def config_from(self, settings: Settings, architecture: str) -> Any:
        """See `Family.config_from`."""
        base, masked, classifier = (cast("Any", config) for config in self.configs)
        fields = {**self.constants, **self.fields_from(settings)}
        if "pad_token_id" not in settings.data and "padding_index" not in self.constants:
            fields["padding_index"] = self.default_padding
        if base is EncoderConfig:
            fields["family"] = self.model_type
        if fields.get("positions") == "counted" and fields["padding_index"] is not None:
            fields["context"] -= fields["padding_index"] + 1
        fields |= self.further_fields(settings, fields)
        encoder = base(**fields, pooler=architecture.endswith(self.with_pooler))
        if architecture.endswith(("ForMaskedLM", "ForPreTraining")):
            settings.only("tie_word_embeddings", True, "the head for masked tokens is the transpose of the embedding")
            return masked(encoder, **self.masked, **self.fields_from(settings, self.masked_entries))
        if architecture.endswith("Model"):
            return encoder
        by_token = architecture.endswith("ForTokenClassification")
        constants, entries = (self.token, self.token_entries) if by_token else (self.text, self.text_entries)
        fields = {**constants, **self.fields_from(settings, entries)}
        return classifier(encoder, classes=classes_in(settings), by_token=by_token, **fields)

    def encoder_of(self, config: Any) -> Any:
        """The config of the encoder of a model with this config."""
        return config if isinstance(config, self.configs[0]) else getattr(config, self.inner)

    def architecture_for(self, config: Any) -> str:
        """The architecture of `transformers` for this config."""
        if isinstance(config, self.configs[0]):
            return self.architectures[0]
        if isinstance(config, self.configs[1]):
            return self.architectures[1]
        return self.architectures[3 if config.by_token else 2]

    def settings_of(self, config: Any) -> dict[str, Any]:
        """See `Family.settings_of`."""
        encoder, architecture = self.encoder_of(config), self.architecture_for(config)
        name = type(config).__name__.removesuffix("Config")
        if encoder.pooler and not architecture.endswith(self.with_pooler):
            raise ConfigError(
                f"a {name} with a pooler cannot be saved as a {architecture}; create it with pooler=False"
            )
        result: dict[str, Any] = {"architectures": [architecture], **self.entries_of(encoder)}
        result["tie_word_embeddings"] = True
        if self.constants.get("positions") == "counted":
            result["max_position_embeddings"] += (encoder.padding_index or 0) + 1
        result |= self.further_settings(encoder)
        if hasattr(config, "classes"):
            entries = self.token_entries if config.by_token else self.text_entries
            result |= {**labels_of(config.classes), **self.entries_of(config, entries)}
        elif config is not encoder:
            result |= self.entries_of(config, self.masked_entries)
        again = self.config_from(Settings(result), architecture)
        check_saved(config, again, self.model_type)
        check_saved(encoder, self.encoder_of(again), self.model_type)
        return result

    def further_settings(self, encoder: Any) -> dict[str, Any]:
        """The inverse of `further_fields`."""
        return {}

    def adapter(self, config: Any, prefix: str) -> Adapter:
        """See `Family.adapter`."""
        rules = super().adapter(config, prefix).rules
        if isinstance(config, self.configs[0]):
            return Adapter(rules)
        head = self.token_linears if getattr(config, "by_token", False) else self.text_linears
        rules, bias = Adapter(rules).under("", self.inner).rules, list[Rule]()
        if isinstance(config, self.configs[1]):
            head, bias = self.masked_linears, [rename(self.masked_bias, "bias")]
        return Adapter([*rules, *bias, *rules_of(head, dense), *rules_of(self.head_norms, norm)])

    def n_layers(self, config: Any) -> int:
        """See `Family.n_layers`."""
        return self.encoder_of(config).n_layers

    def saved_prefix(self, config: Any) -> str:
        """See `Family.saved_prefix`."""
        return "" if isinstance(config, self.configs[0]) else self.prefix

    def ignored(self, config: Any) -> tuple[str, ...]:
        """See `Family.ignored`: the position indices, and a pooler that the model does not have."""
        return (*self.no_weights, *(() if self.encoder_of(config).pooler else ("**.pooler.dense.*",)))

    def ties(self, config: Any, prefix: str) -> tuple[tuple[str, str], ...]:
        """See `Family.ties`."""
        if not isinstance(config, self.configs[1]):
            return ()
        tokens = f"{prefix}.{self.weights[0][0]}" if prefix else self.weights[0][0]
        bias = () if self.masked_bias == f"{self.decoder}.bias" else ((f"{self.decoder}.bias", self.masked_bias),)
        return ((f"{self.decoder}.weight", tokens), *bias)

    def fitted(self, config: Any, paths: Iterable[str]) -> Any:
        """See `Family.fitted`: a model may have no pooler, which its config does not say."""
        if isinstance(config, self.configs[0]) and not any("pooler." in path for path in paths):
            return config.replace(pooler=False)
        return config


class Roberta(EncoderFamily):
    """Positions are counted over the tokens that are not padding."""

    model_type = "roberta"
    architectures = kinds_of("Roberta")
    prefix = "roberta"
    entries = (*SIZES, SEGMENTS, PADDING)
    default_padding = 1
    constants: ClassVar = {"positions": "counted"}
    masked: ClassVar = {"activation": "gelu"}
    text: ClassVar = {"hidden": "tanh"}


class XlmRoberta(Roberta):
    """RoBERTa in many languages."""

    model_type = "xlm-roberta"
    architectures = kinds_of("XLMRoberta")


class Camembert(Roberta):
    """RoBERTa in French."""

    model_type = "camembert"
    architectures = kinds_of("Camembert")


class MpNet(EncoderFamily):
    """Counted positions, and numbers that distances add to the scores of all layers; no segments."""

    model_type = "mpnet"
    architectures = kinds_of("MPNet")
    prefix = "mpnet"
    entries = SIZES
    unsupported = (
        *EncoderFamily.unsupported,
        ("relative_attention_num_buckets", 32, "transformers itself always uses 32"),
    )
    constants: ClassVar = {"positions": "counted", "padding_index": 1, "segments": None, "distance_bias": True}
    masked: ClassVar = {"activation": "gelu"}
    text: ClassVar = {"hidden": "tanh"}
    weights = (*_EMBEDDINGS[:2], ("encoder.relative_attention_bias.weight", "distances.weight"))
    linears = (
        ("attention.attn.q", "attention.query"),
        ("attention.attn.k", "attention.key"),
        ("attention.attn.v", "attention.value"),
        ("attention.attn.o", "attention.out"),
        *_LINEARS[-2:],
    )
    norms = (("attention.LayerNorm", "norm_1"), ("output.LayerNorm", "norm_2"))


class Electra(EncoderFamily):
    """Embeddings may be narrower than the model; there is no pooler."""

    model_type = "electra"
    architectures = kinds_of("Electra")
    prefix = "electra"
    entries = (
        *with_defaults(SIZES, num_attention_heads=4),
        Entry("embedding_size", "d_embedding", Settings.whole, 128, saved="embedding_width"),
        SEGMENTS,
        PADDING,
    )
    harmless = frozenset({
        "summary_type", "summary_use_proj", "summary_activation", "summary_last_dropout", "tie_word_embeddings",
    })  # fmt: skip
    with_pooler = ()
    outer_linears = (("embeddings_project", "projection"),)
    masked: ClassVar = {"activation": "gelu"}
    text: ClassVar = {"hidden": "gelu"}
    masked_linears = (("generator_predictions.dense", "transform"),)
    head_norms = (("generator_predictions.LayerNorm", "norm"),)
    masked_bias = "generator_lm_head.bias"
    decoder = "generator_lm_head"


class DistilBert(EncoderFamily):
    """No segments and no pooler."""

    model_type = "distilbert"
    architectures = kinds_of("DistilBert")
    prefix = "distilbert"
    entries = (
        *TEXTS,
        Entry("n_layers", "n_layers", Settings.whole, 6),
        Entry("dim", "d_model", Settings.whole, 768),
        Entry("n_heads", "n_heads", Settings.whole, 12),
        Entry("hidden_dim", "d_hidden", Settings.whole, 3072, saved="hidden_width"),
        Entry("dropout", "dropout", Settings.number, 0.1),
        Entry("attention_dropout", "attention_dropout", Settings.number, 0.1, same_as="dropout"),
        Entry("activation", "activation", Settings.activation, "gelu"),
        INIT,
        PADDING,
    )
    other_names: ClassVar = {"hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"}
    # Positions are read from the file, sinusoidal or not.
    harmless = frozenset({
        "sinusoidal_pos_embds", "qa_dropout", "seq_classif_dropout", "tie_weights_", "tie_word_embeddings",
    })  # fmt: skip
    with_pooler = ()
    constants: ClassVar = {"segments": None}
    text: ClassVar = {"hidden": "relu"}
    text_entries = (Entry("seq_classif_dropout", "dropout", Settings.number, 0.2, saved="rate"),)
    token_entries = ()
    weights = _EMBEDDINGS[:2]
    layers = "transformer.layer"
    linears = (
        ("attention.q_lin", "attention.query"),
        ("attention.k_lin", "attention.key"),
        ("attention.v_lin", "attention.value"),
        ("attention.out_lin", "attention.out"),
        ("ffn.lin1", "up"),
        ("ffn.lin2", "down"),
    )
    norms = (("sa_layer_norm", "norm_1"), ("output_layer_norm", "norm_2"))
    masked_linears = (("vocab_transform", "transform"),)
    head_norms = (("vocab_layer_norm", "norm"),)
    masked_bias = "vocab_projector.bias"
    decoder = "vocab_projector"
    text_linears = (("pre_classifier", "transform"), ("classifier", "head"))


def _pooling(settings: Settings, key: str, default: str) -> str:
    """The pooling of ModernBERT's classifier."""
    name = settings.text(key, default)
    if name not in ("cls", "mean"):
        raise ConfigError(f"{settings.location}: {key}={name!r} is neither 'cls' nor 'mean'")
    return "first" if name == "cls" else name


def _theirs_of(pooling: str) -> str:
    """The inverse."""
    return "cls" if pooling == "first" else pooling


class ModernBert(EncoderFamily):
    """Normalized inputs, rotary positions with two bases, windows in most layers, gates, no biases."""

    model_type = "modernbert"
    architectures = kinds_of("ModernBert")
    prefix = "model"
    entries = (
        *TEXTS,
        *BLOCKS,
        PADDING,
        Entry("hidden_activation", "activation", Settings.activation, "gelu"),
        Entry("norm_eps", "epsilon", Settings.number, 1e-5),
        Entry("norm_bias", "norm_bias", Settings.flag, False),
        Entry("attention_bias", "attention_bias", Settings.flag, False),
        Entry("mlp_bias", "hidden_bias", Settings.flag, False),
    )
    unsupported = (
        *EncoderFamily.unsupported[1:],
        ("attention_dropout", 0.0, "the result of the attention would be dropped, too"),
        ("mlp_dropout", 0.0, "the hidden layer would be dropped"),
        ("embedding_dropout", 0.0, "the embeddings would be dropped, and the results of the blocks would not"),
    )
    # Other names of settings, and how former versions of transformers computed.
    harmless = frozenset({
        "position_embedding_type", "layer_norm_eps", "deterministic_flash_attn", "reference_compile",
        "initializer_cutoff_factor", "sparse_prediction", "sparse_pred_ignore_index", "repad_logits_with_grad",
        "tie_word_embeddings", "classifier_pooling", "classifier_activation", "classifier_bias", "decoder_bias",
    })  # fmt: skip
    default_padding = 50283
    with_pooler = ()
    constants: ClassVar = {
        "norm_place": "before", "first_norm": False, "final_norm": True, "gated": True, "positions": "rotary",
        "segments": None, "dropout": 0.0,
    }  # fmt: skip
    weights = (("embeddings.tok_embeddings.weight", "tokens.weight"),)
    outer_norms = (("embeddings.norm", "norm"), ("final_norm", "final_norm"))
    layers = "layers"
    linears = (("attn.Wo", "attention.out"), ("mlp.Wo", "down"))
    norms = (("attn_norm", "norm_1"), ("mlp_norm", "norm_2"))
    masked_linears = (("head.dense", "transform"),)
    head_norms = (("head.norm", "norm"),)
    masked_bias = "decoder.bias"
    decoder = "decoder"
    text_linears = token_linears = (("head.dense", "transform"), ("classifier", "head"))
    text: ClassVar = {"hidden_norm": True}
    token: ClassVar = text
    masked_entries = (
        Entry("classifier_activation", "activation", Settings.activation, "gelu", saved="head_activation"),
        Entry("classifier_bias", "hidden_bias", Settings.flag, False),
        Entry("decoder_bias", "head_bias", Settings.flag, True),
    )
    text_entries = token_entries = (
        Entry("classifier_dropout", "dropout", Settings.number, 0.0, saved="rate"),
        Entry("classifier_pooling", "pooling", _pooling, "cls", write=_theirs_of),
        Entry("classifier_activation", "hidden", Settings.activation, "gelu"),
        Entry("classifier_bias", "hidden_bias", Settings.flag, False),
    )

    def further_fields(self, settings: Settings, fields: dict[str, Any]) -> dict[str, Any]:
        """See `Family.further_fields`."""
        tables = settings.table("rope_parameters") or Settings({}, settings.location)
        former = settings.table("rope_scaling")
        bases: list[float] = []
        for kind, name, default in ((GLOBAL, "global_rope_theta", 160000.0), (LOCAL, "local_rope_theta", 10000.0)):
            table = tables.table(kind) or Settings({}, settings.location)
            for source in (table, former):
                if source is not None:
                    source.only("rope_type", "default", "its frequencies would be scaled")
            bases.append(table.number("rope_theta", settings.number(name, default)))
        every, n = settings.whole("global_attn_every_n_layers", 3), fields["n_layers"]
        kinds: Any = settings.get("layer_types", [LOCAL if layer % every else GLOBAL for layer in range(n)])
        return {
            "out_bias": fields["attention_bias"],
            "rotary_base": bases[0],
            "local_rotary_base": bases[1],
            "window": settings.whole("local_attention", 128) // 2,
            "window_layers": tuple([layer for layer, kind in enumerate(kinds[:n]) if kind == LOCAL]),
        }

    def further_settings(self, encoder: Any) -> dict[str, Any]:
        """See `EncoderFamily.further_settings`."""
        local, base = encoder.window_layers, encoder.local_rotary_base or encoder.rotary_base
        return {
            "rope_parameters": {
                GLOBAL: {"rope_type": "default", "rope_theta": encoder.rotary_base},
                LOCAL: {"rope_type": "default", "rope_theta": base},
            },
            "local_attention": 2 * (encoder.window or 64),
            "layer_types": [LOCAL if layer in local else GLOBAL for layer in range(encoder.n_layers)],
        }

    def further_rules(self, config: Any) -> list[Rule]:
        """See `Family.further_rules`."""
        rules: list[Rule] = []
        for theirs, names in (("attn.Wqkv", ("query", "key", "value")), ("mlp.Wi", ("gate", "up"))):
            ours = [f"blocks.*.attention.{name}" if len(names) > 2 else f"blocks.*.{name}" for name in names]
            rules.append(split(f"layers.*.{theirs}.weight", [f"{name}.weight" for name in ours], transposed=True))
            rules.append(split(f"layers.*.{theirs}.bias", [f"{name}.bias" for name in ours]))
        return rules


ENCODERS: tuple[EncoderFamily, ...] = (
    Roberta(), XlmRoberta(), Camembert(), MpNet(), Electra(), DistilBert(), ModernBert(),
)  # fmt: skip

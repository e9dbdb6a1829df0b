"""BERT in the files of Hugging Face, alone and with a head."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from phlox.errors import ConfigError
from phlox.interop.adapter import Adapter, Rule, rename, transpose
from phlox.interop.huggingface.family import Family
from phlox.interop.huggingface.settings import ACTIVATION_NAMES, Settings
from phlox.models import BertClassifierConfig, BertConfig, BertMaskedLmConfig

_DENSE = (
    ("attention.self.query", "attention.query"),
    ("attention.self.key", "attention.key"),
    ("attention.self.value", "attention.value"),
    ("attention.output.dense", "attention.out"),
    ("intermediate.dense", "up"),
    ("output.dense", "down"),
)
_NORMS = (("attention.output.LayerNorm", "norm_1"), ("output.LayerNorm", "norm_2"))
_MASKED = ("BertForMaskedLM", "BertForPreTraining")
_BY_TOKEN = "BertForTokenClassification"
AnyConfig = BertConfig | BertMaskedLmConfig | BertClassifierConfig


class Bert(Family):
    """`Bert` as BertModel; `BertMaskedLm` and `BertClassifier` as the models with these heads.

    BertForPreTraining is loaded with its masked-token head and without its next-sentence head.
    """

    model_type = "bert"
    configs = (BertConfig, BertMaskedLmConfig, BertClassifierConfig)
    architectures = ("BertModel", *_MASKED, "BertForSequenceClassification", _BY_TOKEN)
    prefix = "bert"
    former = (
        rename("**.LayerNorm.gamma", "**.LayerNorm.weight"),
        rename("**.LayerNorm.beta", "**.LayerNorm.bias"),
    )
    unsupported = (
        ("position_embedding_type", "absolute", "positions would have no absolute embeddings"),
        ("is_decoder", False, "each token would see only the previous ones"),
        ("is_causal", False, "each token would see only the previous ones"),
    )
    # Google's multilingual files say how a layer of TensorFlow's pools; the head for masked tokens alone is tied.
    harmless = frozenset({
        "directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers",
        "pooler_size_per_head", "pooler_type", "tie_word_embeddings",
    })  # fmt: skip

    def config_from(self, settings: Settings, architecture: str) -> AnyConfig:
        """See `Family.config_from`."""
        dropout = settings.number("hidden_dropout_prob", 0.1)
        attention_dropout = settings.number("attention_probs_dropout_prob", 0.1)
        bert = BertConfig(
            vocabulary=settings.whole("vocab_size", 30522),
            context=settings.whole("max_position_embeddings", 512),
            n_layers=settings.whole("num_hidden_layers", 12),
            d_model=settings.whole("hidden_size", 768),
            n_heads=settings.whole("num_attention_heads", 12),
            d_hidden=settings.whole("intermediate_size", 3072),
            segments=settings.whole("type_vocab_size", 2),
            dropout=dropout,
            attention_dropout=None if attention_dropout == dropout else attention_dropout,
            padding_index=settings.whole("pad_token_id", None if "pad_token_id" in settings.data else 0),
            pooler=architecture in ("BertModel", "BertForSequenceClassification"),
            activation=settings.activation("hidden_act", "gelu"),
            epsilon=settings.number("layer_norm_eps", 1e-12),
            init_std=settings.number("initializer_range", 0.02),
        )
        if architecture in _MASKED:
            settings.only("tie_word_embeddings", True, "the head for masked tokens is the transpose of the embedding")
            return BertMaskedLmConfig(bert)
        if architecture == "BertModel":
            return bert
        names = settings.table("id2label")
        classes = settings.whole("num_labels", 2) if names is None else len(names.data)
        rate = settings.number("classifier_dropout", None)
        return BertClassifierConfig(bert, classes=classes, by_token=architecture == _BY_TOKEN, dropout=rate)

    def settings_of(self, config: AnyConfig) -> dict[str, Any]:
        """See `Family.settings_of`."""
        bert = _encoder(config)
        if isinstance(config, BertMaskedLmConfig) and bert.pooler:
            raise ConfigError(
                "a BertMaskedLm with a pooler cannot be saved as a BertForMaskedLM; create it with pooler=False"
            )
        if isinstance(config, BertClassifierConfig) and config.by_token and bert.pooler:
            raise ConfigError(
                "a BertClassifier by token with a pooler cannot be saved as a BertForTokenClassification; "
                "create it with pooler=False"
            )
        d_hidden = 4 * bert.d_model if bert.d_hidden is None else bert.d_hidden
        rate = bert.dropout if bert.attention_dropout is None else bert.attention_dropout
        result: dict[str, Any] = {
            "architectures": ["BertModel"],
            "vocab_size": bert.vocabulary,
            "max_position_embeddings": bert.context,
            "num_hidden_layers": bert.n_layers,
            "hidden_size": bert.d_model,
            "num_attention_heads": bert.n_heads,
            "intermediate_size": d_hidden,
            "type_vocab_size": bert.segments,
            "hidden_dropout_prob": bert.dropout,
            "attention_probs_dropout_prob": rate,
            "pad_token_id": bert.padding_index,
            "hidden_act": ACTIVATION_NAMES[bert.activation],
            "layer_norm_eps": bert.epsilon,
            "initializer_range": bert.init_std,
            "tie_word_embeddings": True,
        }
        if isinstance(config, BertMaskedLmConfig):
            return result | {"architectures": ["BertForMaskedLM"]}
        if isinstance(config, BertConfig):
            return result
        labels = {f"LABEL_{i}": i for i in range(config.classes)}
        return result | {
            "architectures": [_BY_TOKEN if config.by_token else "BertForSequenceClassification"],
            "classifier_dropout": config.dropout,
            "id2label": {str(i): label for label, i in labels.items()},
            "label2id": labels,
        }

    def adapter(self, config: AnyConfig, prefix: str) -> Adapter:
        """See `Family.adapter`."""
        start = "embeddings"
        rules: list[Rule] = [
            rename(f"{start}.word_embeddings.weight", "tokens.weight"),
            rename(f"{start}.position_embeddings.weight", "positions"),
            rename(f"{start}.token_type_embeddings.weight", "segments.weight"),
            *_norm(f"{start}.LayerNorm", "norm"),
            *_dense("pooler.dense", "pooler"),
        ]
        for theirs, ours in _DENSE:
            rules += _dense(f"encoder.layer.*.{theirs}", f"blocks.*.{ours}")
        for theirs, ours in _NORMS:
            rules += _norm(f"encoder.layer.*.{theirs}", f"blocks.*.{ours}")
        if isinstance(config, BertConfig):
            return Adapter(rules).under(prefix, "")
        if isinstance(config, BertMaskedLmConfig):
            head = [
                *_dense("cls.predictions.transform.dense", "transform"),
                *_norm("cls.predictions.transform.LayerNorm", "norm"),
                rename("cls.predictions.bias", "bias"),
            ]
        else:
            head = _dense("classifier", "head")
        return Adapter([*Adapter(rules).under(prefix, "bert").rules, *head])

    def n_layers(self, config: AnyConfig) -> int:
        """See `Family.n_layers`."""
        return _encoder(config).n_layers

    def saved_prefix(self, config: AnyConfig) -> str:
        """See `Family.saved_prefix`."""
        return "" if isinstance(config, BertConfig) else self.prefix

    def ignored(self, config: AnyConfig) -> tuple[str, ...]:
        """See `Family.ignored`: the position indices, and the weights of heads that the model does not have."""
        pooler = () if _encoder(config).pooler else ("**.pooler.dense.*",)
        return ("**.position_ids", "cls.seq_relationship.*", *pooler)

    def ties(self, config: AnyConfig, prefix: str) -> tuple[tuple[str, str], ...]:
        """See `Family.ties`."""
        if not isinstance(config, BertMaskedLmConfig):
            return ()
        start = f"{prefix}." if prefix else ""
        decoder = "cls.predictions.decoder"
        return (
            (f"{decoder}.weight", f"{start}embeddings.word_embeddings.weight"),
            (f"{decoder}.bias", "cls.predictions.bias"),
        )

    def fitted(self, config: AnyConfig, paths: Iterable[str]) -> AnyConfig:
        """See `Family.fitted`: a BertModel may have no pooler, which its config does not say."""
        if isinstance(config, BertConfig) and not any("pooler." in path for path in paths):
            return config.replace(pooler=False)
        return config


def _encoder(config: AnyConfig) -> BertConfig:
    return config if isinstance(config, BertConfig) else config.bert


def _dense(theirs: str, ours: str) -> list[Rule]:
    return [transpose(f"{theirs}.weight", f"{ours}.weight"), rename(f"{theirs}.bias", f"{ours}.bias")]


def _norm(theirs: str, ours: str) -> list[Rule]:
    return [rename(f"{theirs}.weight", f"{ours}.gamma"), rename(f"{theirs}.bias", f"{ours}.beta")]

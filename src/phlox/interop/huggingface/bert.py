"""BERT in the files of Hugging Face, alone and with a head."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from phlox.errors import ConfigError
from phlox.interop.adapter import Adapter, Rule, rename
from phlox.interop.huggingface.family import Entry, Family, dense, norm
from phlox.interop.huggingface.settings import Settings
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

    entries = (
        Entry("vocab_size", "vocabulary", Settings.whole, 30522),
        Entry("max_position_embeddings", "context", Settings.whole, 512),
        Entry("num_hidden_layers", "n_layers", Settings.whole, 12),
        Entry("hidden_size", "d_model", Settings.whole, 768),
        Entry("num_attention_heads", "n_heads", Settings.whole, 12),
        Entry("intermediate_size", "d_hidden", Settings.whole, 3072, saved="hidden_width"),
        Entry("type_vocab_size", "segments", Settings.whole, 2),
        Entry("hidden_dropout_prob", "dropout", Settings.number, 0.1),
        Entry("attention_probs_dropout_prob", "attention_dropout", Settings.number, 0.1, same_as="dropout"),
        Entry("pad_token_id", "padding_index", Settings.whole, None),
        Entry("hidden_act", "activation", Settings.activation, "gelu"),
        Entry("layer_norm_eps", "epsilon", Settings.number, 1e-12),
        Entry("initializer_range", "init_std", Settings.number, 0.02),
    )

    def config_from(self, settings: Settings, architecture: str) -> AnyConfig:
        """See `Family.config_from`."""
        fields = self.fields_from(settings)
        if "pad_token_id" not in settings.data:
            fields["padding_index"] = 0
        bert = BertConfig(**fields, pooler=architecture in ("BertModel", "BertForSequenceClassification"))
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
        result = {"architectures": ["BertModel"], **self.entries_of(bert), "tie_word_embeddings": True}
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
            *norm(f"{start}.LayerNorm", "norm"),
            *dense("pooler.dense", "pooler"),
        ]
        for theirs, ours in _DENSE:
            rules += dense(f"encoder.layer.*.{theirs}", f"blocks.*.{ours}")
        for theirs, ours in _NORMS:
            rules += norm(f"encoder.layer.*.{theirs}", f"blocks.*.{ours}")
        if isinstance(config, BertConfig):
            return Adapter(rules).under(prefix, "")
        if isinstance(config, BertMaskedLmConfig):
            head = [
                *dense("cls.predictions.transform.dense", "transform"),
                *norm("cls.predictions.transform.LayerNorm", "norm"),
                rename("cls.predictions.bias", "bias"),
            ]
        else:
            head = dense("classifier", "head")
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

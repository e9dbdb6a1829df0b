"""BERT: a bidirectional transformer, and two models with a head on it."""

from __future__ import annotations

from phlox.backend import DeviceLike
from phlox.config import Config
from phlox.models.encoder import Encoder, EncoderConfig
from phlox.models.encoder_heads import (
    EncoderClassifier,
    EncoderClassifierConfig,
    EncoderMaskedLm,
    EncoderMaskedLmConfig,
)
from phlox.models.parts import check_counts, check_rates

__all__ = ["Bert", "BertClassifier", "BertClassifierConfig", "BertConfig", "BertMaskedLm", "BertMaskedLmConfig"]


class BertConfig(EncoderConfig):
    """Hyper-parameters of `Bert`: those of an `Encoder`, whose defaults are a BERT's.

    >>> import phlox as px
    >>> model = BertConfig(vocabulary=10, context=8, n_layers=1, d_model=4, n_heads=2).init()
    >>> model(px.tensor([[1, 2, 3]])).shape
    (1, 3, 4)
    """

    def init(self, device: DeviceLike | None = None) -> Bert:
        """The model; its parameters are created when they are first used."""
        return Bert(self, device)


class Bert(Encoder):
    """A bidirectional transformer with post-normalization (Devlin et al. 2018).

    Weights start normally distributed with standard deviation 0.02, biases at zero.
    """


class BertHeadConfig(Config):
    """The base of the configs of BERTs with a head."""

    bert: BertConfig

    @property
    def encoder(self) -> BertConfig:
        """The config of the encoder."""
        return self.bert


class BertMaskedLmConfig(BertHeadConfig):
    """Hyper-parameters of `BertMaskedLm`: the config of its `Bert`, which needs no pooler.

    >>> import phlox as px
    >>> bert = BertConfig(vocabulary=10, context=8, n_layers=1, d_model=4, n_heads=2, pooler=False)
    >>> BertMaskedLmConfig(bert).init()(px.tensor([[1, 2, 3]])).shape
    (1, 3, 10)
    """

    def init(self, device: DeviceLike | None = None) -> BertMaskedLm:
        """The model; its parameters are created when they are first used."""
        return BertMaskedLm(self, device)


class BertMaskedLm(EncoderMaskedLm):
    """A `Bert` that predicts masked tokens. Its head is one more layer, followed by the transpose of the embedding."""

    encoder_name = "bert"
    bert: Bert

    def __init__(self, config: BertMaskedLmConfig, device: DeviceLike | None = None) -> None:
        super().__init__(EncoderMaskedLmConfig(config.bert), device)
        self.config = config


class BertClassifierConfig(BertHeadConfig):
    """Hyper-parameters of `BertClassifier`: the config of its `Bert`, which needs a pooler unless `by_token` is True.

    >>> import phlox as px
    >>> bert = BertConfig(vocabulary=10, context=8, n_layers=1, d_model=4, n_heads=2)
    >>> BertClassifierConfig(bert, classes=3).init()(px.tensor([[1, 2, 3]])).shape
    (1, 3)
    """

    classes: int = 2
    by_token: bool = False
    """Whether each token is classified, and not the whole text."""
    dropout: float | None = None
    """The dropout rate before the head; by default the rate of `bert`."""

    def validate(self) -> None:
        check_counts(classes=self.classes)
        check_rates(dropout=self.dropout)
        if not (self.by_token or self.bert.pooler):
            raise ValueError("classifying a text needs the pooler: set pooler=True in bert, or by_token=True")

    def init(self, device: DeviceLike | None = None) -> BertClassifier:
        """The model; its parameters are created when they are first used."""
        return BertClassifier(self, device)


class BertClassifier(EncoderClassifier):
    """A `Bert` that classifies texts, or each of their tokens."""

    encoder_name = "bert"
    bert: Bert

    def __init__(self, config: BertClassifierConfig, device: DeviceLike | None = None) -> None:
        general = EncoderClassifierConfig(
            config.bert, classes=config.classes, by_token=config.by_token, dropout=config.dropout
        )
        super().__init__(general, device)
        self.config = config

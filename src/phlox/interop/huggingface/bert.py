"""BERT in the files of Hugging Face, alone and with a head."""

from __future__ import annotations

from phlox.interop.adapter import rename
from phlox.interop.huggingface.encoders import PADDING, SEGMENTS, SIZES, EncoderFamily, kinds_of
from phlox.models import BertClassifierConfig, BertConfig, BertMaskedLmConfig


class Bert(EncoderFamily):
    """`Bert` as BertModel; `BertMaskedLm` and `BertClassifier` as the models with these heads.

    BertForPreTraining is loaded with its masked-token head and without its next-sentence head.
    """

    model_type = "bert"
    configs = (BertConfig, BertMaskedLmConfig, BertClassifierConfig)
    architectures = kinds_of("Bert", "BertForPreTraining")
    prefix = "bert"
    inner = "bert"
    former = (
        rename("**.LayerNorm.gamma", "**.LayerNorm.weight"),
        rename("**.LayerNorm.beta", "**.LayerNorm.bias"),
    )
    # Google's multilingual files say how a layer of TensorFlow's pools; the head for masked tokens alone is tied.
    harmless = frozenset({
        "directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers",
        "pooler_size_per_head", "pooler_type", "tie_word_embeddings",
    })  # fmt: skip
    entries = (*SIZES, SEGMENTS, PADDING)
    with_pooler = ("Model", "ForSequenceClassification")
    masked_linears = (("cls.predictions.transform.dense", "transform"),)
    head_norms = (("cls.predictions.transform.LayerNorm", "norm"),)
    masked_bias = "cls.predictions.bias"
    decoder = "cls.predictions.decoder"
    text_linears = (("classifier", "head"),)
    no_weights = (*EncoderFamily.no_weights, "cls.seq_relationship.*")  # the head for the next sentence

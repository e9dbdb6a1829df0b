"""Small random encoders of texts of each family give the results of transformers, with padding, and go back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox.errors import ConfigError
from phlox.interop import huggingface
from phlox.models import EncoderClassifierConfig, EncoderConfig, EncoderMaskedLmConfig

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 56,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 210,
    "pad_token_id": 1,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
DISTILBERT = {"dim": 48, "hidden_dim": 56, "n_layers": 4, "n_heads": 4}
MODERN = {"local_attention": 6, "num_hidden_layers": 5, "cls_token_id": 2, "sep_token_id": 3}
KINDS = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")
CASES: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {
    "bert": ("Bert", KINDS, {"type_vocab_size": 1, "layer_norm_eps": 1e-3, "hidden_act": "relu"}),
    "roberta": ("Roberta", KINDS, {"layer_norm_eps": 1e-5, "type_vocab_size": 1}),
    "roberta odd": ("Roberta", KINDS, {"hidden_act": "silu", "type_vocab_size": 3, "pad_token_id": 5, "num_labels": 3}),
    "xlm-roberta": ("XLMRoberta", ("Model", "ForMaskedLM"), {"hidden_size": 36, "num_attention_heads": 3}),
    "camembert": ("Camembert", ("ForTokenClassification",), {}),
    "mpnet": ("MPNet", KINDS, {"hidden_act": "gelu_new", "num_labels": 1}),
    "electra": ("Electra", KINDS, {"embedding_size": 20, "hidden_act": "relu"}),
    "electra wide": ("Electra", ("ForMaskedLM",), {"embedding_size": 48}),
    "distilbert": ("DistilBert", KINDS, {"activation": "relu", "num_labels": 3}),
    "modernbert": ("ModernBert", KINDS, {"classifier_pooling": "mean", "norm_eps": 1e-3}),
    "modernbert biases": ("ModernBert", KINDS, {
        "attention_bias": True, "mlp_bias": True, "norm_bias": True, "classifier_bias": True, "decoder_bias": False,
        "classifier_activation": "silu", "hidden_activation": "gelu_pytorch_tanh", "global_attn_every_n_layers": 2,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 5000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 77.0},
        },
    }),
}  # fmt: skip
QUICK = ("bert", "roberta", "mpnet", "electra", "distilbert", "modernbert biases")
PAIRS = [
    pytest.param(case, kind, id=f"{case}-{kind}", marks=[] if case in QUICK else [pytest.mark.full])
    for case, (_, kinds, _) in CASES.items()
    for kind in kinds
]


def made(case: str, kind: str) -> tuple[Any, Any]:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    name, _, options = CASES[case]
    sizes = {**SIZES, **options}
    if name == "DistilBert":
        sizes = {key: value for key, value in sizes.items() if key in ("vocab_size", "pad_token_id")}
        sizes |= DISTILBERT | options | {"max_position_embeddings": 210}
    if name == "ModernBert":
        sizes |= {**MODERN, **options}
    torch.manual_seed(0)
    model = getattr(transformers, name + kind)(getattr(transformers, f"{name}Config")(**sizes)).eval()
    for parameter in model.parameters():
        parameter.data += torch.randn_like(parameter) * 0.05
    return torch, model


def batch(padding: int, length: int, segments: int) -> tuple[Any, Any, Any]:
    """Texts with padding at the right, at the left, and without."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(6, 97, (3, length))
    mask = np.ones_like(tokens)
    mask[0, -3:] = mask[1, :2] = 0
    return np.where(mask, tokens, padding), mask, rng.integers(0, segments, tokens.shape)


@pytest.mark.parametrize(("case", "kind"), PAIRS)
def test_results_are_theirs(case: str, kind: str, tmp_path: Path) -> None:
    torch, reference = made(case, kind)
    reference.save_pretrained(tmp_path / "theirs")
    n_segments = getattr(reference.config, "type_vocab_size", 0)
    # Distances of up to 127 differ in MPNet.
    length = 140 if case == "mpnet" and kind == "Model" else 15
    tokens, mask, segments = batch(reference.config.pad_token_id, length, n_segments or 1)
    inputs = {"input_ids": tokens, "attention_mask": mask} | ({"token_type_ids": segments} if n_segments else {})

    def of(model: Any) -> dict[str, Any]:
        with torch.no_grad():
            result = model(**{name: torch.tensor(value) for name, value in inputs.items()})
        names = ("last_hidden_state", "pooler_output", "logits")
        return {name: result[name].numpy() for name in names if result.get(name) is not None}

    expected = of(reference)
    result = expected["logits" if "logits" in expected else "last_hidden_state"]
    seen = mask.astype(bool) if result.ndim == 3 else np.ones(len(mask), bool)
    for backend in ("numpy", "jax", "torch"):
        model = huggingface.load(tmp_path / "theirs", device=backend)
        ours = {"mask": px.tensor(mask, device=backend)}
        if n_segments:
            ours["segments"] = px.tensor(segments, device=backend)
        y = model(px.tensor(tokens, device=backend), **ours)
        np.testing.assert_allclose(y.numpy()[seen], result[seen], atol=1e-5, err_msg=backend)
        if "pooler_output" in expected:
            np.testing.assert_allclose(model.pooled(y).numpy(), expected["pooler_output"], atol=1e-5)
    huggingface.save(huggingface.load(tmp_path / "theirs", device="numpy"), tmp_path / "ours")
    again = of(type(reference).from_pretrained(tmp_path / "ours").eval())
    for name, value in expected.items():
        rows = seen if value.ndim == seen.ndim + 1 else slice(None)
        np.testing.assert_allclose(again[name][rows], value[rows], atol=2e-6)
    assert huggingface.load(tmp_path / "ours", device="numpy").config == model.config


def test_what_a_family_does_not_have_is_refused(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"vocabulary": 97, "context": 16, "n_layers": 2, "d_model": 16, "n_heads": 2}
    plain = EncoderConfig(**sizes, family="roberta", positions="counted", padding_index=1, pooler=False)
    for config, words in (
        (EncoderConfig(**sizes, family="roberta"), ("positions='learned'", "roberta", "counted")),
        (plain.replace(norm_place="before"), ("norm_place", "before", "roberta")),
        (plain.replace(family="distilbert", segments=None), ("positions", "distilbert")),
        (EncoderMaskedLmConfig(plain.replace(pooler=True)), ("EncoderMaskedLm with a pooler", "RobertaForMaskedLM")),
        (EncoderMaskedLmConfig(plain, head_bias=False), ("head_bias=False", "roberta")),
        (EncoderClassifierConfig(plain, pooling="max", hidden="tanh"), ("pooling='max'", "roberta")),
        (EncoderClassifierConfig(plain), ("hidden=None", "roberta")),
        (EncoderMaskedLmConfig(plain.replace(activation="relu")), ("head_activation='relu'", "'gelu'")),
    ):
        with pytest.raises(ConfigError) as caught:
            huggingface.save(config.init("numpy"), tmp_path)
        assert all(word in str(caught.value) for word in words), str(caught.value)
    scaled = {"rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 2.0}}}
    for data, words in (
        ({"model_type": "roberta", "position_embedding_type": "relative_key"}, ("relative_key",)),
        ({"model_type": "roberta", "pad_token_id": None}, ("padding_index",)),
        ({"model_type": "roberta", "adapter_size": 3}, ("adapter_size", "not known")),
        ({"model_type": "mpnet", "relative_attention_num_buckets": 64}, ("relative_attention_num_buckets=64",)),
        ({"model_type": "modernbert", **scaled}, ("rope_type='yarn'",)),
        ({"model_type": "modernbert", "mlp_dropout": 0.1}, ("mlp_dropout=0.1",)),
        (
            {"model_type": "modernbert", "architectures": ["ModernBertForMaskedLM"], "tie_word_embeddings": False},
            ("tie_word_embeddings=False",),
        ),
        (
            {"model_type": "modernbert", "architectures": ["ModernBertForSequenceClassification"],
             "classifier_pooling": "max"},
            ("classifier_pooling='max'",),
        ),
    ):  # fmt: skip
        with pytest.raises(ConfigError) as caught:
            huggingface.config_from(data)
        assert all(word in str(caught.value) for word in words), str(caught.value)


def test_real_configs_are_read() -> None:
    """What the files of published models say, in the words of the versions that wrote them."""
    config: Any = huggingface.config_from({
        "architectures": ["ModernBertForMaskedLM"], "attention_bias": False, "attention_dropout": 0.0,
        "classifier_activation": "gelu", "classifier_bias": False, "classifier_dropout": 0.0,
        "classifier_pooling": "mean", "decoder_bias": True, "deterministic_flash_attn": False,
        "embedding_dropout": 0.0, "global_attn_every_n_layers": 3, "global_rope_theta": 160000.0,
        "gradient_checkpointing": False, "hidden_activation": "gelu", "hidden_size": 768,
        "initializer_cutoff_factor": 2.0, "initializer_range": 0.02, "intermediate_size": 1152,
        "layer_norm_eps": 1e-05, "local_attention": 128, "local_rope_theta": 10000.0,
        "max_position_embeddings": 8192, "mlp_bias": False, "mlp_dropout": 0.0, "model_type": "modernbert",
        "norm_bias": False, "norm_eps": 1e-05, "num_attention_heads": 12, "num_hidden_layers": 22,
        "pad_token_id": 50283, "position_embedding_type": "absolute", "sep_token_id": 50282,
        "tie_word_embeddings": True, "torch_dtype": "float32", "vocab_size": 50368,
    })  # fmt: skip
    assert (config.encoder.rotary_base, config.encoder.window, config.encoder.n_layers) == (160000.0, 64, 22)
    assert config.encoder.window_layers[:4] == (1, 2, 4, 5)
    distil: Any = huggingface.config_from({
        "activation": "gelu", "architectures": ["DistilBertForMaskedLM"], "attention_dropout": 0.1, "dim": 768,
        "dropout": 0.1, "hidden_dim": 3072, "initializer_range": 0.02, "max_position_embeddings": 512,
        "model_type": "distilbert", "n_heads": 12, "n_layers": 6, "pad_token_id": 0, "qa_dropout": 0.1,
        "seq_classif_dropout": 0.2, "sinusoidal_pos_embds": False, "tie_weights_": True, "vocab_size": 30522,
    })  # fmt: skip
    assert (distil.encoder.segments, distil.encoder.pooler, distil.encoder.context) == (None, False, 512)
    roberta: Any = huggingface.config_from({
        "architectures": ["RobertaForMaskedLM"], "max_position_embeddings": 514, "model_type": "roberta",
        "pad_token_id": 1, "type_vocab_size": 1, "vocab_size": 50265, "output_past": True,
    })  # fmt: skip
    assert (roberta.encoder.context, roberta.encoder.first_position) == (512, 2)

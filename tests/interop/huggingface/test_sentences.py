"""Embeddings equal those of sentence-transformers, whose folders are read and written."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import phlox as px
from phlox.errors import ConfigError
from phlox.interop import huggingface
from phlox.models import EncoderConfig, SentenceEncoderConfig, SentenceLayerConfig

os.environ["HF_HUB_OFFLINE"] = "1"
TEXTS = ["w1 w2 w3 w4 w5 w6", "w7", "w8 w9 w3 w11"]
SIZES: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20,
    "max_position_embeddings": 32, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3,
}  # fmt: skip
GROUPED = {"num_key_value_heads": 1, "head_dim": 8}
CASES: dict[str, tuple[str, dict[str, Any], Any, str, bool]] = {
    "mean": ("Bert", {}, "mean", "right", True),
    "first": ("MPNet", {"pad_token_id": 1}, ("cls", "max"), "right", False),
    "last, a decoder": ("Qwen3", GROUPED, "lasttoken", "left", True),
    "last, untied": ("Llama", {"num_key_value_heads": 1}, "lasttoken", "right", False),
    "others, and a layer": ("ModernBert", {}, ("mean_sqrt_len_tokens", "weightedmean"), "right", True),
}


def tokenizer(padding: str, left: str) -> Any:
    transformers, tokenizers = pytest.importorskip("transformers"), pytest.importorskip("tokenizers")
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    if padding == "1":
        special[:2] = special[1::-1]
    words = [*special, *[f"w{i}" for i in range(60)]]
    model = tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]")
    whole = tokenizers.Tokenizer(model)
    whole.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    whole.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=whole, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        padding_side=left,
    )  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_embeddings_are_theirs(case: str, tmp_path: Path) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    st = pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer import modules

    kind, options, pooling, side, normalized = CASES[case]
    sizes = SIZES | options | ({"cls_token_id": 2, "sep_token_id": 3} if kind == "ModernBert" else {})
    torch.manual_seed(0)
    # Files often have the head of another architecture than the one that is used.
    head = "" if case == "last, untied" else "ForCausalLM" if kind == "Qwen3" else "ForMaskedLM"
    cls = getattr(transformers, f"{kind}{head or 'Model'}")
    inner = cls(getattr(transformers, f"{kind}Config")(**sizes))
    for parameter in inner.parameters():
        parameter.data += torch.randn_like(parameter) * 0.1
    inner.save_pretrained(tmp_path / "inner")
    words = tokenizer(str(sizes["pad_token_id"]), side)
    words.save_pretrained(tmp_path / "inner")
    width = 16 * (1 if isinstance(pooling, str) else len(pooling))
    parts: list[Any] = [modules.Transformer(str(tmp_path / "inner")), modules.Pooling(16, cast("Any", pooling))]
    if "layer" in case:
        parts += [modules.Dense(width, 12, activation_function=torch.nn.Tanh()), modules.Dense(12, 6, bias=False)]
    parts += [modules.Normalize()] if normalized else []
    st.SentenceTransformer(modules=parts, device="cpu").save(str(tmp_path / "theirs"))
    inner.save_pretrained(tmp_path / "theirs")  # with the head
    reference = st.SentenceTransformer(str(tmp_path / "theirs"), device="cpu")
    expected = reference.encode(TEXTS)
    batch = words(TEXTS, padding=True)
    for backend in ("numpy", "jax", "torch"):
        model = huggingface.load_sentence_encoder(tmp_path / "theirs", device=backend)
        tokens, mask = (px.tensor(np.array(batch[key]), device=backend) for key in ("input_ids", "attention_mask"))
        np.testing.assert_allclose(model(tokens, mask=mask).numpy(), expected, atol=1e-5, err_msg=backend)
    model = huggingface.load_sentence_encoder(tmp_path / "theirs", device="numpy")
    huggingface.save_sentence_encoder(model, tmp_path / "ours")
    words.save_pretrained(tmp_path / "ours")
    again = st.SentenceTransformer(str(tmp_path / "ours"), device="cpu")
    np.testing.assert_allclose(again.encode(TEXTS), expected, atol=2e-6)
    assert huggingface.load_sentence_encoder(tmp_path / "ours", device="numpy").config == model.config


def test_unsupported_modules_are_refused(tmp_path: Path) -> None:
    inner = EncoderConfig(
        vocabulary=10, context=8, n_layers=1, d_model=4, n_heads=2, family="roberta", positions="counted"
    )
    config = SentenceEncoderConfig(inner, layers=(SentenceLayerConfig(4, 3),))
    huggingface.save_sentence_encoder(config.init("numpy"), tmp_path)
    for file, change, words in (
        ("1_Pooling/config.json", {"include_prompt": False}, ("include_prompt", "prompt")),
        ("1_Pooling/config.json", {"pooling_mode": "median"}, ("median", "lasttoken")),
        ("1_Pooling/config.json", {"scale": 2.0}, ("scale=2.0", "not known")),
        ("2_Dense/config.json", {"use_residual": True}, ("use_residual", "added")),
        ("2_Dense/config.json", {"activation_function": "os.system"}, ("os.system",)),
        ("3_Normalize/config.json", {"module_input_name": "token_embeddings"}, ("module_input_name",)),
        ("modules.json", [{"type": "a.Transformer", "path": ""}, {"type": "a.LSTM", "path": "x"}], ("LSTM", "Dense")),
        ("modules.json", [{"type": "a.Transformer", "path": "../x"}], ("../x", "leads out")),
        ("modules.json", {"type": "a.Transformer"}, ("list",)),
    ):  # fmt: skip
        text = (tmp_path / file).read_text()
        old: Any = json.loads(text)
        new: Any = change
        (tmp_path / file).write_text(json.dumps({**old, **new} if isinstance(old, dict) and new is not None else new))
        with pytest.raises(ConfigError) as caught:
            huggingface.load_sentence_encoder(tmp_path, device="numpy")
        assert all(word in str(caught.value) for word in words), str(caught.value)
        (tmp_path / file).write_text(text)
    gate = SentenceEncoderConfig(inner, layers=(SentenceLayerConfig(4, 3, activation="quick_gelu"),))
    with pytest.raises(ConfigError, match="quick_gelu"):
        huggingface.save_sentence_encoder(gate.init("numpy"), tmp_path)


def test_former_names_of_poolings(tmp_path: Path) -> None:
    inner = EncoderConfig(
        vocabulary=10, context=8, n_layers=1, d_model=4, n_heads=2, family="roberta", positions="counted"
    )
    huggingface.save_sentence_encoder(SentenceEncoderConfig(inner).init("numpy"), tmp_path)
    names = ("cls_token", "max_tokens", "mean_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
    for name, ours in zip(names, ("first", "max", "mean", "root_mean", "weighted_mean", "last"), strict=True):
        modes = {f"pooling_mode_{other}": other == name for other in names}
        (tmp_path / "1_Pooling/config.json").write_text(json.dumps({"word_embedding_dimension": 4, **modes}))
        assert huggingface.load_sentence_encoder(tmp_path, device="numpy").config.pooling == (ours,)

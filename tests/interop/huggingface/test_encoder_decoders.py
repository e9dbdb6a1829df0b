"""Small random encoder-decoders of each family give the logits and texts of transformers, and go back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox.errors import ConfigError, RecordError
from phlox.interop import huggingface
from phlox.models import EncoderDecoderConfig

T5: dict[str, Any] = {
    "vocab_size": 37, "d_model": 24, "d_kv": 6, "d_ff": 40, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 10, "decoder_start_token_id": 0,
}  # fmt: skip
BART: dict[str, Any] = {
    "vocab_size": 37, "d_model": 24, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 40, "decoder_ffn_dim": 36, "bos_token_id": 0, "pad_token_id": 1,
    "eos_token_id": 2, "decoder_start_token_id": 2, "forced_eos_token_id": None, "max_position_embeddings": 32,
}  # fmt: skip
WHISPER: dict[str, Any] = {
    **{key: value for key, value in BART.items() if key not in ("max_position_embeddings", "forced_eos_token_id")},
    "num_mel_bins": 5, "max_source_positions": 12, "max_target_positions": 24,
    "suppress_tokens": None, "begin_suppress_tokens": None,
}  # fmt: skip
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "t5": ("T5", {}),
    "t5 1.1": ("T5", {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "t5 silu": ("T5", {"feed_forward_proj": "silu", "layer_norm_epsilon": 0.1, "num_decoder_layers": None}),
    "t5 gelu": ("T5", {"dense_act_fn": "gelu", "is_gated_act": True, "relative_attention_max_distance": 7}),
    "mt5": ("MT5", {"feed_forward_proj": "gated-gelu"}),
    "umt5": ("UMT5", {}),
    "bart": ("Bart", {"scale_embedding": True}),
    "bart relu": ("Bart", {"activation_function": "relu", "dropout": 0.2}),
    "mbart": ("MBart", {}),
    "marian": ("Marian", {"scale_embedding": True, "activation_function": "swish"}),
    "whisper": ("Whisper", {"scale_embedding": True}),
    "whisper untied": ("Whisper", {"tie_word_embeddings": False, "activation_function": "gelu_new", "num_mel_bins": 7}),
}  # fmt: skip
BACKENDS = ("numpy", "jax", "torch")
TOKENS = np.array([[2, 9, 11, 4, 30]])


def theirs(case: str) -> tuple[Any, Any, Any]:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    kind, more = CASES[case]
    sizes = WHISPER if kind == "Whisper" else T5 if "T5" in kind else BART
    head = "MTModel" if kind == "Marian" else "ForConditionalGeneration"
    cls = getattr(transformers, f"{kind}{head}")
    torch.manual_seed(0)
    model = cls(getattr(transformers, f"{kind}Config")(**{**sizes, **more})).eval()
    if "1.1" in case:  # a head of its own
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())
    for name, parameter in model.named_parameters():
        if kind == "Marian" and "positions" in name:
            continue  # they are not saved
        parameter.data += torch.randn_like(parameter) * (0.5 if parameter.ndim == 1 or "bias" in name else 0.2)
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias += torch.randn_like(model.final_logits_bias)
    return torch, cls, model


def sources(case: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any] | None]:
    """Two sources, and the mask of the tokens: one is shorter than the other."""
    generator = np.random.default_rng(0)
    if "whisper" in case:
        features = CASES[case][1].get("num_mel_bins", 5)
        return generator.normal(size=(2, features, 24)).astype(np.float32), None
    tokens, mask = generator.integers(3, 37, (2, 14)), np.ones((2, 14), np.int64)
    tokens[1, 9:], mask[1, 9:] = 1, 0
    return tokens, mask


def given(torch: Any, case: str) -> dict[str, Any]:
    source, mask = sources(case)
    if mask is None:
        return {"input_features": torch.tensor(source), "use_cache": False}
    # Without a cache: theirs has as many layers as the encoder.
    return {"input_ids": torch.tensor(source), "attention_mask": torch.tensor(mask), "use_cache": False}


@pytest.mark.parametrize("case", CASES)
def test_logits_and_texts_are_theirs(case: str, tmp_path: Path) -> None:
    torch, cls, reference = theirs(case)
    from transformers.generation import GenerationMixin

    reference.save_pretrained(tmp_path / "theirs")
    source, mask = sources(case)
    decoded = np.concatenate([TOKENS, TOKENS[:, ::-1]])
    targets = np.where(decoded == 4, -100, decoded)
    with torch.no_grad():
        expected = reference(**given(torch, case), decoder_input_ids=torch.tensor(decoded)).logits.numpy()
        texts = GenerationMixin.generate(
            reference, **given(torch, case), max_new_tokens=8, do_sample=False, eos_token_id=None, num_beams=1
        ).numpy()
        loss = reference(**given(torch, case), labels=torch.tensor(targets)).loss.item()
    size = np.abs(expected).max()
    for backend in BACKENDS:
        model = huggingface.load(tmp_path / "theirs", device=backend)
        x, seen = px.tensor(source, device=backend), None if mask is None else px.tensor(mask, device=backend)
        logits = model(x, px.tensor(decoded, device=backend), mask=seen).numpy()
        np.testing.assert_allclose(logits / size, expected / size, atol=1e-5, err_msg=backend)
        result = model.generate(x, 8, mask=seen, temperature=0.0, stop=())
        np.testing.assert_array_equal(result.numpy(), texts, err_msg=backend)
    if "bart" != CASES[case][0].lower()[1:]:  # the targets of an mBART begin with its language
        assert abs(model.loss(x, px.tensor(targets, device="torch"), mask=seen).item() - loss) < 1e-5 * size
    model = huggingface.load(tmp_path / "theirs", device="numpy")
    # A cache that is filled in pieces.
    seen = None if mask is None else px.tensor(mask, device="numpy")
    decoder = model.start(px.tensor(source, device="numpy"), mask=seen)
    cache, pieces, tokens = decoder.init_cache(2, 8), [], px.tensor(decoded, device="numpy")
    for start, stop in ((0, 2), (2, 3), (3, 5)):
        logits, cache = decoder(tokens[:, start:stop], cache=cache)
        pieces.append(logits.numpy())
    np.testing.assert_allclose(np.concatenate(pieces, 1) / size, expected / size, atol=1e-5)
    huggingface.save(model, tmp_path / "ours")
    again = cls.from_pretrained(tmp_path / "ours").eval()
    with torch.no_grad():
        result = again(**given(torch, case), decoder_input_ids=torch.tensor(decoded)).logits.numpy()
    np.testing.assert_allclose(result / size, expected / size, atol=2e-6)

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
    large = "bias" if "T5" in kind else "encoder"  # so that the source matters
    for name, parameter in model.named_parameters():
        if kind == "Marian" and "positions" in name:
            continue  # they are not saved
        parameter.data += torch.randn_like(parameter) * (0.5 if parameter.ndim == 1 or large in name else 0.2)
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


QUICK = ("t5", "t5 1.1", "umt5", "bart", "whisper", "whisper untied")
COMPILED = ("t5", "whisper")


@pytest.mark.parametrize(
    ("case", "is_full"),
    [
        *[(case, False) for case in QUICK],
        *[pytest.param(case, True, marks=pytest.mark.full) for case in CASES],
    ],
)
def test_logits_and_texts_are_theirs(case: str, is_full: bool, tmp_path: Path) -> None:
    torch, cls, reference = theirs(case)
    from transformers.generation.utils import GenerationMixin

    generate: Any = GenerationMixin.generate  # pyright: ignore[reportAttributeAccessIssue]
    reference.save_pretrained(tmp_path / "theirs")
    source, mask = sources(case)
    decoded = np.concatenate([TOKENS, TOKENS[:, ::-1]])
    targets = np.where(decoded == 4, -100, decoded)
    with torch.no_grad():
        expected = reference(**given(torch, case), decoder_input_ids=torch.tensor(decoded)).logits.numpy()
        options: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "num_beams": 1}
        texts = generate(reference, **given(torch, case), **options, no_repeat_ngram_size=1).numpy()
        loss = reference(**given(torch, case), labels=torch.tensor(targets)).loss.item()
    assert texts[0].tolist() != texts[1].tolist()  # the sources matter
    size = np.abs(expected).max()
    model: Any = None
    x: Any = None
    seen: Any = None
    for backend in BACKENDS:
        model = huggingface.load(tmp_path / "theirs", device=backend)
        x, seen = px.tensor(source, device=backend), None if mask is None else px.tensor(mask, device=backend)
        logits = model(x, px.tensor(decoded, device=backend), mask=seen).numpy()
        np.testing.assert_allclose(logits / size, expected / size, atol=1e-5, err_msg=backend)
        if backend != "jax" or is_full or case in COMPILED:
            result = model.generate(x, 8, mask=seen, temperature=0.0, stop=(), no_repeat_ngram=1)
            np.testing.assert_array_equal(result.numpy(), texts, err_msg=backend)
    if case != "mbart":  # the targets of an mBART begin with its language
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


@pytest.mark.parametrize("case", ["t5", "bart", "marian", "whisper"])
def test_models_without_a_head(case: str, tmp_path: Path) -> None:
    torch, _, reference = theirs(case)
    inner = getattr(reference, "model", None)
    if inner is None:  # a T5 has no part of its own
        from transformers import T5Model

        inner = T5Model(reference.config)
        inner.load_state_dict(reference.state_dict(), strict=False)
    inner.eval().save_pretrained(tmp_path)
    source, mask = sources(case)
    with torch.no_grad():
        tokens = torch.tensor(np.concatenate([TOKENS, TOKENS]))
        expected = inner(**given(torch, case), decoder_input_ids=tokens).last_hidden_state.numpy()
    model = huggingface.load(tmp_path, device="numpy")
    decoder = model.start(px.tensor(source, device="numpy"), mask=None if mask is None else px.tensor(mask))
    np.testing.assert_allclose(decoder.hidden(px.tensor(tokens.numpy(), device="numpy")).numpy(), expected, atol=2e-5)


def test_files_of_pytorch_with_the_embedding_twice(tmp_path: Path) -> None:
    torch, _, reference = theirs("t5")
    reference.config.save_pretrained(tmp_path)
    weights = reference.state_dict()
    names = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
    weights |= dict.fromkeys(names, weights["shared.weight"])
    torch.save(weights, tmp_path / "pytorch_model.bin")
    model = huggingface.load(tmp_path, device="numpy")
    assert model.config.tied and model.head is None
    weights["lm_head.weight"] = weights["shared.weight"] + 1.0
    torch.save(weights, tmp_path / "pytorch_model.bin")
    assert not huggingface.load(tmp_path, device="numpy").config.tied
    weights["encoder.embed_tokens.weight"] = weights["shared.weight"] + 1.0
    torch.save(weights, tmp_path / "pytorch_model.bin")
    with pytest.raises(RecordError, match=r"encoder.embed_tokens.weight differs from shared.weight"):
        huggingface.load(tmp_path, device="numpy")


@pytest.mark.parametrize("case", ["t5", "umt5", "bart", "mbart", "marian", "whisper"])
def test_gradients_and_fresh_models_are_theirs(case: str, tmp_path: Path) -> None:
    torch, cls, reference = theirs(case)
    reference.save_pretrained(tmp_path)
    source, mask = sources(case)
    targets = np.concatenate([TOKENS, TOKENS])
    if case == "mbart":  # theirs begins targets with their last token, the language
        before = np.concatenate([np.full((2, 1), 2), targets[:, :-1]], 1)
        loss = reference(
            **given(torch, case), decoder_input_ids=torch.tensor(before), labels=torch.tensor(targets)
        ).loss
    else:
        loss = reference(**given(torch, case), labels=torch.tensor(targets)).loss
    loss.backward()
    model = huggingface.load(tmp_path, device="numpy").train()
    config = model.config.replace(dropout=0.0, attention_dropout=0.0, hidden_dropout=0.0, output_dropout=0.0)
    model = config.init("numpy").load_record(model.into_record()).train()
    seen = None if mask is None else px.tensor(mask, device="numpy")
    ours = px.tensor(targets, device="numpy")
    grads = px.GradientsParams.from_grads(
        model.loss(px.tensor(source, device="numpy"), ours, mask=seen).backward(), model
    )
    theirs_by_name = {name: x.grad.numpy() for name, x in reference.named_parameters() if x.grad is not None}
    expected = huggingface.adapter_for(model.config).read(px.record.Record(theirs_by_name))
    for path, param in model.named_params():
        if param.trained:
            grad, gradient = expected[path].tensor.read(), grads.get(param.id)
            assert gradient is not None
            np.testing.assert_allclose(gradient.numpy(), grad, atol=5e-5 * max(1.0, np.abs(grad).max()), err_msg=path)
    with px.random.stream(0):
        huggingface.save(model.config.init("numpy"), tmp_path / "fresh")
    cls.from_pretrained(tmp_path / "fresh")


def test_what_a_family_does_not_have_is_refused(tmp_path: Path) -> None:
    t5 = {"vocabulary": 20, "d_model": 8, "n_heads": 2, "n_layers": 1, "context": 1 << 20, "source_context": 1 << 20}
    for fields, words in (
        ({"positions": "learned"}, ("positions", "'learned'", "t5")),
        ({"context": 100}, ("context", "100", "t5")),
        ({"logits_scale": 0.5}, ("0.5", "d_model**-0.5")),
        ({"dropout": 0.1}, ("one dropout rate", "attention_dropout")),
        ({"n_features": 4}, ("n_features", "t5")),
        ({"family": "mt5", "logits_scale": 8**-0.5}, ("mt5", "by 1,")),
        ({"family": "whisper"}, ("whisper", "norm='rms'")),
    ):
        config = EncoderDecoderConfig(**{**t5, **fields})
        with pytest.raises(ConfigError) as caught:
            huggingface.save(config.init("numpy"), tmp_path)
        assert all(word in str(caught.value) for word in words), str(caught.value)
    for data, words in (
        ({"model_type": "t5", "feed_forward_proj": "gated-mish"}, ("feed_forward_proj", "mish")),
        ({"model_type": "t5", "feed_forward_proj": "split-gelu"}, ("feed_forward_proj", "split-gelu")),
        ({"model_type": "t5", "is_encoder_decoder": False}, ("is_encoder_decoder", "halves")),
        ({"model_type": "t5", "tie_encoder_decoder": True}, ("tie_encoder_decoder",)),
        ({"model_type": "t5", "num_experts": 8}, ("num_experts", "not known")),
        ({"model_type": "t5", "architectures": ["T5EncoderModel"]}, ("T5EncoderModel",)),
        ({"model_type": "t5", "architectures": ["T5Model"], "tie_word_embeddings": False}, ("T5Model", "no head")),
        ({"model_type": "bart", "encoder_layerdrop": 0.1}, ("encoder_layerdrop", "left out")),
        ({"model_type": "marian", "decoder_vocab_size": 7}, ("decoder_vocab_size", "different tokens")),
        ({"model_type": "marian", "share_encoder_decoder_embeddings": False}, ("share_encoder_decoder_embeddings",)),
        ({"model_type": "whisper", "apply_spec_augment": True}, ("apply_spec_augment", "random")),
        ({"model_type": "whisper", "activation_function": "mish"}, ("activation_function", "mish")),
    ):
        with pytest.raises(ConfigError) as caught:
            huggingface.config_from(data)
        assert all(word in str(caught.value) for word in words), str(caught.value)
    (tmp_path / "preprocessor_config.json").write_text('{"feature_size": 80, "dither": 0.1}')
    with pytest.raises(ConfigError, match=r"dither=0.1 is not supported: noise would be added"):
        huggingface.load_speech(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text('{"feature_size": 80, "mel_scale": "htk"}')
    with pytest.raises(ConfigError, match="mel_scale"):
        huggingface.load_speech(tmp_path)

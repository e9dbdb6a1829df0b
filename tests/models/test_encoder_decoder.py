"""Encoder-decoders: masks, prompts, rows of texts, and training; their values are compared in test_encoder_decoders.py.

Serves: phlox/models/encoder_decoder.py, phlox/models/encoder_decoder_config.py, phlox/models/encoder_decoder_stack.py
Serves: phlox/models/positions.py
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import optim
from phlox.errors import IndexRangeError, KindError, RangeError, ShapeError
from phlox.models import EncoderDecoder, EncoderDecoderConfig

SIZES: dict[str, Any] = {
    "vocabulary": 20, "context": 16, "source_context": 12, "n_layers": 2, "n_decoder_layers": 1, "d_model": 8,
    "n_heads": 2, "buckets": 4, "max_distance": 6, "start_token": 1, "stop_tokens": (2,), "init_std": 0.6,
}  # fmt: skip
SOURCES = [[5, 6, 7, 8, 9], [4], [11, 12, 13]]
KINDS = {
    "relative": {},
    "own buckets": {"shared_buckets": False},
    "learned": {"positions": "learned", "position_offset": 2, "norm": "layer", "norm_place": "after"},
    "sinusoidal": {"positions": "sinusoidal", "source_positions": "frozen", "tied": True, "embedding_norm": True},
}


def model_of(kind: str, device: str = "numpy") -> EncoderDecoder:
    with px.random.stream(3):
        return EncoderDecoderConfig(**SIZES, **KINDS[kind]).init(device)


@pytest.mark.parametrize("kind", KINDS)
def test_texts_do_not_depend_on_their_neighbours(kind: str) -> None:
    model = model_of(kind)
    options: dict[str, Any] = {"temperature": 0.0, "stop": ()}
    together = model.generate(SOURCES, 6, **options)
    texts = [model.generate(px.tensor(source, device="numpy"), 6, **options).tolist() for source in SOURCES]
    assert [text.tolist() for text in together] == texts and all(text[0] == 1 for text in texts)
    assert list(model.stream(px.tensor(SOURCES[0], device="numpy"), 6, **options)) == texts[0][1:]
    rows = [list(row) for row in zip(*model.stream(SOURCES, 6, **options), strict=True)]
    assert rows == [text[1:] for text in texts]
    # A text of its own for each seed; the same alone.
    seeds = [model.generate(SOURCES, 6, seeds=[1, 2, 3], stop=(), repetition_penalty=1.3)[1].tolist()]
    seeds.append(model.generate([SOURCES[1]], 6, seeds=[2], stop=(), repetition_penalty=1.3)[0].tolist())
    assert seeds[0] == seeds[1]
    # The rows of a source follow each other.
    decoder = model.start(px.tensor([SOURCES[0], SOURCES[0][::-1]], device="numpy"))
    starts = px.tensor([[1, 3], [1, 4], [1, 3], [1, 4]], device="numpy")
    logits = decoder(starts).numpy()
    for row in range(4):
        source = px.tensor([SOURCES[0], SOURCES[0][::-1]][row // 2], device="numpy")[None]
        np.testing.assert_allclose(logits[row], model.valid()(source, starts[row : row + 1])[0].numpy(), atol=1e-5)
    # Prompts: one for all, and one for each.
    assert model.generate(SOURCES, 3, prompt=[1, 7], **options)[2].tolist()[:2] == [1, 7]
    prompts = model.generate(SOURCES, 3, prompt=[[1, 7], [1], [1, 3]], **options)
    assert [text.tolist()[:-3] for text in prompts] == [[1, 7], [1], [1, 3]]
    assert prompts[1].tolist() == texts[1][:4]


@pytest.mark.parametrize(
    ("backend", "kind", "compile"),
    [
        ("jax", "relative", True),
        *[
            pytest.param(backend, kind, compile, marks=pytest.mark.full)
            for backend in ("jax", "torch")
            for kind in ("relative", "learned")
            for compile in (True, False)
        ][1:],
    ],
)
def test_compiled_texts_are_those_of_numpy(backend: str, kind: str, compile: bool) -> None:
    reference, model = model_of(kind), model_of(kind, backend)
    model.load_record(reference.into_record())
    for sources in (SOURCES, SOURCES[1:]):
        expected = reference.generate(sources, 5, temperature=0.0, no_repeat_ngram=2, logprobs=True)
        result = model.generate(sources, 5, temperature=0.0, no_repeat_ngram=2, logprobs=True, compile=compile)
        for text, other in zip(result.tokens, expected.tokens, strict=True):
            assert text.tolist() == other.tolist()
        for rated, other in zip(result.logprobs, expected.logprobs, strict=True):
            np.testing.assert_allclose(rated.numpy(), other.numpy(), atol=1e-4)


def test_training() -> None:
    config = EncoderDecoderConfig(**{**SIZES, "init_std": 0.1}, dropout=0.1, attention_dropout=0.1, hidden_dropout=0.1)
    model = config.init("numpy").train()
    source = px.tensor([[5, 6, 7, 8], [9, 5, 4, 0]], device="numpy")
    mask = px.tensor([[1, 1, 1, 1], [1, 1, 1, 0]], device="numpy")
    targets = px.tensor([[8, 7, 6, 5, 2], [4, 5, 9, 2, -100]], device="numpy")
    assert model.shift(targets).tolist() == [[1, 8, 7, 6, 5], [1, 4, 5, 9, 2]]
    optimizer = optim.AdamWConfig().init()
    for _ in range(150):
        grads = px.GradientsParams.from_grads(model.loss(source, targets, mask=mask).backward(), model)
        model = optimizer.step(1e-2, model, grads)
    assert [text.tolist() for text in model.generate(list(source[:, :3]), 8, temperature=0.0)][1] == [1, 4, 5, 9]
    assert model.valid().loss(source, targets, mask=mask).item() < 0.1
    # What the last target of a padded row is does not matter.
    other = px.tensor([[8, 7, 6, 5, 2], [4, 5, 9, -100, -100]], device="numpy")
    assert model.valid().loss(source, other, mask=mask).item() != model.valid().loss(source, targets, mask=mask).item()


def test_errors() -> None:
    model, tokens = model_of("learned"), px.tensor([[1, 3]], device="numpy")
    heard = EncoderDecoderConfig(**SIZES, positions="learned", n_features=4).init("numpy")
    wrong: list[tuple[type[Exception], str, Any]] = [
        (ShapeError, "at most 12 tokens", lambda: model(px.zeros((1, 13), kind=px.Int), tokens)),
        (ShapeError, "at most the context of 16", lambda: model(tokens, px.zeros((1, 17), kind=px.Int))),
        (KindError, "source", lambda: model(px.ones((1, 3)), tokens)),
        (KindError, "mask", lambda: model(tokens, tokens, mask=px.ones((1, 2)))),
        (ShapeError, "shape of the source", lambda: model(tokens, tokens, mask=px.tensor([[1]]))),
        (ShapeError, r"\[batch, 4, frames\] with at most 24", lambda: heard(px.ones((1, 4, 25)), tokens)),
        (ShapeError, "3 sources need as many prompts, got 2", lambda: model.generate(SOURCES, 2, prompt=[[1], [1]])),
        (
            ShapeError,
            "3 rows of tokens are not a multiple of 2",
            lambda: model(px.ones((2, 2)).int(), tokens[[0, 0, 0]]),
        ),
        (IndexRangeError, "the tokens of this model", lambda: model.generate([[50]], 2)),
        (RangeError, "temperature", lambda: model.generate(SOURCES, 2, temperature=-1.0)),
    ]
    for error, message, call in wrong:
        with pytest.raises(error, match=message):
            call()
    for fields in (
        {"buckets": 3},
        {"max_distance": 16},
        {"start_token": 256},
        {"n_decoder_heads": 3},
        {"dropout": 1.0},
    ):
        with pytest.raises(ValueError, match=next(iter(fields)) if "heads" not in str(fields) else "3 heads"):
            EncoderDecoderConfig(**fields)  # pyright: ignore[reportArgumentType]

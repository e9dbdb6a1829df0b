"""Penalties, biases and functions on logits: greedy texts against those of transformers."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox.backend import Backend, Jax, NumPy, Torch
from phlox.interop import huggingface
from phlox.models import GptConfig
from phlox.models.generation import decoding

PROMPTS = [[3, 1, 4, 1, 5, 3], [2, 7], [6, 2, 6, 2]]
NEW = 12
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # our options, and those of transformers
    "repetition": ({"repetition_penalty": 1.7}, {"repetition_penalty": 1.7}),
    "bigrams": ({"no_repeat_ngram": 2}, {"no_repeat_ngram_size": 2}),
    "trigrams": ({"no_repeat_ngram": 3}, {"no_repeat_ngram_size": 3}),
    "bias": ({"logit_bias": {5: 2.0, 2: -3.0}}, {"sequence_bias": {(5,): 2.0, (2,): -3.0}}),
    "banned": ({"banned": [1, 4]}, {"suppress_tokens": [1, 4]}),
}
PAIRS = [*itertools.combinations(CASES, 1), *itertools.combinations(CASES, 2)]


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=13, n_positions=64, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0,
        initializer_range=0.4,
    )  # fmt: skip
    model, folder = transformers.GPT2LMHeadModel(config).eval(), tmp_path_factory.mktemp("gpt2")
    model.save_pretrained(folder)
    return model, folder


def texts_of(model: Any, **options: Any) -> list[list[int]]:
    """Each prompt alone: transformers takes the padding for repeated tokens."""
    torch = pytest.importorskip("torch")
    return [
        model.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.int64), max_new_tokens=NEW,
            do_sample=False, eos_token_id=None, pad_token_id=0, **options,
        )[0].tolist()
        for prompt in PROMPTS
    ]  # fmt: skip


MODES: list[Any] = [
    pytest.param(NumPy(), False, PAIRS, id="numpy"),
    pytest.param(Torch(), False, PAIRS, id="torch"),
    pytest.param(Jax(), True, PAIRS[:2], id="jax"),  # its compiler takes its time
    pytest.param(Jax(), True, PAIRS, id="jax-all", marks=pytest.mark.full),
    pytest.param(Torch(), True, [("repetition", "bigrams"), ("bias",)], id="torch-compiled", marks=pytest.mark.full),
]


@pytest.mark.parametrize(("backend", "compile", "cases"), MODES)
def test_texts_of_transformers(
    backend: Backend, compile: bool, cases: list[tuple[str, ...]], theirs: tuple[Any, Path]
) -> None:
    model: Any = huggingface.load(theirs[1], device=backend)
    plain = texts_of(theirs[0])
    for names in cases:
        ours: dict[str, Any] = {}
        options: dict[str, Any] = {}
        for name in names:
            ours, options = ours | CASES[name][0], options | CASES[name][1]
        expected = texts_of(theirs[0], **options)
        found = [t.tolist() for t in model.generate(PROMPTS, NEW, temperature=0.0, compile=compile, **ours)]
        assert found == expected != plain, names


@pytest.mark.parametrize("backend", [NumPy(), Jax()], ids=repr)
def test_presence_and_frequency(backend: Backend) -> None:
    """They count the tokens that were drawn, not those of the prompt; a function comes after them."""
    model: Any = GptConfig(vocabulary=7, context=32, n_layers=1, d_model=8, n_heads=2).init(backend).init(seed=1)
    seen: list[tuple[int, ...]] = []

    def first_three(tokens: Any, logits: Any) -> Any:
        seen.append(tokens.shape)
        return px.where(px.arange(7, device=logits.device) < 3, logits, logits - 50.0)

    how: dict[str, Any] = {"presence_penalty": 0.3, "frequency_penalty": 0.2, "processors": [first_three]}
    for text, prompt in zip(model.generate(PROMPTS_OF_SEVEN, 9, temperature=0.0, **how), PROMPTS_OF_SEVEN, strict=True):
        tokens = list(prompt)
        for _ in range(9):
            logits = model.valid()(px.tensor([tokens], device=backend)).numpy()[0, -1].astype(np.float64)
            counts = np.bincount(tokens[len(prompt) :], minlength=7)
            tokens.append(int((logits - 0.3 * (counts > 0) - 0.2 * counts)[:3].argmax()))
        assert text.tolist() == tokens
        assert len({*tokens[len(prompt) :]}) == 3
    assert len(set(seen)) == (1 if isinstance(backend, Jax) else 9)


PROMPTS_OF_SEVEN = [[3, 1, 4, 1, 5, 3], [2, 6]]


def test_one_program_for_all_values_of_options() -> None:
    model: Any = GptConfig(vocabulary=7, context=32, n_layers=1, d_model=8, n_heads=2).init("jax").init(seed=1)
    before = decoding._compiled_decode.traces
    for value, tokens in ((0.3, [1]), (0.7, [2, 3])):
        model.generate(
            [[1, 2, 1], [3]], 5, temperature=value, min_p=value / 9, typical_p=value, presence_penalty=value,
            frequency_penalty=-value, repetition_penalty=1 + value, logit_bias={4: value}, banned=tokens,
            no_repeat_ngram=len(tokens), seeds=[len(tokens), 3],
        )  # fmt: skip
    assert decoding._compiled_decode.traces == before + 1

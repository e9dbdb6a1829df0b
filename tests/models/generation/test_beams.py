"""Beam search against that of transformers, token by token."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox.backend import Backend, Jax, NumPy, Torch
from phlox.errors import KindError, RangeError, ShapeError
from phlox.interop import huggingface
from tests.models.generation.tiny import PROMPTS, Letters, tiny_gpt2

CASES: list[dict[str, Any]] = [
    {"beams": beams, "early_stopping": early, "length_penalty": penalty, "stop": stop}
    for (beams, stop), early, penalty in itertools.product(
        [(2, [6, 11]), (4, [5]), (3, None)], [False, True, "never"], [1.0, 0.0, -1.5, 2.0]
    )
]
PROCESSED: list[dict[str, Any]] = [
    {"beams": 3, "stop": [6], "repetition_penalty": 1.6},
    {"beams": 4, "stop": [6, 5], "no_repeat_ngram": 2, "min_new_tokens": 4, "length_penalty": 0.5},
]
MODES: list[Any] = [
    pytest.param(NumPy(), False, CASES + PROCESSED, id="numpy"),
    pytest.param(Torch(), False, CASES[:4] + PROCESSED, id="torch"),
    pytest.param(Jax(), True, CASES[13:15] + PROCESSED[:1], id="jax"),
    pytest.param(Jax(), True, CASES + PROCESSED, id="jax-all", marks=pytest.mark.full),
    pytest.param(Torch(), True, CASES[13:15] + PROCESSED[:1], id="torch-compiled", marks=pytest.mark.full),
]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp("gpt2")
    return tiny_gpt2(folder, n_layer=2), folder


def texts_of(model: Any, prompts: list[list[int]], case: dict[str, Any], n_best: int) -> list[tuple[list[int], float]]:
    """The new tokens without a stop token, and the scores."""
    torch = pytest.importorskip("torch")
    names = {"beams": "num_beams", "stop": "eos_token_id", "no_repeat_ngram": "no_repeat_ngram_size"}
    options = {names.get(name, name): value for name, value in case.items()}
    longest = max(map(len, prompts))
    padded = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    found = model.generate(
        padded, attention_mask=mask, max_new_tokens=12, do_sample=False, pad_token_id=12, num_return_sequences=n_best,
        return_dict_in_generate=True, output_scores=True, **{"eos_token_id": None} | options,
    )  # fmt: skip
    texts: list[tuple[list[int], float]] = []
    for row, score in zip(found.sequences[:, longest:].tolist(), found.sequences_scores.tolist(), strict=True):
        ends = [place for place, token in enumerate(row) if token in (case["stop"] or ())]
        texts.append((row[: ends[0]] if ends else row, score))
    return texts


@pytest.mark.parametrize(("backend", "compile", "cases"), MODES)
def test_texts_of_transformers(
    backend: Backend, compile: bool, cases: list[dict[str, Any]], reference: tuple[Any, Path]
) -> None:
    model: Any = huggingface.load(reference[1], device=backend)
    lengths: set[int] = set()
    for case in cases:
        # transformers takes the padding for repeated tokens
        batches = [[prompt] for prompt in PROMPTS] if {*case} & {"repetition_penalty", "no_repeat_ngram"} else [PROMPTS]
        for prompts in batches:
            expected = texts_of(reference[0], prompts, case, 2)
            found = model.generate(prompts, 12, n_best=2, details=True, compile=compile, **case)
            assert [text.tokens for text in found] == [tokens for tokens, _ in expected], case
            np.testing.assert_allclose([text.score for text in found], [score for _, score in expected], rtol=2e-4)
            lengths |= {len(text.tokens) for text in found}
    assert len(lengths) > 2


def test_scores_at_half_precision(reference: tuple[Any, Path]) -> None:
    """They are sums in f32."""
    models: list[Any] = [huggingface.load(reference[1], device=Torch(float=element)) for element in ("f32", "f16")]
    exact, rounded = (model.generate(PROMPTS[:1], 12, beams=2, details=True)[0] for model in models)
    np.testing.assert_allclose(rounded.score, exact.score, rtol=2e-2)


def test_forms_of_results(reference: tuple[Any, Path]) -> None:
    model: Any = huggingface.load(reference[1], device="numpy")
    options: dict[str, Any] = {"beams": 4, "stop": [5, 6], "temperature": 0}
    details = model.generate(PROMPTS, 12, n_best=3, details=True, tokenizer=Letters(), **options)
    assert len(details) == 9 and "stop" in {text.reason for text in details}
    assert all(text.text == Letters().decode(text.tokens) for text in details)
    rows = model.generate(PROMPTS, 12, n_best=3, **options)
    for number, (row, text) in enumerate(zip(rows, details, strict=True)):
        assert row.tolist() == PROMPTS[number // 3] + text.tokens
    one = px.tensor(PROMPTS[0], device="numpy")
    assert model.generate(one, 12, **options).tolist() == rows[0].tolist()
    padded = model.generate(one, 12, n_best=3, **options)
    assert padded.shape == (3, max(len(row) for row in rows[:3]))
    for row, text in zip(padded.tolist(), rows[:3], strict=True):
        assert row[: text.shape[0]] == text.tolist() and {*row[text.shape[0] :]} <= {5, 6}
    assert model.generate(one[None], 0, beams=2).tolist() == [PROMPTS[0]]


WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "none": ({"beams": 0}, RangeError, "beams must be at least one"),
    "n_best": ({"beams": 2, "n_best": 3}, RangeError, "n_best must be at most the number of beams, 2, got 3"),
    "without": ({"n_best": 2}, RangeError, "n_best is for beam search; give beams"),
    "drawn": ({"beams": 2, "top_k": 3}, RangeError, "beams cannot be combined with top_k"),
    "warm": ({"beams": 2, "temperature": 0.5}, RangeError, "beams cannot be combined with temperature"),
    "strings": ({"beams": 2, "stop_text": "a"}, RangeError, "beams cannot be combined with stop_text"),
    "early": ({"beams": 2, "early_stopping": "yes"}, KindError, "early_stopping must be True, False or 'never'"),
    "penalty": ({"beams": 2, "length_penalty": float("inf")}, RangeError, "length_penalty must be finite"),
    "context": ({"beams": 2, "max_new_tokens": 9}, ShapeError, "must fit the context of 8, got a prompt of 1 and 9"),
}


@pytest.mark.parametrize("case", WRONG)
def test_bad_options(case: str) -> None:
    options, error, message = WRONG[case]
    model: Any = px.models.GptConfig(vocabulary=13, context=8, n_layers=1, d_model=4, n_heads=2).init("numpy")
    with pytest.raises(error, match=f"generate: .*{message}") as caught:
        model.generate([[1]], **{"max_new_tokens": 2} | options)
    assert "\n" not in str(caught.value)
    with pytest.raises(KindError, match="stream: beams are not streamed"):
        model.stream([[1]], 2, beams=2)

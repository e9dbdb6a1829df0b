"""Speculative decoding: greedy texts as without it, and drawn texts of the same distribution."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from scipy import stats

import phlox as px
from phlox.backend import Backend, Jax, NumPy, Torch
from phlox.errors import KindError, RangeError, ShapeError
from phlox.models import DecoderConfig, PrefixCache
from phlox.models.generation import speculation

BACKENDS: list[Any] = [
    pytest.param(NumPy(), False, id="numpy"),
    pytest.param(Torch(), False, id="torch"),
    pytest.param(Jax(), True, id="jax"),
    pytest.param(Torch(), True, id="torch-compiled", marks=pytest.mark.full),
]
PROMPTS = [[5], [3, 1, 4, 1, 5, 9, 2, 6], [1, 2, 3, 1, 2, 3, 1]]


def model_of(backend: Backend, seed: int = 3, **config: Any) -> Any:
    options: dict[str, Any] = {
        "vocabulary": 13, "context": 40, "n_layers": 2, "d_model": 32, "n_heads": 4, "init_std": 0.3
    }  # fmt: skip
    return DecoderConfig(**options | config).init(backend).init(seed=seed)


@pytest.mark.parametrize(("backend", "compile"), BACKENDS)
def test_greedy_texts_are_the_same(backend: Backend, compile: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(backend, window=6, positions="learned", n_layers=1 if compile else 2)
    near = model.map(
        lambda path, param: param.holding(param.val() + 0.01 * px.random.normal(param.shape, device=backend))
    )
    drafts = [model, near, "text"] if compile else [model, near, model_of(backend, seed=9, n_layers=1), "text"]
    calls: list[int] = []
    name = "_compiled_verify" if compile else "_verify"
    verify = getattr(speculation, name)
    monkeypatch.setattr(speculation, name, lambda *args: calls.append(args[1].shape[1]) or verify(*args))
    options: dict[str, Any] = {"temperature": 0.0, "compile": compile}
    for prompt in PROMPTS if not compile else PROMPTS[1:2]:
        expected = model.generate([prompt], 20, **options)[0].tolist()
        for draft in drafts:
            calls.clear()
            assert model.generate([prompt], 20, draft=draft, **options)[0].tolist() == expected
            assert len(calls) == 4 if draft is model else len(calls) <= 20
            assert not compile or {*calls} <= {1, 5}
    if compile:
        return
    prompt = px.tensor(PROMPTS[1], device=backend)
    plain: dict[str, Any] = {"repetition_penalty": 1.3, "no_repeat_ngram": 3, "stop": 7, "min_new_tokens": 5}
    plain |= {"logprobs": 3, "details": True, "logit_bias": {2: 0.5}}
    expected = model.generate(prompt, 20, **plain, **options)[0]
    found = model.generate(prompt, 20, draft=near, draft_tokens=3, **plain, **options)[0]
    assert found.tokens == expected.tokens and found.reason == expected.reason
    np.testing.assert_allclose(found.logprobs, expected.logprobs, atol=1e-5)
    assert [[t for t, _ in row] for row in found.alternatives] == [[t for t, _ in row] for row in expected.alternatives]
    known = PrefixCache(model, block=2)
    for _ in range(2):
        text = model.generate(prompt, 12, draft="text", cache="int8", prefix_cache=known, temperature=0.0)
        assert text.tolist() == model.generate(prompt, 12, cache="int8", temperature=0.0).tolist()
    assert known.reused_tokens == 6


CUT = {"temperature": 1.5, "top_k": 3}


@pytest.mark.parametrize(
    ("drafted", "options"),
    [
        pytest.param("model", CUT, id="model", marks=pytest.mark.full),
        pytest.param("text", CUT, id="text", marks=pytest.mark.full),
        pytest.param("model", {}, id="model-all", marks=pytest.mark.full),
        pytest.param("text", {}, id="text-all", marks=pytest.mark.full),
    ],
)
def test_the_distribution_of_texts(drafted: str, options: dict[str, Any]) -> None:
    """The frequencies of texts of two tokens, against their probabilities: a chi-square test."""
    model = model_of(NumPy(), vocabulary=4, d_model=8, n_heads=1, n_layers=1, init_std=0.25)
    draft = "text" if drafted == "text" else model_of(NumPy(), 8, vocabulary=4, d_model=8, n_heads=1, n_layers=1)
    prompt = [1, 2, 1, 3, 1]

    def distribution(text: list[int]) -> Any:
        logits = np.float64(model.valid()(px.tensor([text], device="numpy")).numpy()[0, -1])
        logits /= options.get("temperature", 1.0)
        logits[np.argsort(-logits)[options.get("top_k", 4) :]] = -np.inf
        weights = np.exp(logits - logits.max())
        return weights / weights.sum()

    pairs = list(itertools.product(range(4), repeat=2))
    expected = {pair: distribution(prompt)[pair[0]] * distribution([*prompt, pair[0]])[pair[1]] for pair in pairs}
    counts = dict.fromkeys(pairs, 0)
    with px.random.stream(5):
        for _ in range(300):
            text = [*model.stream(px.tensor(prompt, device="numpy"), 2, draft=draft, draft_tokens=2, **options)]
            counts[text[0], text[1]] += 1
    possible = [pair for pair in pairs if expected[pair] > 0]
    assert sum(counts[pair] for pair in possible) == 300
    found, wanted = ([x[pair] for pair in possible] for x in (counts, {p: 300 * e for p, e in expected.items()}))
    assert stats.chisquare(found, wanted).pvalue > 0.01


def test_proposals_are_kept_as_often_as_possible() -> None:
    """A token is kept with probability sum(min(p, q)), and the result has the distribution p."""
    p, q = np.array([0.1, 0.6, 0.3, 0.0]), np.array([0.4, 0.2, 0.1, 0.3])
    kept, counts = 0, np.zeros(4)
    with px.random.stream(3):
        for _ in range(4000):
            proposal = speculation._draw(q)
            token = speculation._accept_or_replace(p, proposal, [q])
            counts[token] += 1
            kept += token == proposal
    assert counts[3] == 0 and stats.chisquare(counts[:3], 4000 * p[:3]).pvalue > 0.01
    assert abs(kept / 4000 - np.minimum(p, q).sum()) < 0.03


def test_seeds() -> None:
    model = model_of(NumPy())
    texts = [model.generate([[1, 2]], 9, draft=model_of(NumPy(), 4), seeds=[5])[0].tolist() for _ in range(2)]
    assert texts[0] == texts[1] and len(texts[0]) == 11
    assert model.generate([[1, 2]], 0, draft="text")[0].tolist() == [1, 2]


WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "several": ({"samples": 2, "draft": "text"}, ShapeError, "a draft is for one text at a time, got 2"),
    "word": ({"draft": "prompt"}, KindError, "draft must be a causal model, or 'text', got 'prompt'"),
    "module": ({"draft": px.nn.Linear(2, 2)}, KindError, "draft must be a causal model, or 'text'"),
    "count": ({"draft": "text", "draft_tokens": 0}, RangeError, "draft_tokens must be at least one"),
    "context": ({"draft": "text", "max_new_tokens": 41}, ShapeError, "with a draft, a text must fit the context of 40"),
    "beams": ({"draft": "text", "beams": 2}, RangeError, "beams cannot be combined with draft"),
}


@pytest.mark.parametrize("case", WRONG)
def test_bad_options(case: str) -> None:
    options, error, message = WRONG[case]
    with pytest.raises(error, match=message) as caught:
        model_of(NumPy()).generate([[1]], **{"max_new_tokens": 2} | options)
    assert "\n" not in str(caught.value)


def test_drafts_that_do_not_fit() -> None:
    model = model_of(NumPy())
    with pytest.raises(RangeError, match="the draft must have the vocabulary of the model, 13, got 9"):
        model.generate([[1]], 2, draft=model_of(NumPy(), vocabulary=9))
    with pytest.raises(ShapeError, match="with this draft, a text must fit the context of 4"):
        model.generate([[1]], 6, draft=model_of(NumPy(), context=4))

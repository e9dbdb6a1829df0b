"""Texts that end at strings, details of texts, several samples: against transformers, and against texts alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox.backend import Backend, Jax, NumPy, Torch
from phlox.errors import KindError, RangeError
from phlox.interop import huggingface
from phlox.models.generation import StopText
from tests.models.generation.tiny import PROMPTS, Letters, tiny_gpt2, tokenizer_of_transformers

PLAIN: list[Backend] = [NumPy(), Jax(), Torch()]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp("gpt2")
    return tiny_gpt2(folder), folder


def test_stop_text_of_transformers(reference: tuple[Any, Path]) -> None:
    """Texts end with the same token, and the text where the string begins; also streamed."""
    torch = pytest.importorskip("torch")
    theirs, letters = tokenizer_of_transformers(), Letters()
    model: Any = huggingface.load(reference[1], device="numpy")
    ends: set[int] = set()
    for seed in range(12):
        whole = model.generate(
            PROMPTS, 12, seeds=[seed, seed + 20, seed + 40], temperature=2.0, min_new_tokens=12, stop=0
        )
        texts = [letters.decode(row.tolist()[len(prompt) :]) for row, prompt in zip(whole, PROMPTS, strict=True)]
        strings = [texts[0][5:8], texts[1][7:9]]
        # transformers draws otherwise, so its criterion is asked for each length of our text
        criterion = pytest.importorskip("transformers").StopStringCriteria(theirs, strings)
        options: dict[str, Any] = {"stop_text": strings, "tokenizer": letters, "temperature": 2.0, "stop": 0}
        options |= {"seeds": [seed, seed + 20, seed + 40], "min_new_tokens": 12}
        found = model.generate(PROMPTS, 12, **options)
        details = model.generate(PROMPTS, 12, details=True, **options)
        steps = list(zip(*model.stream(PROMPTS, 12, details=True, **options), strict=True))
        for row, text, prompt, part, detail, streamed in zip(whole, texts, PROMPTS, found, details, steps, strict=True):
            new = row.tolist()[len(prompt) :]
            end = next((n for n in range(1, 13) if criterion(torch.tensor([new[:n]]), None).item()), 12)
            assert part.tolist() == prompt + new[:end] and detail.tokens == new[:end]
            begin = min([text.index(string) for string in strings if string in text], default=len(text))
            assert detail.text == text[:begin]
            assert detail.reason == ("length" if begin == len(text) else "stop")
            present = [step for step in streamed if step is not None]
            assert [step.token for step in present] == new[:end]
            assert "".join(step.text for step in present) == text[:begin]
            assert [step.reason for step in present] == [None] * (end - 1) + [detail.reason]
            ends.add(end)
    assert len(ends) > 4


@pytest.mark.parametrize("backend", PLAIN, ids=repr)
def test_details_and_samples(backend: Backend, reference: tuple[Any, Path]) -> None:
    """Samples are the texts of a batch with repeated prompts; alternatives are the likeliest tokens of the model."""
    model: Any = huggingface.load(reference[1], device=backend)
    compile = isinstance(backend, Jax)
    options: dict[str, Any] = {"seeds": [1, 2, 3, 4], "compile": compile, "top_k": 5, "stop": 0, "min_new_tokens": 3}
    twice = [prompt for prompt in PROMPTS[:2] for _ in range(2)]
    expected = [row.tolist() for row in model.generate(twice, 9, **options)]
    assert [row.tolist() for row in model.generate(PROMPTS[:2], 9, samples=2, **options)] == expected
    assert min(len(row) - len(prompt) for row, prompt in zip(expected, twice, strict=True)) >= 3
    found = model.generate(PROMPTS[:2], 9, samples=2, details=True, logprobs=4, tokenizer=Letters(), **options)
    for detail, prompt, row in zip(found, twice, expected, strict=True):
        assert prompt + detail.tokens == row
        assert detail.text == Letters().decode(detail.tokens)
        every = model(px.tensor([row], device=backend)).log_softmax(-1).numpy()[0, len(prompt) - 1 :]
        assert len(detail.logprobs) == len(detail.alternatives) == len(detail.tokens)
        for place, (token, value) in enumerate(zip(detail.tokens, detail.logprobs, strict=True)):
            np.testing.assert_allclose(value, every[place][token], rtol=1e-4)
            best = np.argsort(-every[place])[:4]
            assert [other for other, _ in detail.alternatives[place]] == best.tolist()
            np.testing.assert_allclose([v for _, v in detail.alternatives[place]], every[place][best], rtol=1e-4)
    one = model.generate(px.tensor(PROMPTS[1], device=backend), 4, samples=3, seeds=[7, 8, 9])
    assert one.shape == (3, 6)
    steps = [*model.stream(px.tensor(PROMPTS[1], device=backend), 4, details=True, logprobs=True, seeds=[7])]
    assert [step.token for step in steps] == one[0, 2:].tolist() and steps[0].text is None
    assert [step.reason for step in steps] == [None, None, None, "length"] and steps[0].logprob < 0


def test_min_new_tokens_of_transformers(reference: tuple[Any, Path]) -> None:
    torch = pytest.importorskip("torch")
    model: Any = huggingface.load(reference[1], device="numpy")
    shorter = 0
    for prompt in ([token] for token in range(13)):
        expected = reference[0].generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, 1), max_new_tokens=10, min_new_tokens=4,
            do_sample=False, eos_token_id=[7, 2], pad_token_id=0,
        )[0].tolist()  # fmt: skip
        found = model.generate(px.tensor(prompt), 10, temperature=0.0, min_new_tokens=4, stop=[7, 2]).tolist()
        assert found == (expected[:-1] if expected[-1] in (7, 2) else expected)
        shorter += len(expected) < 11
    assert shorter


def test_text_that_a_decoder_holds_back() -> None:
    class Pairs:
        """Text becomes certain two characters at a time."""

        def __init__(self) -> None:
            self.held = ""

        def add(self, token: int) -> str:
            text = self.held + chr(token)
            self.held = text if len(text) < 2 else ""
            return text if len(text) == 2 else ""

        def end(self) -> str:
            return self.held

    text = StopText(Pairs(), ["xyz"])
    assert [text.add(ord(letter)) for letter in "abcxyxyzq"] == ["", "ab", "", "c", "", "xy", "", "", ""]
    assert text.is_complete and text.end() == ""
    text = StopText(Pairs(), ["xyz"])
    assert [text.add(ord(letter)) for letter in "axxyq"] == ["", "a", "", "x", ""] and text.end() == "xyq"


WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no tokenizer": ({"stop_text": "a"}, KindError, "stop_text needs tokenizer="),
    "tokenizer": ({"tokenizer": 3}, KindError, r"tokenizer must have decoder\(\).* got 3"),
    "empty": ({"stop_text": ["a", ""], "tokenizer": Letters()}, RangeError, "a string of stop_text is empty"),
    "number": ({"stop_text": [3], "tokenizer": Letters()}, KindError, "stop_text must be a string, .* got 3"),
    "not a list": ({"stop_text": 3, "tokenizer": Letters()}, KindError, "stop_text must be a string, .* got 3"),
    "least": ({"min_new_tokens": -1}, RangeError, "min_new_tokens must be at least zero"),
    "samples": ({"samples": 0}, RangeError, "samples must be at least one"),
    "alternatives": ({"logprobs": 3}, KindError, "logprobs=3, .* needs details=True"),
    "all": ({"logprobs": 14, "details": True}, RangeError, "at most the vocabulary of 13, got 14"),
    "unknown": ({"temprature": 1.0}, TypeError, "generate: there is no option 'temprature'; the options are temp"),
}


@pytest.mark.parametrize("case", WRONG)
def test_bad_options(case: str) -> None:
    options, error, message = WRONG[case]
    model = px.models.GptConfig(vocabulary=13, context=8, n_layers=1, d_model=4, n_heads=2).init("numpy")
    with pytest.raises(error, match=message) as caught:
        model.generate([[1]], 2, **options)
    assert "\n" not in str(caught.value)
    with pytest.raises(error, match=message.replace("generate:", "stream:")):
        model.stream([[1]], 2, **options)

"""A model with its tokenizer: only the new text comes back, in pieces too, and chats fit the context."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn
from phlox.errors import ConfigError, DataError, KindError, ModuleError
from phlox.models import GptConfig, LanguageModel
from phlox.text import BytePairTokenizer

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
)
CONFIG = GptConfig(vocabulary=258, context=48, n_layers=1, d_model=16, n_heads=2, init_std=0.5)


def made(stop: int | None = None) -> LanguageModel:
    """A model, with a token that ends a text."""
    with px.random.stream(0):
        model = CONFIG.init("numpy").init(seed=3)
    tokenizer = BytePairTokenizer(special=["<s>", "</s>"], end="</s>", chat_template=TEMPLATE)
    return LanguageModel(model, tokenizer, stops=None if stop is None else frozenset([stop]))


def test_only_the_new_text_comes_back() -> None:
    model = made()
    prompt = "Once upon"
    tokens = model.model.generate([list(prompt.encode())], 9, temperature=0.0, stop=257)[0].tolist()[len(prompt) :]
    expected = model.tokenizer.decode(tokens)  # pyright: ignore[reportOptionalMemberAccess]
    assert model.generate(prompt, 9, temperature=0.0) == expected
    assert "".join(model.stream(prompt, 9, temperature=0.0)) == expected
    assert model.generate([prompt, "a"], 9, temperature=0.0)[0] == expected
    completion = model.generate(prompt, 9, temperature=0.0, logprobs=True, details=True)
    assert completion.text == expected and completion.tokens == tokens and len(completion.logprobs) == len(tokens)
    steps = list(model.stream(prompt, 9, temperature=0.0, details=True))
    assert "".join(step.text or "" for step in steps) == expected and [step.token for step in steps] == tokens
    assert len(model.generate(prompt, 2, samples=3)) == 3 and len(model.generate([prompt, "a"], 2, samples=3)) == 6
    rows = model.generate(px.tensor([[1, 2, 3]], device="numpy"), 2, stop=None)
    assert rows.shape == (1, 5) and list(model.generate([[1, 2]], 2, stop=None)[0].shape) == [4]
    assert len(list(model.stream(px.tensor([1, 2, 3], device="numpy"), 2))) <= 2
    np.testing.assert_array_equal(model(rows).numpy(), model.model(rows).numpy())
    assert repr(model).startswith("LanguageModel(Gpt, ") and model.config is model.model.config


def test_a_text_ends_at_its_stops() -> None:
    free = made()
    tokens: list[int] = free.model.generate([[65]], 12, temperature=0.0)[0].tolist()[1:]
    stop = tokens[4]
    before = tokens[: tokens.index(stop)]
    model = made(stop)
    assert model.generate("A", 12, temperature=0.0) == free.tokenizer.decode(before)  # pyright: ignore[reportOptionalMemberAccess]
    assert model.generate("A", 12, temperature=0.0, stop=None) == free.tokenizer.decode(tokens)  # pyright: ignore[reportOptionalMemberAccess]
    first = tokens[1]
    end = tokens.index(first)
    assert model.generate([[65]], 12, temperature=0.0, stop=first)[0].tolist() == [65, *tokens[:end]]
    assert LanguageModel(free.model, free.tokenizer, options={"temperature": 0.0}).generate("A", 3, stop=None) == (
        free.tokenizer.decode(tokens[:3])  # pyright: ignore[reportOptionalMemberAccess]
    )


def test_strings_end_a_text() -> None:
    model = made()
    free = model.generate("Once upon", 20, temperature=0.0, stop=None)
    end = free[3:5]
    for stop in (end, [end, 257], ["never", end]):
        assert model.generate("Once upon", 20, temperature=0.0, stop=stop) == free[: free.index(end)]
        assert "".join(model.stream("Once upon", 20, temperature=0.0, stop=stop)) == free[: free.index(end)]


def test_chats() -> None:
    model = made()
    messages = [{"role": "user", "content": "Hi"}]
    reply = model.chat("Hi", 8, temperature=0.0)
    assert reply == model.chat(messages, 8, temperature=0.0) == model.generate("<user>Hi<a>", 8, temperature=0.0)
    longer = model.chat(messages, temperature=0.0, stop=None)  # as long as the context has room
    assert longer.startswith(reply) or "\ufffd" in reply
    assert "".join(model.stream_chat(messages, 8, temperature=0.0, variables={"x": 1})) == reply
    assert model.chat(messages, 8, temperature=0.0, template="{{ tools }}", tools=[{}]) != reply
    several: Any = model.chat(messages, 8, temperature=0.0, samples=2, details=True)
    assert [completion.text for completion in several] == [reply, reply]
    with pytest.raises(DataError, match="leaves no room for a reply in the context of 48"):
        model.chat("x" * 48)


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (lambda m: m.generate(""), DataError, "the prompt is empty"),
        (lambda m: m.stream(["a", "b"]), DataError, "give one text, not a list"),
        (lambda m: m.stream("a", samples=2), DataError, "a stream is of one text, got samples=2; use generate"),
        (lambda m: LanguageModel(m.model).generate("a"), DataError, "there is no tokenizer, so give tokens"),
        (lambda m: LanguageModel(m.model).chat("a"), DataError, "there is no tokenizer, so give tokens"),
        (lambda m: LanguageModel(m.model, BytePairTokenizer()).chat("a"), ConfigError, "has no chat template"),
        (lambda m: LanguageModel(nn.Linear(2, 2), m.tokenizer).generate("a"), ModuleError, "Linear does not generate"),
        (lambda m: m.generate("a", temperature="hot"), KindError, "temperature must be a number"),
    ],
)
def test_errors(call: Any, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        call(made())

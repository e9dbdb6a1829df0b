"""Texts that follow a grammar, from models with random weights: every text must match."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

import phlox as px
from phlox.backend import Backend, Jax, NumPy, Torch
from phlox.errors import DataError, KindError, RangeError, ShapeError
from phlox.models import DecoderConfig, Grammar

pytest.importorskip("llguidance")

BACKENDS: list[Any] = [
    pytest.param(NumPy(), False, id="numpy"),
    pytest.param(Torch(), False, id="torch"),
    pytest.param(Jax(), True, id="jax"),
    pytest.param(Torch(), True, id="torch-compiled", marks=pytest.mark.full),
]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


class Characters:
    """Tokens of one ASCII character, and some of several; the last token ends a text."""

    words = (*map(chr, range(32, 127)), '": "', '", "', "name", "ame", '{"', "12", "<end>")
    size, special, stops = len(words), frozenset({len(words) - 1}), frozenset({len(words) - 1})

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        return [self.words.index(letter) for letter in text]

    def decode(self, tokens: Any) -> str:
        return "".join(self.words[token] for token in tokens)

    def token_bytes(self) -> list[bytes]:
        return [*[word.encode() for word in self.words[:-1]], b""]

    def decoder(self) -> Any:
        return self

    def add(self, token: int) -> str:
        return self.words[token]

    def end(self) -> str:
        return ""


TOKENS = Characters()


def model_of(backend: Backend, context: int = 160) -> Any:
    config = DecoderConfig(vocabulary=TOKENS.size + 3, context=context, n_layers=1, d_model=16, n_heads=2, init_std=0.3)
    return config.init(backend).init(seed=1)


def fits(text: str) -> bool:
    """Does it fit the schema?"""
    value = json.loads(text)
    return (
        list(value) == ["name", "age", "tags"]
        and len(value["name"]) <= 5
        and type(value["age"]) is int
        and 0 <= value["age"] <= 120
        and len(value["tags"]) <= 2
        and {*value["tags"]} <= {"a", "b"}
    )


@pytest.mark.parametrize(("backend", "compile"), BACKENDS)
def test_texts_match(backend: Backend, compile: bool) -> None:
    """A grammar for each row, and a row without; also streamed, and with a draft."""
    model = model_of(backend)
    date, sums = r"\d{4}-\d\d", 'start: number ("+" number)*\nnumber: /[1-9][0-9]?/'
    grammars = [Grammar.json(SCHEMA), Grammar.json(SCHEMA), Grammar.regex(date), Grammar.lark(sums), None]
    options: dict[str, Any] = {"tokenizer": TOKENS, "compile": compile, "details": True}
    with px.random.stream(0):
        found = model.generate([[1], [2], [1, 2], [3], [4]], 70, grammar=grammars, **options)
    assert fits(found[0].text) and fits(found[1].text) and found[0].text != found[1].text
    assert re.fullmatch(date, found[2].text) and re.fullmatch(r"[1-9]\d?(\+[1-9]\d?)*", found[3].text)
    assert [text.reason for text in found[:4]] == ["stop"] * 4
    assert not TOKENS.stops & {token for text in found[:4] for token in text.tokens}
    if compile:
        return
    for extra in ({"temperature": 0.0}, {"temperature": 2.0}, {"draft": "text"}, {"cache": "int8", "top_k": 2}):
        with px.random.stream(1):
            steps = [*model.stream([[5]], 70, grammar=Grammar.json(json.dumps(SCHEMA)), **options, **extra)]
        assert fits("".join(step.text for (step,) in steps)) and steps[-1][0].reason == "stop"


def test_each_sample_has_its_own_state() -> None:
    model = model_of(NumPy())
    with px.random.stream(0):
        found = model.generate([[1]], 9, samples=6, grammar=Grammar.regex("(ab|cd|e){2,4}"), tokenizer=TOKENS)
    texts = {TOKENS.decode(row.tolist()[1:]) for row in found}
    assert len(texts) > 3 and all(re.fullmatch("(ab|cd|e){2,4}", text) for text in texts)


class WithoutStops(Characters):
    """Nothing ends a text but its grammar."""

    stops: Any = frozenset()


def test_ends() -> None:
    """A text ends when nothing can follow, also without stop tokens; a stop token that is text is none here."""
    model = model_of(NumPy())
    (text,) = model.generate([[1]], 20, grammar=Grammar.regex("a{3}"), tokenizer=WithoutStops(), details=True)
    assert text.text == "aaa" and text.reason == "stop"
    (text,) = model.generate([[1]], 5, grammar=Grammar.regex("a+"), tokenizer=WithoutStops(), details=True)
    assert text.text == "aaaaa" and text.reason == "length"
    letter = TOKENS.encode("b")[0]
    (text,) = model.generate(
        [[1]], 90, grammar=Grammar.regex("a*"), tokenizer=WithoutStops(), stop=letter, details=True
    )
    assert text.text == "a" * len(text.tokens) and text.reason == "stop"


WRONG: dict[str, tuple[Any, dict[str, Any], type[Exception], str]] = {
    "kind": ("{}", {}, KindError, "grammar must be a Grammar, or a list of them"),
    "number": ([Grammar.json()] * 2, {}, ShapeError, "one Grammar for each text, got 2 for 1"),
    "no tokenizer": (Grammar.json(), {"tokenizer": None}, KindError, r"needs a tokenizer with token_bytes\(\)"),
    "least": (Grammar.json(), {"min_new_tokens": 2}, RangeError, "cannot be combined with min_new_tokens"),
    "beams": (Grammar.json(), {"beams": 2}, RangeError, "beams cannot be combined with grammar"),
    "regex": (Grammar.regex("(a"), {}, RangeError, "Grammar.regex: this is not a valid or supported grammar: "),
    "schema": (Grammar.json({"type": "thing"}), {}, RangeError, "Grammar.json: this is not a valid or supported"),
    "lark": (Grammar.lark("start: other"), {}, RangeError, "Grammar.lark: this is not a valid or supported"),
    "banned": (
        Grammar.regex("!"),
        {"banned": [1], "temperature": 0.0},
        DataError,
        "does not allow token .* check banned",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_bad_grammars(case: str) -> None:
    grammar, options, error, message = WRONG[case]
    with pytest.raises(error, match=message) as caught:
        model_of(NumPy()).generate([[1]], 2, grammar=grammar, **{"tokenizer": TOKENS} | options)
    assert "\n" not in str(caught.value)


def test_bad_sources() -> None:
    with pytest.raises(KindError, match="Grammar.regex: give a text, got 3"):
        Grammar.regex(3)  # pyright: ignore[reportArgumentType]
    for schema in (3, "[1]", "{"):
        with pytest.raises(KindError, match="Grammar.json: schema must be a dict, or the text of a JSON object"):
            Grammar.json(schema)  # pyright: ignore[reportArgumentType]
    assert repr(Grammar.regex("a+")) == "Grammar.regex('a+')"

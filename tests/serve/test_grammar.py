"""Grammars: what they allow is JSON that fits the schema, whatever the model wants to write."""

from __future__ import annotations

import json
import random

import pytest

from phlox.errors import DataError, RangeError
from phlox.serve.grammar import GrammarCompiler
from phlox.text import BytePairTokenizer

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "sizes": {"type": "array", "items": {"enum": [1, 22]},
                                                                        "maxItems": 3}},
    "required": ["name", "sizes"],
    "additionalProperties": False,
}  # fmt: skip


@pytest.mark.parametrize("end", [None, "<end>"])
def test_random_texts_fit_the_schema(end: str | None) -> None:
    tokenizer = BytePairTokenizer.train("the cat and the hat", 262, special=["<end>"], end=end)
    grammar = GrammarCompiler(tokenizer, 270).json(SCHEMA, before="<", after=">")
    for seed in range(5):
        rng, state, tokens = random.Random(seed), grammar.copy(), []
        while True:
            allowed = state.mask().nonzero()[0].tolist()
            assert max(allowed) < tokenizer.size
            token = rng.choice(allowed)
            if token in tokenizer.stops:
                break
            tokens.append(token)
            if state.accept(token):
                break
        text = tokenizer.decode(tokens)
        value = json.loads(text[1:-1])
        assert text[0] + text[-1] == "<>" and set(value) == {"name", "sizes"} and set(value["sizes"]) <= {1, 22}


def test_what_cannot_be_done() -> None:
    compiler = GrammarCompiler(BytePairTokenizer(), 256)
    with pytest.raises(RangeError, match="the JSON schema is not supported"):
        compiler.json({"type": "nonsense"})
    with pytest.raises(DataError, match="does not allow token 65"):
        compiler.json(SCHEMA).accept(65)

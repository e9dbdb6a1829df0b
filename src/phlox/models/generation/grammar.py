"""Texts that follow a grammar: before each token, the tokens that would break it are excluded."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, cast
from weakref import WeakKeyDictionary

import numpy as np

from phlox.errors import DataError, ExtraNotInstalledError, KindError, RangeError


class Grammar:
    """What a text must look like: JSON that fits a schema, a regular expression, or a grammar in Lark's notation.

    Make one with `Grammar.json`, `Grammar.regex` or `Grammar.lark`, and give it to `generate(grammar=...)` with a
    tokenizer. It needs the package `llguidance`, which the extra 'grammar' installs.
    """

    def __init__(self, kind: str, source: str) -> None:
        self._kind, self._source = kind, source
        self._matchers: WeakKeyDictionary[Any, dict[tuple[int, frozenset[int]], Any]] = WeakKeyDictionary()

    @classmethod
    def json(cls, schema: Mapping[str, Any] | str | None = None) -> Grammar:
        """JSON that fits a schema, a dict or its text; by default any JSON. Spaces are those of `json.dumps`."""
        try:
            parsed: Any = json.loads(schema) if isinstance(schema, str) else dict(schema or {})
        except (ValueError, TypeError):
            parsed = None
        if not isinstance(parsed, dict):
            raise KindError(f"Grammar.json: schema must be a dict, or the text of a JSON object, got {schema!r}")
        return cls("json", fixed_spaces(cast("dict[str, Any]", parsed)))

    @classmethod
    def regex(cls, pattern: str) -> Grammar:
        """Texts that a regular expression matches as a whole; it has the syntax of Rust's `regex`."""
        return cls("regex", _text("regex", pattern))

    @classmethod
    def lark(cls, grammar: str) -> Grammar:
        """Texts of a context-free grammar, whose first rule is `start`, see the documentation of `llguidance`."""
        return cls("lark", _text("lark", grammar))

    def __repr__(self) -> str:
        return f"Grammar.{self._kind}({self._source!r})"

    def matcher(self, tokenizer: Any, vocabulary: int, stops: frozenset[int]) -> GrammarMatcher:
        """The state of a text with no tokens yet; stop tokens may follow where the text may end.

        Raises `RangeError` if the grammar is not valid.
        """
        compiled = self._matchers.setdefault(tokenizer, {})
        key = vocabulary, stops
        if key not in compiled:
            library: Any = _library().LLMatcher
            make: Callable[[str], str] = {
                "json": library.grammar_from_json_schema, "regex": library.grammar_from_regex,
                "lark": library.grammar_from_lark,
            }[self._kind]  # fmt: skip
            matcher = library(_tokens_of(tokenizer, vocabulary, stops), make(self._source), log_level=0)
            if matcher.is_error():
                reason = str(matcher.get_error()).strip().partition("\n")[0]
                raise RangeError(f"Grammar.{self._kind}: this is not a valid or supported grammar: {reason}")
            compiled[key] = matcher
        return GrammarMatcher(compiled[key].deep_copy(), vocabulary)


def fixed_spaces(schema: Mapping[Any, Any]) -> str:
    """The text of a JSON schema whose spaces are those of `json.dumps`: flexible ones could go on without end."""
    spaces = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    return json.dumps({**schema, "x-guidance": spaces})


class GrammarMatcher:
    """The state of one text that follows a `Grammar`."""

    def __init__(self, matcher: Any, vocabulary: int) -> None:
        self._matcher, self._vocabulary = matcher, vocabulary

    @property
    def is_complete(self) -> bool:
        """Can nothing follow?"""
        return bool(self._matcher.is_stopped())

    def allowed(self) -> np.ndarray[Any, Any]:
        """Bool [vocabulary]: the tokens that may follow."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        return np.unpackbits(bits, bitorder="little")[: self._vocabulary].astype(np.bool_)

    def add(self, token: int) -> None:
        """The next token. Raises `DataError` if it may not follow."""
        if not self._matcher.consume_token(token):
            raise DataError(
                f"the grammar does not allow token {token}: no token that it allows could be drawn; check banned, "
                "logit_bias and processors"
            )


class _Vocabulary:
    """The tokens as `llguidance` wants them. The last one is an end for tokenizers without stop tokens."""

    def __init__(self, tokenizer: Any, vocabulary: int, stops: frozenset[int]) -> None:
        texts: list[bytes] = list(tokenizer.token_bytes())[:vocabulary]
        texts += [b""] * (vocabulary + 1 - len(texts))
        special = frozenset(getattr(tokenizer, "special", ())) | stops
        texts = [b"" if number in special else text for number, text in enumerate(texts)]
        # What is not text is marked by a byte that no text has.
        self.tokens = [text or b"\xff[%d]" % number for number, text in enumerate(texts)]
        self.special_token_ids = [number for number, text in enumerate(texts) if not text]
        self.eos_token_id, self.bos_token_id = vocabulary, None
        self._encode = tokenizer.encode

    def __call__(self, text: str) -> list[int]:
        return list(self._encode(text, special=False))


_TOKENS: WeakKeyDictionary[Any, dict[tuple[int, frozenset[int]], Any]] = WeakKeyDictionary()
"""What `llguidance` made of tokenizers: that takes a moment for a large vocabulary."""


def _tokens_of(tokenizer: Any, vocabulary: int, stops: frozenset[int]) -> Any:
    made = _TOKENS.setdefault(tokenizer, {})
    key = vocabulary, stops
    if key not in made:
        library = _library()
        wrapper = library.TokenizerWrapper(_Vocabulary(tokenizer, vocabulary, stops))
        made[key] = library.LLTokenizer(wrapper, n_vocab=vocabulary + 1, eos_token=sorted(stops) or vocabulary)
    return made[key]


def _library() -> Any:
    try:
        import llguidance
    except ImportError as error:
        raise ExtraNotInstalledError(
            f"a Grammar needs llguidance: install Phlox with the extra 'grammar' ({error})"
        ) from None
    return llguidance


def _text(call: str, source: str) -> str:
    if not isinstance(source, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise KindError(f"Grammar.{call}: give a text, got {source!r}")
    return source

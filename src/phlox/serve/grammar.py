"""Answers that follow a JSON schema: before each token, those that would break it are ruled out."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from phlox.errors import DataError, ExtraNotInstalledError, RangeError
from phlox.text import Tokenizer


class GrammarCompiler:
    """Makes grammars for the tokens of a tokenizer, with the `llguidance` package."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: int) -> None:
        try:
            import llguidance
        except ImportError as error:
            raise ExtraNotInstalledError(
                f"answers in JSON need llguidance: install Phlox with the extra 'grammar' ({error})"
            ) from None
        self._library: Any = llguidance
        self._vocabulary = vocabulary
        self._tokens = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(_Vocabulary(tokenizer, vocabulary)),
            n_vocab=vocabulary + 1,
            eos_token=sorted(token for token in tokenizer.stops if token < vocabulary) or vocabulary,
        )

    def json(self, schema: dict[str, Any], *, before: str = "", after: str = "") -> JsonGrammar:
        """The grammar of JSON that fits a schema, between two fixed texts; `RangeError` for a wrong schema."""
        options = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
        schema = {**schema, "x-guidance": options}  # flexible spaces could go on without end
        fixed = [json.dumps(text) for text in (before, after)]
        lark = f"start: {fixed[0]} content {fixed[1]}\ncontent: %json {json.dumps(schema)}\n"
        matcher = self._library.LLMatcher(self._tokens, self._library.LLMatcher.grammar_from_lark(lark), log_level=0)
        if matcher.is_error():
            raise RangeError(f"the JSON schema is not supported: {matcher.get_error().strip().splitlines()[0]}")
        return JsonGrammar(matcher, self._vocabulary)


class JsonGrammar:
    """The state of one answer that follows a grammar, see `phlox.serve.request.Grammar`."""

    def __init__(self, matcher: Any, vocabulary: int) -> None:
        self._matcher, self._vocabulary = matcher, vocabulary

    def copy(self) -> JsonGrammar:
        """The same for another answer."""
        return JsonGrammar(self._matcher.deep_copy(), self._vocabulary)

    def mask(self) -> np.ndarray[Any, Any]:
        """See `Grammar.mask`."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        return np.unpackbits(bits, bitorder="little")[: self._vocabulary].astype(bool)

    def accept(self, token: int) -> bool:
        """See `Grammar.accept`."""
        if not self._matcher.consume_token(token):
            raise DataError(f"the grammar does not allow token {token}: {self._matcher.get_error()}")
        return self._matcher.is_stopped()


class _Vocabulary:
    """The tokens as `llguidance` wants them. The last one stands for an end that the tokenizer does not have."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: int) -> None:
        texts = tokenizer.token_bytes()[:vocabulary]
        texts += [b""] * (vocabulary + 1 - len(texts))
        # What is not text is marked by a byte that no text has.
        self.tokens = [text or b"\xff[%d]" % number for number, text in enumerate(texts)]
        self.special_token_ids = [number for number, text in enumerate(texts) if not text]
        self.eos_token_id, self.bos_token_id = vocabulary, None
        self._encode = tokenizer.encode

    def __call__(self, text: str) -> list[int]:
        return self._encode(text, special=False)

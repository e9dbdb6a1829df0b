"""`BytePairTokenizer`: byte pair encoding of bytes, trained on a text, with NumPy alone."""

from __future__ import annotations

import codecs
import heapq
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

from phlox.config.storage import format_json
from phlox.errors import ConfigError, IndexRangeError, RangeError
from phlox.text.chat_template import Span
from phlox.text.tokenizer import TextDecoder, Tokenizer

__all__ = ["BytePairTokenizer"]

Pair = tuple[int, int]

_LONGEST = 24
"""The largest number of characters of a word: texts in some scripts have no spaces, and long words take long."""
_LETTER, _SPACE = r"[^\x00-\x40\x5b-\x60\x7b-\x7f]", r"\x09-\x0d\x20"
_OTHER = r"[\x00-\x08\x0e-\x1f\x21-\x2f\x3a-\x40\x5b-\x60\x7b-\x7f]"
WORDS = "|".join([
    r"'(?:s|t|re|ve|m|ll|d)",
    *[rf"\x20?{kind}{{1,{_LONGEST}}}" for kind in (_LETTER, "[0-9]", _OTHER)],
    rf"[{_SPACE}]+(?![^{_SPACE}])",
    rf"[{_SPACE}]+",
])  # fmt: skip
r"""How a text is split into words, within which pairs are merged.

As in GPT-2, except that every character beyond ASCII is a letter, and that words have a largest length. So the pattern
means the same here and in the `tokenizers` package, and does not depend on a version of Unicode.
"""
_WORDS = re.compile(WORDS)
_LEARNED = 1 << 20
"""The largest number of characters of different words to learn from; the most frequent words are taken first."""
_CACHED = 1 << 16
"""The largest number of words whose tokens are remembered."""


class BytePairTokenizer(Tokenizer):
    """Byte pair encoding on bytes (Sennrich et al. 2016): the first 256 tokens are the bytes, others join two tokens.

    Any bytes can be encoded, and `decode_bytes` gives them back exactly. Without merges, tokens are the bytes of the
    text. It needs no package; `save` writes a file that the `tokenizers` package reads too, with the same result.

    Args:
        merges: the pairs of tokens to join, in order; the i-th becomes the token 256 + i.
        special: texts that are tokens of their own, numbered after the others.
        end: the special text that ends a text or a reply.
        chat_template: the chat template, in Jinja.

    >>> tokenizer = BytePairTokenizer.train("the cat and the hat and the rat", size=262)
    >>> tokens = tokenizer.encode("the cat")
    >>> len(tokens), tokenizer.decode(tokens)
    (4, 'the cat')
    """

    def __init__(
        self,
        merges: Iterable[Pair] = (),
        *,
        special: Sequence[str] = (),
        end: str | None = None,
        chat_template: str | None = None,
    ) -> None:
        self.merges: list[Pair] = [(int(a), int(b)) for a, b in merges]
        self._bytes: list[bytes] = [bytes([i]) for i in range(256)]
        for number, (a, b) in enumerate(self.merges, 256):
            if not 0 <= a < number or not 0 <= b < number:
                raise RangeError(
                    f"BytePairTokenizer: merge {number - 256} joins {(a, b)}, but has only {number} tokens"
                )
            self._bytes.append(self._bytes[a] + self._bytes[b])
        self._ranks = {pair: rank for rank, pair in enumerate(self.merges)}
        if len(set(self._bytes)) < len(self._bytes):
            raise RangeError("BytePairTokenizer: two merges make the same token")
        if end is not None and end not in special:
            raise RangeError(f"BytePairTokenizer: end={end!r} must be one of special={list(special)}")
        self._special = {text: len(self._bytes) + i for i, text in enumerate(special)}
        if len(self._special) < len(special) or not {b"", *self._bytes}.isdisjoint(map(str.encode, special)):
            raise RangeError(
                "BytePairTokenizer: special texts must be different, not empty, and no other tokens, got "
                f"{list(special)}"
            )
        self._special_texts = {token: text for text, token in self._special.items()}
        self._splits = re.compile("|".join(re.escape(text) for text in self._special)) if special else None
        self._cache: dict[str, list[int]] = {}
        self.size = len(self._bytes) + len(self._special)
        self.special = frozenset(self._special_texts)
        self.stops = frozenset() if end is None else frozenset([self._special[end]])
        self.special_names = {} if end is None else {"eos_token": end}
        self.templates = {} if chat_template is None else {"default": chat_template}

    @classmethod
    def train(
        cls, text: str | bytes, size: int = 2000, *, special: Sequence[str] = (), end: str | None = None
    ) -> BytePairTokenizer:
        """A tokenizer of at most `size` tokens, trained on a text: again and again, the most frequent pair is joined.

        It has fewer tokens if no pair occurs twice any more. Among pairs that are equally frequent, the one with the
        smallest tokens is joined. Raises `RangeError` for a size below 256 and the number of special tokens.
        """
        if size < 256 + len(special):
            raise RangeError(
                f"BytePairTokenizer: size must be at least {256 + len(special)}, the bytes and the special tokens, "
                f"got {size}"
            )
        data = text.encode(errors="replace") if isinstance(text, str) else text
        for name in special:
            data = data.replace(name.encode(), b"\n")
        counts: dict[bytes, int] = {}
        size_of_words = 0
        for word, count in Counter(_words_of(data)).most_common():
            counts[_bytes_of(word)] = count
            size_of_words += len(word)
            if size_of_words > _LEARNED:
                break
        return cls(_learn(counts, size - 256 - len(special)), special=special, end=end)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The tokens of a text; texts of special tokens become these. It adds none itself, so `special` has no effect.

        A lone surrogate is encoded as "?".
        """
        if self._splits is None:
            return self.encode_bytes(text.encode(errors="replace"))
        tokens: list[int] = []
        begin = 0
        for found in self._splits.finditer(text):
            tokens += self.encode_bytes(text[begin : found.start()].encode(errors="replace"))
            tokens.append(self._special[found.group()])
            begin = found.end()
        return tokens + self.encode_bytes(text[begin:].encode(errors="replace"))

    def encode_bytes(self, data: bytes) -> list[int]:
        """The tokens of any bytes, none of which is special."""
        if not self.merges:
            return list(data)
        cached, tokens = self._cache, list[int]()
        for word in _words_of(data):
            part = cached.get(word)
            if part is None:
                if len(cached) >= _CACHED:
                    cached.clear()
                part = cached[word] = self._merged(_bytes_of(word))
            tokens += part
        return tokens

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """The text of tokens; bytes that are no text become U+FFFD. Special tokens are written if `special`."""
        return self.decode_bytes(tokens, special=special).decode(errors="replace")

    def decode_bytes(self, tokens: Sequence[int], *, special: bool = False) -> bytes:
        """The bytes of tokens; `IndexRangeError` for a token that is not of this tokenizer."""
        parts: list[bytes] = []
        for token in map(int, tokens):
            if 0 <= token < len(self._bytes):
                parts.append(self._bytes[token])
            elif token not in self._special_texts:
                raise IndexRangeError(f"decode: there is no token {token}; the tokens are 0 to {self.size - 1}")
            elif special:
                parts.append(self._special_texts[token].encode())
        return b"".join(parts)

    def decoder(self) -> TextDecoder:
        """See `Tokenizer.decoder`."""
        return _ByteDecoder(self)

    def token_bytes(self) -> list[bytes]:
        """The bytes of each token; those of special tokens are empty."""
        return [*self._bytes, *[b""] * len(self._special)]

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[Span]]:
        """See `Tokenizer.encode_with_offsets`: the offsets of characters of which a token has at least one byte."""
        tokens = self.encode(text)
        firsts: list[int] = []  # the character of each byte
        for number, character in enumerate(text):
            firsts += [number] * len(character.encode(errors="replace"))
        firsts.append(len(text))
        offsets: list[Span] = []
        position = 0
        for token in tokens:
            end = position + len(self.decode_bytes([token], special=True))
            offsets.append((firsts[position], firsts[end - 1] + 1))
            position = end
        return tokens, offsets

    def files(self) -> dict[str, str]:
        """See `Tokenizer.files`; `transformers` and the `tokenizers` package read them with the same results."""
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        return {
            "tokenizer.json": json.dumps(self._content(), ensure_ascii=False) + "\n",
            "tokenizer_config.json": format_json({**settings, **self.special_names}) + "\n",
            **super().files(),
        }

    @classmethod
    def from_content(
        cls, content: Mapping[str, Any], *, end: str | None = None, chat_template: str | None = None
    ) -> BytePairTokenizer | None:
        """The tokenizer with this content of `tokenizer.json`; None if it is one of another kind.

        Raises `ConfigError` for a damaged one.
        """
        plain = cls()._content()
        kept = [key for key in plain if key not in ("model", "added_tokens")]
        if any(content.get(key) != plain[key] for key in kept):
            return None
        try:
            numbers: dict[str, int] = content["model"]["vocab"]
            if any(numbers.get(character) != byte for character, byte in byte_of_character().items()):
                return None
            merges = [(numbers[a], numbers[b]) for a, b in content["model"]["merges"]]
            special = [token["content"] for token in content["added_tokens"]]
            tokenizer = cls(merges, special=special, end=end, chat_template=chat_template)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"the tokenizer is damaged: {error}") from error
        return tokenizer if tokenizer._content() == content else None

    def _merged(self, word: bytes) -> list[int]:
        """The tokens of a word: the earliest merge first, and of several places the leftmost."""
        parts, ranks = list(word), self._ranks
        while len(parts) > 1:
            pair = min(pairwise(parts), key=lambda pair: ranks.get(pair, len(ranks)))
            if pair not in ranks:
                break
            parts = _joined(parts, pair, 256 + ranks[pair])
        return parts

    def _content(self) -> dict[str, Any]:
        """The content of `tokenizer.json`."""
        characters = _characters()
        names = ["".join([characters[byte] for byte in data]) for data in self._bytes]
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        split = {"type": "Split", "pattern": {"Regex": WORDS}, "behavior": "Isolated", "invert": False}
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [{"id": token, "content": text, **flags} for text, token in self._special.items()],
            "normalizer": None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
            "post_processor": None,
            "decoder": byte_level,
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": False,
                "vocab": {name: number for number, name in enumerate(names)},
                "merges": [[names[a], names[b]] for a, b in self.merges],
            },
        }


class _ByteDecoder(TextDecoder):
    """Decodes the bytes of each token as they come."""

    def __init__(self, tokenizer: BytePairTokenizer) -> None:
        super().__init__(tokenizer)
        self._bytes_of = tokenizer.decode_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int) -> str:
        return self._decoder.decode(self._bytes_of([token]))

    def end(self) -> str:
        return self._decoder.decode(b"", final=True)


@cache
def _characters() -> list[str]:
    """The character that stands for each byte in `tokenizer.json`, as GPT-2 has them: none is a space or a control."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    characters = {byte: chr(byte) for byte in shown}
    hidden = [byte for byte in range(256) if byte not in characters]
    characters.update({byte: chr(256 + number) for number, byte in enumerate(hidden)})
    return [characters[byte] for byte in range(256)]


@cache
def byte_of_character() -> dict[str, int]:
    """The byte that each character of a token's name in `tokenizer.json` stands for."""
    return {character: byte for byte, character in enumerate(_characters())}


def _words_of(data: bytes) -> list[str]:
    """The words of bytes; a byte that is no text is a letter."""
    return _WORDS.findall(data.decode(errors="surrogateescape"))


def _bytes_of(word: str) -> bytes:
    return word.encode(errors="surrogateescape")


def _joined(parts: list[int], pair: Pair, token: int) -> list[int]:
    """The tokens with each occurrence of a pair, from the left, replaced by one token."""
    first, second = pair
    joined: list[int] = []
    begin = position = 0
    while True:
        try:
            position = parts.index(first, position, -1)
        except ValueError:
            return joined + parts[begin:]
        if parts[position + 1] == second:
            joined += parts[begin:position]
            joined.append(token)
            begin = position = position + 2
        else:
            position += 1


def _learn(counts: Mapping[bytes, int], number: int) -> list[Pair]:
    """The first `number` merges for words that occur so often.

    Counts of pairs are kept, and changed only for the words that have the pair which is joined. The heap may hold
    counts that have changed since; such an entry is put back with the count of today.
    """
    words = [list(word) for word in counts if len(word) > 1]
    repeats = [count for word, count in counts.items() if len(word) > 1]
    frequency: dict[Pair, int] = defaultdict(int)
    places: dict[Pair, set[int]] = defaultdict(set)
    for i, word in enumerate(words):
        for pair in pairwise(word):
            frequency[pair] += repeats[i]
            places[pair].add(i)
    heap = [(-count, pair) for pair, count in frequency.items()]
    heapq.heapify(heap)
    merges: list[Pair] = []
    tokens = [bytes([i]) for i in range(256)]
    while heap and len(merges) < number:
        count, pair = heapq.heappop(heap)
        if -count != frequency[pair]:
            if frequency[pair] > 1:
                heapq.heappush(heap, (-frequency[pair], pair))
            continue
        if -count < 2:
            break
        token, data = len(tokens), tokens[pair[0]] + tokens[pair[1]]
        if data in tokens:  # there may be two ways to the same bytes
            continue
        tokens.append(data)
        merges.append(pair)
        changed: set[Pair] = set()
        for i in places.pop(pair):
            word = words[i] = _joined(words[i], pair, token)
            for k in [k for k, part in enumerate(word) if part == token]:
                pairs: list[tuple[Pair, Pair]] = []  # each pair that is gone, and the one in its place
                if k:
                    left = word[k - 1]
                    pairs.append(((pair[1] if left == token else left, pair[0]), (left, token)))
                if k + 1 < len(word) and (right := word[k + 1]) != token:
                    pairs.append(((pair[1], right), (token, right)))
                for old, new in pairs:
                    frequency[old] -= repeats[i]
                    frequency[new] += repeats[i]
                    places[new].add(i)
                    changed.add(new)
        frequency.pop(pair, None)
        for new in changed:
            heapq.heappush(heap, (-frequency[new], new))
    return merges

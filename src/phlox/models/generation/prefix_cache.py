"""Keys and values of texts that were processed before, for texts with the same beginning."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np

from phlox.errors import ConfigError, RangeError
from phlox.module import Module
from phlox.nn import KeyValueCache
from phlox.tensor import Tensor, concat, tensor, zeros

M = TypeVar("M", bound=Module)

Layers: TypeAlias = tuple[KeyValueCache, ...]
"""The cache of each layer."""

Columns: TypeAlias = list[Tensor[Any, Any, Any]]
"""The arrays of all layers [1, heads, tokens, width] for successive tokens."""


class _Block:
    """The keys and values of successive tokens, which follow those of another block."""

    __slots__ = ("columns", "following", "key", "parent", "size")

    def __init__(self, parent: _Block | None, key: Hashable, columns: Columns) -> None:
        self.parent, self.key, self.columns = parent, key, columns
        self.following: dict[Hashable, _Block] = {}
        self.size = sum(x.nbytes for x in columns)


class PrefixCache:
    """Keys and values of the beginnings of texts: `generate(prefix_cache=...)` processes only what follows them.

    It holds blocks of successive tokens as a tree: texts with the same beginning share its blocks. What was used least
    recently is left out where there are more bytes than allowed. It serves one model with its parameters of today, and
    may be used by several threads.

    Args:
        model: the `CausalModel`.
        max_bytes: the most bytes that the keys and values may have.
        block: the number of tokens of a block; only whole blocks are kept.

    >>> import phlox as px
    >>> model = px.models.GptConfig(vocabulary=10, context=32, n_layers=1, d_model=4, n_heads=2).init("numpy")
    >>> cache = PrefixCache(model, block=4)
    >>> texts = [model.generate([[1, 2, 3, 4, 5]], 4, temperature=0.0, prefix_cache=cache)[0].tolist() for _ in "ab"]
    >>> texts[0] == texts[1], cache.reused_tokens
    (True, 4)
    """

    def __init__(self, model: Module, *, max_bytes: int = 2**30, block: int = 32) -> None:
        if max_bytes < 0 or block < 1:
            raise RangeError(
                f"PrefixCache: max_bytes must be at least zero and block at least one, got {max_bytes} and {block}"
            )
        self.max_bytes, self.block = max_bytes, block
        self.bytes = 0
        """The bytes of all keys and values in it."""
        self.reused_tokens = 0
        """The number of tokens that did not have to be processed so far."""
        self._params = _params_of(model)
        self._roots: dict[Hashable, _Block] = {}
        self._blocks: OrderedDict[_Block, None] = OrderedDict()  # least recently used first, each after its following
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """The number of tokens in it."""
        return len(self._blocks) * self.block

    def clear(self) -> None:
        """Remove everything."""
        with self._lock:
            self._roots.clear()
            self._blocks.clear()
            self.bytes = 0

    def check(self, call: str, model: Module) -> None:
        """Raise `ConfigError` if this cache is for another model; `call` begins the message."""
        params = _params_of(model)
        if len(params) != len(self._params) or any(a is not b for a, b in zip(params, self._params, strict=True)):
            raise ConfigError(
                f"{call}: the prefix_cache is for a model with other parameters; make one with PrefixCache(model)"
            )

    def restore(
        self, cache: Layers, tokens: np.ndarray[Any, Any], starts: Sequence[int] | None = None
    ) -> tuple[Layers, int]:
        """An empty cache with the first columns that are known for texts [batch, n], and the number of these columns.

        The texts begin in the columns `starts`. At least one token of each is left to process.
        """
        rows, n = tokens.shape
        firsts: list[int] = list(starts or [0] * rows)
        with self._lock:
            root = self._roots.get(_layout(cache))
            if root is None:
                return cache, 0
            texts: list[list[int]] = tokens[:, : n - 1].tolist()
            pairs = [(start, self._match(root, text[start:])) for start, text in zip(firsts, texts, strict=True)]
            count = min(start + self.block * len(blocks) for start, blocks in pairs)
            for _, blocks in pairs:
                for block in reversed(blocks):
                    self._blocks.move_to_end(block)
            if not count:
                return cache, 0
            self.reused_tokens += sum(max(0, count - start) for start in firsts)
        known = iter([_columns(x, number, pairs, count) for number, x in enumerate(_arrays(cache))])

        def filled(x: Any) -> Any:
            return concat([next(known), x[:, :, count:]], 2) if x is not None and x.ndim == 4 else x

        layers = [layer._make([filled(x) for x in layer]) for layer in cache]
        return tuple([layer._replace(position=layer.position + count) for layer in layers]), count

    def add(self, cache: Layers, row: int, tokens: Sequence[int], start: int = 0) -> None:
        """Keep the keys and values of a text, which is in a row of a cache from the column `start` on."""
        tokens = [int(token) for token in tokens]
        with self._lock:
            block = self._roots.setdefault(_layout(cache), _Block(None, None, []))
            path: list[_Block] = []
            for begin in range(0, len(tokens) - self.block + 1, self.block):
                key = tuple(tokens[begin : begin + self.block])
                following = block.following.get(key)
                if following is None:
                    parts = _taken(cache, row, start + begin, self.block)
                    following = block.following[key] = _Block(block, key, parts)
                    self._blocks[following] = None
                    self.bytes += following.size
                block = following
                path.append(block)
            for block in reversed(path):
                self._blocks.move_to_end(block)
            while self.bytes > self.max_bytes:
                oldest, _ = self._blocks.popitem(last=False)  # nothing follows it
                assert oldest.parent is not None
                del oldest.parent.following[oldest.key]
                self.bytes -= oldest.size

    def _match(self, root: _Block, tokens: list[int]) -> list[_Block]:
        """The longest path of blocks with which the tokens begin."""
        path: list[_Block] = []
        block: _Block | None = root
        for begin in range(0, len(tokens) - self.block + 1, self.block):
            block = block.following.get(tuple(tokens[begin : begin + self.block]))
            if block is None:
                break
            path.append(block)
        return path


def view_of(model: M) -> M:
    """The model without dropout and tape. Parameters are created in the model: each view would create its own."""
    for param in model.params():
        param.val()
    return model.valid()


def _params_of(model: Module) -> list[Any]:
    return [param.val().primitive for param in view_of(model).params()]


def _arrays(cache: Layers) -> Columns:
    """The arrays of all layers that have columns: [batch, heads, capacity, width]."""
    return [x for layer in cache for x in layer if x is not None and x.ndim == 4]


def _taken(cache: Layers, row: int, first: int, count: int) -> Columns:
    """Copies of so many columns of a row. Indices are data, so a compiler has one program for all of them."""
    device = cache[0].position.device
    rows, columns = tensor([row], device=device), tensor(range(first, first + count), device=device)
    return [x.take(columns, 2).take(rows, 0) for x in _arrays(cache)]


def _layout(cache: Layers) -> Hashable:
    """What keys and values of this kind of cache have in common."""
    return tuple([(x.kind, x.shape[1], x.shape[3]) for x in _arrays(cache)])


def _columns(
    x: Tensor[Any, Any, Any], number: int, pairs: list[tuple[int, list[_Block]]], count: int
) -> Tensor[Any, Any, Any]:
    """The first columns of an array of all layers; rows begin with padding."""
    rows: Columns = []
    for start, blocks in pairs:
        parts = [block.columns[number] for block in blocks]
        if start:
            shape = (1, x.shape[1], min(start, count), x.shape[3])
            parts.insert(0, zeros(shape, kind=x.kind, device=x.device))
        rows.append(concat(parts, 2)[:, :, :count])
    return concat(rows, 0)

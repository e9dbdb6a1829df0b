"""Caches of keys and values that need less memory: of the last tokens alone, or of few bits."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias, cast

from phlox.backend import Float, Int
from phlox.errors import ShapeError
from phlox.nn.key_value_cache import KeyValueCache, Visible, unpadded
from phlox.tensor import Tensor, arange, concat, where, zeros
from phlox.tensor.functional.operands import compute
from phlox.tensor.functional.packed import unpack

__all__ = ["Int4KeyValueCache", "Int8KeyValueCache", "WindowKeyValueCache"]


class WindowKeyValueCache(NamedTuple):
    """The keys and values of the last tokens, for attention with a window: its capacity is the window.

    Token i is in column i modulo the window. `MultiHeadAttention` with that window takes it as it does a
    `KeyValueCache`. There is no limit to the number of tokens. It is immutable, and its shapes are fixed.

    >>> import phlox as px
    >>> layer = px.nn.MultiHeadAttention(8, 2, causal=True, window=3)
    >>> cache = WindowKeyValueCache.of(layer.init_cache(1, 1), 3)
    >>> y, cache = layer(px.ones((1, 7, 8)), cache=cache)
    >>> cache.position.item(), cache.key.shape
    (7, (1, 2, 3, 4))
    """

    key: Tensor
    """[batch, n_kv_heads, window, d_head]."""
    value: Tensor
    """[batch, n_kv_heads, window, d_head]."""
    position: Tensor[Any, Any, Int]
    """The number of tokens so far; a scalar."""
    start: Tensor[Any, Any, Int] | None = None
    """[batch]: the number of padding tokens at the beginning of each row, see `KeyValueCache`."""
    new: int | None = None
    """Of the next tokens, only so many are tokens, and those after them padding; None means all."""

    is_owned = False

    @classmethod
    def of(cls, cache: KeyValueCache, window: int) -> WindowKeyValueCache:
        """An empty cache with the sizes of another one, apart from its capacity."""
        key, value = (zeros((*x.shape[:2], window, x.shape[3]), device=x.device) for x in cache[:2])
        return cls(key, value, cache.position, cache.start)

    @property
    def window(self) -> int:
        """The number of tokens that it holds."""
        return self.key.shape[2]

    def positions(self, n: int) -> Tensor[Any, Any, Int]:
        """See `KeyValueCache.positions`."""
        columns = arange(n, device=self.position.device) + self.position
        return columns if self.start is None else (columns - self.start.expand_dims(-1)).clip(0)

    def extend(self, key: Tensor, value: Tensor) -> tuple[WindowKeyValueCache, Visible]:
        """A new cache with n more tokens, and what these see, from keys and values [batch, n_kv_heads, n, d_head]."""
        n = key.shape[2]
        size = n if self.new is None else self.new
        if n == 1 and self.new is None:
            at = self.position % self.window
            columns = self._last_columns(self.position + 1)
            key, value = (
                compute("write_from", x, y, at, 2, self.is_owned) for x, y in ((self.key, key), (self.value, value))
            )
            cache = self._replace(key=key, value=value, position=self.position + 1)
        else:
            before, columns = self._last_columns(self.position), self._last_columns(self.position + size)
            slots = arange(self.window, device=self.position.device)
            sources = where(columns >= self.position, columns - self.position + self.window, slots)
            key, value = concat([self.key, key], 2), concat([self.value, value], 2)
            cache = self._replace(key=key.take(sources, 2), value=value.take(sources, 2), new=None)
            cache = cache._replace(position=self.position + size)
            columns = concat([before, arange(n, device=self.position.device) + self.position], 0)
        queries = (arange(n, device=self.position.device) + self.position).expand_dims(-1)
        seen = (columns <= queries) & (columns > queries - self.window) & (columns >= 0)
        if self.start is not None:
            seen = seen & unpadded(self.start, columns)
        return cache, Visible(key, value, seen)

    def _last_columns(self, position: Tensor[Any, Any, Int]) -> Tensor[Any, Any, Int]:
        """The token in each column after so many tokens: [window]; negative if there is none yet."""
        slots = arange(self.window, device=position.device)
        return position - 1 - (position - 1 - slots) % self.window


class Int8KeyValueCache(NamedTuple):
    """Keys and values as whole numbers of 8 bits, with a scale for each head and token; see `KeyValueCache`.

    >>> import phlox as px
    >>> layer = px.nn.MultiHeadAttention(16, 2, causal=True)
    >>> cache = Int8KeyValueCache.of(layer.init_cache(1, 1), capacity=6)
    >>> y, cache = layer(px.ones((1, 5, 16)), cache=cache)
    >>> cache.position.item(), cache.capacity, cache.key.shape
    (5, 6, (1, 2, 6, 2))
    """

    key: Tensor[Any, Any, Int]
    """Words of 32 bits, see `phlox.functional.unpack`: [batch, n_kv_heads, capacity, d_head / 4]."""
    value: Tensor[Any, Any, Int]
    key_scale: Tensor
    """[batch, n_kv_heads, capacity, 1]."""
    value_scale: Tensor
    position: Tensor[Any, Any, Int]
    """The number of tokens in the cache; a scalar."""
    start: Tensor[Any, Any, Int] | None = None
    """[batch]: the number of padding tokens at the beginning of each row, see `KeyValueCache`."""

    bits = 8
    is_owned = False

    @classmethod
    def of(cls, cache: KeyValueCache, capacity: int) -> Int8KeyValueCache:
        """An empty cache with the sizes of another one, apart from its capacity."""
        per_word = 32 // cls.bits
        if any(x.shape[3] % per_word for x in cache[:2]):
            raise ShapeError(
                f"{cls.__name__}: heads must have a multiple of {per_word} elements, got {cache.key.shape[3]}"
            )
        shapes = [(*x.shape[:2], capacity) for x in cache[:2]]
        words = [
            zeros((*shape, x.shape[3] // per_word), kind=Int, device=x.device)
            for shape, x in zip(shapes, cache[:2], strict=True)
        ]
        scales = [zeros((*shape, 1), device=cache.key.device) for shape in shapes]
        return cls(words[0], words[1], scales[0], scales[1], cache.position, cache.start)

    @property
    def capacity(self) -> int:
        """The maximum number of tokens."""
        return self.key.shape[2]

    def positions(self, n: int) -> Tensor[Any, Any, Int]:
        """See `KeyValueCache.positions`."""
        return self._plain(self.key, self.value).positions(n)

    def columns(self, n: int) -> Tensor[Any, Any, Int]:
        """See `KeyValueCache.columns`."""
        return self._plain(self.key, self.value).columns(n)

    def append(self, key: Tensor, value: Tensor) -> Int8KeyValueCache:
        """See `KeyValueCache.append`."""
        (keys, key_scales), (values, value_scales) = _encode(key, self.bits), _encode(value, self.bits)

        def written(x: Tensor[Any, Any, Any], new: Tensor[Any, Any, Any]) -> Any:
            return _write(x, new, self.position, self.is_owned)

        return type(self)(
            written(self.key, keys),
            written(self.value, values),
            written(self.key_scale, key_scales),
            written(self.value_scale, value_scales),
            self.position + key.shape[2],
            self.start,
        )

    extend = KeyValueCache.extend

    def visible(self, n: int) -> Visible:
        """See `KeyValueCache.visible`."""
        words: list[Any] = [self.key, self.value, self.key_scale, self.value_scale]
        if self.is_owned:
            filled = int(self.position.item())
            words = [x[:, :, :filled] for x in words]
        coding = f"int{self.bits}"
        return self._plain(unpack(words[0], coding) * words[2], unpack(words[1], coding) * words[3]).visible(n)

    def _plain(self, key: Tensor[Any, Any, Any], value: Tensor[Any, Any, Any]) -> KeyValueCache:
        return KeyValueCache(key, value, self.position, self.start)


class Int4KeyValueCache(Int8KeyValueCache):
    """Keys and values as whole numbers of 4 bits; see `Int8KeyValueCache`. A word has eight of them."""

    __slots__ = ()
    bits = 4


SmallCache: TypeAlias = WindowKeyValueCache | Int8KeyValueCache


class _OwnedWindow(WindowKeyValueCache):
    __slots__ = ()
    is_owned = True


class _OwnedInt8(Int8KeyValueCache):
    __slots__ = ()
    is_owned = True


class _OwnedInt4(Int4KeyValueCache):
    __slots__ = ()
    is_owned = True


_OWNED: dict[type[Any], type[Any]] = {
    WindowKeyValueCache: _OwnedWindow, Int8KeyValueCache: _OwnedInt8, Int4KeyValueCache: _OwnedInt4,
}  # fmt: skip


def owned(cache: SmallCache) -> SmallCache:
    """A cache that each call overwrites, see `OwnedKeyValueCache`."""
    return cast("SmallCache", _OWNED[type(cache)](*cache))


def _write(x: Tensor[Any, Any, Any], new: Tensor[Any, Any, Any], position: Tensor[Any, Any, Int], donated: bool) -> Any:
    """x with the columns `new` written along axis 2, from `position` on."""
    y = compute("write_from", x, new, position, 2, donated)
    return y if x.kind is Float else Tensor.from_primitive(y.primitive, y.backend, x.kind)


def _encode(x: Tensor, bits: int) -> tuple[Tensor[Any, Any, Int], Tensor]:
    """Floats [..., d] as words [..., d bits / 32] and scales [..., 1]."""
    per_word, half = 32 // bits, 1 << (bits - 1)
    scales = x.abs().max(-1, keepdims=True) / (half - 1)
    numbers = (x / where(scales == 0.0, 1.0, scales)).round().int()
    codes = (numbers + half if bits == 4 else numbers & 255).reshape((*x.shape[:-1], -1, per_word))
    last = codes[..., per_word - 1]
    words = where(last >= half, last - 2 * half, last) << (32 - bits)  # the sign of a word of 32 bits
    for place in range(per_word - 1):
        words = words | (codes[..., place] << (place * bits))
    return words, scales

"""The keys and values of the tokens that a causal attention has processed, for generation."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

from phlox.backend import Bool, Int
from phlox.errors import IndexRangeError, RangeError, ShapeError
from phlox.tensor import Tensor, arange
from phlox.tensor.functional.operands import compute

__all__ = ["KeyValueCache"]


class KeyValueCache(NamedTuple):
    """The keys and values of the tokens that a causal attention has processed so far.

    Its shapes are fixed while it fills, so one compiled program serves every position. It can be an argument and a
    result of a compiled function. It is immutable: attention returns a new cache.

    >>> import phlox as px
    >>> layer = px.nn.MultiHeadAttention(8, 2, causal=True)
    >>> y, cache = layer(px.ones((3, 2, 8)), cache=layer.init_cache(3, capacity=5))
    >>> cache.position.item(), cache.capacity
    (2, 5)
    """

    key: Tensor
    """[batch, n_kv_heads, capacity, d_head]."""
    value: Tensor
    """[batch, n_kv_heads, capacity, d_head]."""
    position: Tensor[Any, Any, Int]
    """The number of tokens in the cache: a scalar or, if each row has its own number, [batch]."""
    start: Tensor[Any, Any, Int] | None = None
    """[batch]: the number of padding tokens at the beginning of each row, which are masked; None means no padding."""

    @property
    def capacity(self) -> int:
        """The maximum number of tokens."""
        return self.key.shape[2]

    def positions(self, n: int) -> Tensor[Any, Any, Int]:
        """The positions of the next n tokens: [n], or [batch, n] if rows differ; padding has position 0.

        Raises `RangeError` if they exceed the capacity. A compiled function cannot see the position: there `append`
        drops these tokens, unless `phlox.debug.checks()` is active, which reports it.
        """
        end = self.position + n
        try:
            end.backend.check_indices(end.primitive, self.capacity + 1, from_end=False)
        except IndexRangeError:
            raise RangeError(
                f"KeyValueCache: {n} more tokens after {int(self.position.max().item())} exceed the capacity of "
                f"{self.capacity}; make a larger cache with init_cache, or start a new one"
            ) from None
        return self._positions(n)

    def append(self, key: Tensor, value: Tensor) -> KeyValueCache:
        """A new cache with n more tokens, from keys and values [batch, n_kv_heads, n, d_head]."""
        return self._append_columns(key, value, donated=False)

    def _append_columns(self, key: Tensor, value: Tensor, *, donated: bool) -> Self:
        n = key.shape[2]
        batch, heads, _, width = self.key.shape
        if key.shape != (batch, heads, n, width):
            raise ShapeError(
                f"KeyValueCache: keys of shape {key.shape} do not fit a cache of shape {self.key.shape}; "
                "make a cache of this batch size with init_cache"
            )
        key, value = (_append(x, new, self.position, donated) for x, new in ((self.key, key), (self.value, value)))
        return self._replace(key=key, value=value, position=self.position + n)

    def extend(self, key: Tensor, value: Tensor) -> tuple[KeyValueCache, Visible]:
        """A new cache as `append` gives it, and what the new tokens see."""
        cache = self.append(key, value)
        return cache, cache.visible(key.shape[2])

    def columns(self, n: int) -> Tensor[Any, Any, Int]:
        """The columns that the next n tokens will take: [n], or [batch, n] if rows have their own positions."""
        position = self.position.expand_dims(-1) if self.position.ndim else self.position
        return arange(n, device=self.position.device) + position

    def _positions(self, n: int) -> Tensor[Any, Any, Int]:
        columns = self.columns(n)
        return columns if self.start is None else (columns - self.start.expand_dims(-1)).clip(0)

    def visible(self, n: int) -> Visible:
        """The keys, values and mask for the last n tokens, which were appended already."""
        columns = arange(self.capacity, device=self.position.device)
        seen = columns <= _for_queries(self.columns(n) - n)
        return Visible(self.key, self.value, seen if self.start is None else seen & unpadded(self.start, columns))


class OwnedKeyValueCache(KeyValueCache):
    """A cache that each call overwrites: only the returned cache is valid.

    For eager loops on engines with writable arrays. Attention reads only the filled part. The capacity is not checked.
    """

    __slots__ = ()

    def positions(self, n: int) -> Tensor[Any, Any, Int]:
        return self._positions(n)

    def append(self, key: Tensor, value: Tensor) -> OwnedKeyValueCache:
        return self._append_columns(key, value, donated=True)

    def visible(self, n: int) -> Visible:
        filled = int(self.position.max().item() if self.position.ndim else self.position.item())
        part = self._replace(key=self.key[:, :, :filled], value=self.value[:, :, :filled])
        if self.position.ndim or n not in (1, filled):
            return KeyValueCache.visible(part, n)
        return _all(part.key, part.value, self.start, causal=n > 1)


class NewKeyValueCache(KeyValueCache):
    """An empty cache that is known to be empty, in a trace, too: its first tokens see only each other.

    Then attention skips what comes later, and needs no mask as large as the cache.
    """

    __slots__ = ()

    def extend(self, key: Tensor, value: Tensor) -> tuple[KeyValueCache, Visible]:
        return KeyValueCache(*self).append(key, value), _all(key, value, self.start, causal=True)


class Visible(NamedTuple):
    """The keys, values and mask that queries attend to."""

    key: Tensor
    value: Tensor
    seen: Tensor[Any, Any, Bool] | None
    """The mask, true where a query sees a key: [n, m] or [batch, 1, n, m]; None means all."""
    causal: bool = False
    """Does each query see no key after its own, counted from the first?"""


def _all(key: Tensor, value: Tensor, start: Tensor[Any, Any, Int] | None, *, causal: bool) -> Visible:
    """All columns apart from padding."""
    seen = None if start is None else unpadded(start, arange(key.shape[2], device=key.device))
    return Visible(key, value, seen, causal)


def unpadded(start: Tensor[Any, Any, Int], columns: Tensor[Any, Any, Int]) -> Tensor[Any, Any, Bool]:
    """Are columns no padding? [batch, 1, 1, columns]."""
    return (columns >= start.expand_dims(-1)).expand_dims(-2).expand_dims(-2)


def _for_queries(columns: Tensor[Any, Any, Int]) -> Tensor[Any, Any, Int]:
    """The columns of queries, to compare with those of keys: [n, 1], or [batch, 1, n, 1] for [batch, n]."""
    columns = columns.expand_dims(-1)
    return columns.expand_dims(1) if columns.ndim == 3 else columns


def _append(x: Tensor, new: Tensor, position: Tensor[Any, Any, Int], donated: bool) -> Tensor:
    """x with the columns `new` written along axis 2, from `position` on, which is a scalar or [batch]."""
    return compute("write_from", x, new, position, 2, donated)


def last_columns(
    key: Tensor,
    value: Tensor,
    seen: Tensor[Any, Any, Bool] | None,
    mask: Tensor[Any, Any, Any] | None,
    cache: KeyValueCache,
    n: int,
    window: int,
) -> tuple[Tensor, Tensor, Tensor[Any, Any, Bool] | None, Tensor[Any, Any, Any] | None]:
    """The keys that n tokens at the end of a cache see through a window, and their masks."""
    m = key.shape[2]
    if m <= window:
        return key, value, seen, mask
    if n == 1 and seen is None and mask is None:  # the cache holds nothing after it
        return key[:, :, m - window :], value[:, :, m - window :], None, None
    ends = _for_queries(cache.columns(n) - n)
    near = arange(m, device=key.device) > ends - window
    return key, value, near if seen is None else seen & near, mask

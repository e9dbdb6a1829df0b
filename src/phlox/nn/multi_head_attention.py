"""Multi-head attention."""

from __future__ import annotations

import math
from typing import Any, Literal, overload

from phlox.backend import Bool, Device, DeviceLike, Int
from phlox.config import config_of
from phlox.errors import ConfigError, RangeError, ShapeError
from phlox.module import Module, Param
from phlox.nn.attention import attention
from phlox.nn.initializer import Initializer, XavierUniform, Zeros
from phlox.nn.key_value_cache import KeyValueCache, last_columns
from phlox.nn.linear import Linear, linear_each
from phlox.nn.norm import RmsNorm
from phlox.nn.rotary import RotaryEncodingConfig
from phlox.nn.small_caches import WindowKeyValueCache
from phlox.tensor import Tensor, arange, where, zeros

__all__ = ["MultiHeadAttention", "MultiHeadAttentionConfig"]


class MultiHeadAttention(Module):
    """Multi-head attention (Vaswani et al. 2017): [..., n, d_model] to [..., n, d_model].

    Query, key, value and output each have a `Linear` projection. Head i uses the i-th slice of width d_head.

    Args:
        d_model: the width of input and output.
        n_heads: the number of query heads. It must divide d_model unless d_head is given.
        n_kv_heads: the number of key/value heads; by default n_heads. Each is shared by n_heads / n_kv_heads
            consecutive query heads (Ainslie et al. 2023); 1 is multi-query attention (Shazeer 2019).
        d_head: the width of a head; by default d_model / n_heads.
        bias: whether the projections have a bias.
        dropout: the rate at which attention weights are dropped in training; see `Module.is_training`.
        causal: whether each token attends only to itself and earlier tokens.
        rotary: the rotary encoding of queries and keys, such as `RotaryEncodingConfig(d_head)`; by default none.
        initializer: the initializer of the weights; biases are initialised to zeros.
        out_initializer: the initializer of the output projection; by default `initializer`.
        out_bias: whether the output projection has a bias; by default `bias`.
        norm: a normalization of queries and keys before their rotation: "heads" has one for each head's width,
            "all" one over the width of all heads; by default none.
        norm_epsilon, norm_offset: of these `RmsNorm`.
        window: each token attends to so many tokens: itself and those before it or, without `causal`, to the tokens
            that are at most so far away on both sides. By default to all.
        scale: the factor of the scores; by default 1 / sqrt(d_head).
        cap, sinks: see `phlox.nn.attention`; with `sinks` there is a parameter of one score for each head.
        device: the device of the parameters.

    Raises `ConfigError` if the sizes do not fit each other.

    >>> import phlox as px
    >>> layer = MultiHeadAttention(8, 2, causal=True)
    >>> layer(px.ones((3, 5, 8))).shape
    (3, 5, 8)
    >>> y, cache = layer(px.ones((3, 1, 8)), cache=layer.init_cache(3, capacity=5))
    >>> y.shape, cache.position.item()
    ((3, 1, 8), 1)
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        n_kv_heads: int | None = None,
        d_head: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        causal: bool = False,
        rotary: RotaryEncodingConfig | None = None,
        initializer: Initializer = XavierUniform(),  # noqa: B008  (configs are immutable)
        out_initializer: Initializer | None = None,
        out_bias: bool | None = None,
        norm: Literal["heads", "all"] | None = None,
        norm_epsilon: float = 1e-6,
        norm_offset: float = 0.0,
        window: int | None = None,
        scale: float | None = None,
        cap: float | None = None,
        sinks: bool = False,
        device: DeviceLike | None = None,
    ) -> None:
        groups = n_heads if n_kv_heads is None else n_kv_heads
        _check(d_model, n_heads, groups, d_head, dropout)
        width = d_model // n_heads if d_head is None else d_head
        if rotary is not None and (not isinstance(rotary, RotaryEncodingConfig) or rotary.d_head != width):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"MultiHeadAttention: rotary must be RotaryEncodingConfig({width}), for heads of that width, "
                f"got {rotary!r}"
            )
        if norm not in (None, "heads", "all"):
            raise ConfigError(f'MultiHeadAttention: norm must be "heads", "all" or None, got {norm!r}')
        if window is not None and window < 1:
            raise ConfigError(f"MultiHeadAttention: window must be at least 1, got {window}")
        self.n_heads, self.n_kv_heads, self.d_head = n_heads, groups, width
        self.dropout, self.causal = dropout, causal
        self.window, self.scale, self.cap = window, scale, cap

        def projection(d_input: int, d_output: int, initializer: Initializer, bias: bool) -> Linear:
            return Linear(
                d_input, d_output, bias=bias, initializer=initializer, bias_initializer=Zeros(), device=device
            )

        def norm_over(heads: int) -> RmsNorm | None:
            if norm is None:
                return None
            size = width if norm == "heads" else heads * width
            return RmsNorm(size, epsilon=norm_epsilon, offset=norm_offset, device=device)

        # One matrix each: a single matrix for all three, split after the product, makes the backward pass slower.
        self.query = projection(d_model, n_heads * width, initializer, bias)
        self.key = projection(d_model, groups * width, initializer, bias)
        self.value = projection(d_model, groups * width, initializer, bias)
        bias = bias if out_bias is None else out_bias
        self.out = projection(n_heads * width, d_model, out_initializer or initializer, bias)
        self.query_norm, self.key_norm = norm_over(n_heads), norm_over(groups)
        self.sinks = Param.deferred((n_heads,), Zeros(), device=device) if sinks else None
        self.rotary = None if rotary is None else rotary.init()

    @overload
    def __call__(
        self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None, *,
        mask: Tensor[Any, Any, Any] | None = None, positions: Tensor[Any, Any, Int] | None = None,
    ) -> Tensor: ...  # fmt: skip
    @overload
    def __call__(
        self, query: Tensor, *, mask: Tensor[Any, Any, Any] | None = None, cache: KeyValueCache
    ) -> tuple[Tensor, KeyValueCache]: ...
    def __call__(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        mask: Tensor[Any, Any, Any] | None = None,
        positions: Tensor[Any, Any, Int] | None = None,
        cache: KeyValueCache | None = None,
    ) -> Any:
        """Attend: self-attention, or cross-attention if a key is given.

        Args:
            query: [..., n, d_model].
            key: [..., m, d_model]; by default the query.
            value: [..., m, d_model]; by default the key.
            mask: Bool, true where a query may attend to a key; or Float, added to the scores. Broadcasts to
                [..., n_heads, n, m]. For sequence lengths: `(arange(m) < lengths[:, None])[:, None, None]`.
            positions: Int [..., n], the positions of queries and keys for the rotary encoding; by default 0 to n - 1.
                Not with a cache, which has its own.
            cache: the cache of the earlier tokens, from `init_cache` or an earlier call. The query is then
                [batch, n, d_model], and a mask broadcasts to [batch, n_heads, n, capacity].

        Returns [..., n, d_model]; with a cache, a pair of the result and the new cache.
        """
        if cache is not None:
            return self._attend_cached(query, key, mask, cache, positions)
        key = query if key is None else key
        value = key if value is None else value
        q, k, v = self._project(query, key, value)
        q, k = self._rotate(q, k, _for_heads(positions))
        if self.window is not None:
            mask = self._within(q.shape[-2], k.shape[-2], mask, query.device)
        return self._attend(q, k, v, mask, self.causal)

    def init_cache(self, batch_size: int, capacity: int) -> KeyValueCache:
        """An empty cache for `batch_size` sequences of at most `capacity` tokens."""
        if batch_size < 1 or capacity < 1:
            raise RangeError(f"init_cache: batch_size and capacity must be at least 1, got {batch_size} and {capacity}")
        device = self.out.weight.device
        key, value = (zeros((batch_size, self.n_kv_heads, capacity, n), device=device) for n in self._cached_widths())
        return KeyValueCache(key, value, arange(1, device=device)[0])

    def _cached_widths(self) -> tuple[int, int]:
        """The widths of keys and values in a cache."""
        return self.d_head, self.d_head

    def _attend_cached(
        self,
        x: Tensor,
        other_key: Tensor | None,
        mask: Tensor[Any, Any, Any] | None,
        cache: KeyValueCache,
        own_positions: Tensor[Any, Any, Int] | None,
    ) -> tuple[Tensor, KeyValueCache]:
        if other_key is not None or not self.causal:
            reason = "a key was given" if other_key is not None else "this layer is not causal"
            raise ConfigError(
                f"MultiHeadAttention: a cache needs causal self-attention (causal=True, and no key); {reason}"
            )
        if own_positions is not None:
            raise ConfigError("MultiHeadAttention: a cache has its own positions; leave out positions=")
        q, k, v = self._project(x, x, x)
        if q.ndim != 4:
            raise ShapeError(f"MultiHeadAttention: with a cache, x must be [batch, n, d_model], got shape {x.shape}")
        n = x.shape[1]
        q, k = self._rotate(q, k, _for_heads(cache.positions(n)))
        cache, (key, value, seen, causal) = cache.extend(k, v)
        if self.window is not None and not isinstance(cache, WindowKeyValueCache):
            key, value, seen, mask = last_columns(key, value, seen, mask, cache, n, self.window)
        bias = None
        if mask is not None:
            if (
                not isinstance(cache, WindowKeyValueCache)
                and key.shape[2] < cache.capacity
                and mask.shape[-1:] == (cache.capacity,)
            ):
                mask = mask[..., : key.shape[2]]  # only the part that is filled
            if mask.kind is Bool:
                seen = mask if seen is None else seen & mask
            else:
                bias = mask
        elif seen is not None and (q.backend.is_traced(q.primitive) or cache.position.ndim):
            # The cache holds only what was appended, so a bias is enough: a mask would zero keys and values first.
            seen, bias = None, where(seen, 0.0, -math.inf)
        return self._attend(q, key, value, seen, causal, bias), cache

    def _rotate(self, query: Tensor, key: Tensor, positions: Tensor[Any, Any, Int] | None = None) -> list[Tensor]:
        """Queries and keys with their rotary positions; by default these are 0 to n - 1."""
        return [query, key] if self.rotary is None else [self.rotary(x, positions) for x in (query, key)]

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor[Any, Any, Any] | None,
        causal: bool,
        bias: Tensor | None = None,
    ) -> Tensor:
        rate = self.dropout if self.dropout and self.is_training(query) else 0.0
        sinks = None if self.sinks is None else self.sinks.val()
        y = attention(
            query, key, value,
            mask=mask, bias=bias, causal=causal, scale=self.scale, dropout=rate, cap=self.cap, sinks=sinks,
        ).swapaxes(-3, -2)  # fmt: skip
        return self.out(y.reshape((*y.shape[:-2], self.n_heads * self.d_head)))

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        """Project query, key and value from [..., n, d_model] to [..., heads, n, d_head]."""
        layers = [self.query, self.key, self.value]
        if key is query and value is query:
            projected = linear_each(layers, query)
        else:
            projected = [layer(x) for layer, x in zip(layers, (query, key, value), strict=True)]
        d, norms = self.d_head, (self.query_norm, self.key_norm, None)
        heads: list[Tensor] = []
        for y, norm in zip(projected, norms, strict=True):
            if norm is not None and norm.shape != (d,):
                y = norm(y)
            y = y.reshape((*y.shape[:-1], y.shape[-1] // d, d))
            heads.append((norm(y) if norm is not None and norm.shape == (d,) else y).swapaxes(-3, -2))
        return heads

    def _within(self, n: int, m: int, mask: Tensor[Any, Any, Any] | None, device: Device) -> Any:
        """The mask of the tokens in the window, and of a given mask."""
        assert self.window is not None
        if max(n, m) <= self.window:
            return mask
        distance = arange(n, device=device).expand_dims(-1) - arange(m, device=device)
        near = distance < self.window if self.causal else distance.abs() <= self.window
        return _both(mask, near)


def _for_heads(positions: Tensor[Any, Any, Int] | None) -> Tensor[Any, Any, Int] | None:
    """Positions [n] or [..., n], to broadcast to [..., heads, n]."""
    return positions if positions is None or positions.ndim == 1 else positions.expand_dims(-2)


def _both(mask: Tensor[Any, Any, Any] | None, seen: Tensor[Any, Any, Bool]) -> Tensor[Any, Any, Any]:
    """A mask, Bool or added to the scores, where `seen` is true."""
    if mask is None:
        return seen
    return mask & seen if mask.kind is Bool else where(seen, mask, -math.inf)


def _check(d_model: int, n_heads: int, groups: int, d_head: int | None, dropout: float) -> None:
    if min(d_model, n_heads, groups, 1 if d_head is None else d_head) < 1:
        raise ConfigError(
            f"MultiHeadAttention: sizes must be at least 1, got d_model={d_model}, n_heads={n_heads}, "
            f"n_kv_heads={groups}, d_head={d_head}"
        )
    if d_head is None and d_model % n_heads:
        raise ConfigError(
            f"MultiHeadAttention: d_model={d_model} is not divisible by {n_heads} heads; "
            "choose another n_heads, or give d_head"
        )
    if n_heads % groups:
        raise ConfigError(f"MultiHeadAttention: {n_heads} heads are not divisible by n_kv_heads={groups}")
    if not 0.0 <= dropout <= 1.0:
        raise ConfigError(f"MultiHeadAttention: dropout must be between 0 and 1, got {dropout}")


class MultiHeadAttentionConfig(config_of(MultiHeadAttention)):
    """Hyper-parameters of `MultiHeadAttention`."""

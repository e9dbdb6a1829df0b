"""Multi-head latent attention."""

from __future__ import annotations

import math
from typing import Any

from phlox.backend import DeviceLike, Int
from phlox.config import config_of
from phlox.errors import ConfigError
from phlox.module import Param
from phlox.nn.attention import attention
from phlox.nn.initializer import Initializer, XavierUniform, Zeros
from phlox.nn.linear import Linear
from phlox.nn.multi_head_attention import MultiHeadAttention
from phlox.nn.norm import RmsNorm
from phlox.nn.rotary import RotaryEncodingConfig
from phlox.tensor import Tensor, concat

__all__ = ["LatentAttention", "LatentAttentionConfig"]


class LatentAttention(MultiHeadAttention):
    """Multi-head latent attention (DeepSeek-V2, 2024): [..., n, d_model] to [..., n, d_model].

    Keys and values of all heads are linear maps of one latent of each token, beside which keys have a part with rotary
    positions, the same for all heads. A cache holds only these two: as its value the latent [batch, 1, capacity,
    kv_rank], as its key the rotated part [batch, 1, capacity, d_rotary].

    Args:
        d_model, n_heads: the width of input and output, and the number of heads.
        kv_rank: the width of the latent of keys and values, which is normalized.
        d_content, d_rotary: the widths of the parts of queries and keys without and with positions.
        d_value: the width of the values of a head.
        q_rank: the width of a normalized latent of queries; by default queries are maps of the input.
        bias: whether the maps to latents and the last one have a bias.
        dropout, causal, scale, initializer, out_initializer, device: as in `MultiHeadAttention`; the scale is by
            default 1 / sqrt(d_content + d_rotary).
        rotary: the encoding of positions, such as `RotaryEncodingConfig(d_rotary)`; by default none.

    >>> import phlox as px
    >>> layer = LatentAttention(8, 2, kv_rank=4, d_content=3, d_rotary=2, d_value=5, causal=True)
    >>> layer(px.ones((3, 5, 8))).shape
    (3, 5, 8)
    >>> cache = layer.init_cache(3, capacity=5)
    >>> cache.key.shape, cache.value.shape
    ((3, 1, 5, 2), (3, 1, 5, 4))
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        kv_rank: int,
        d_content: int,
        d_rotary: int,
        d_value: int,
        q_rank: int | None = None,
        bias: bool = False,
        dropout: float = 0.0,
        causal: bool = False,
        rotary: RotaryEncodingConfig | None = None,
        scale: float | None = None,
        initializer: Initializer = XavierUniform(),  # noqa: B008  (configs are immutable)
        out_initializer: Initializer | None = None,
        device: DeviceLike | None = None,
    ) -> None:
        if min(d_model, n_heads, kv_rank, d_content, d_rotary, d_value, q_rank or 1) < 1:
            raise ConfigError(f"LatentAttention: all sizes must be at least 1, got {kv_rank=}, {d_content=}, ...")
        if rotary is not None and rotary.d_head != d_rotary:
            raise ConfigError(f"LatentAttention: rotary must be RotaryEncodingConfig({d_rotary}), got {rotary!r}")

        def linear(d_input: int, d_output: int, bias: bool, initializer: Initializer = initializer) -> Linear:
            return Linear(
                d_input, d_output, bias=bias, initializer=initializer, bias_initializer=Zeros(), device=device
            )

        self.n_heads, self.n_kv_heads, self.d_head = n_heads, 1, d_value
        self.d_content, self.d_rotary, self.kv_rank = d_content, d_rotary, kv_rank
        self.dropout, self.causal, self.window, self.cap, self.sinks = dropout, causal, None, None, None
        self.scale = 1.0 / math.sqrt(d_content + d_rotary) if scale is None else scale
        has_latent = q_rank is not None
        self.query_down = linear(d_model, q_rank, bias) if has_latent else None
        self.query_norm = RmsNorm(q_rank, device=device) if has_latent else None
        self.query = linear(q_rank or d_model, n_heads * (d_content + d_rotary), False)
        self.key_value_down = linear(d_model, kv_rank + d_rotary, bias)
        self.key_value_norm = RmsNorm(kv_rank, device=device)
        self.key_value_up = linear(kv_rank, n_heads * (d_content + d_value), False)
        self.out = linear(n_heads * d_value, d_model, bias, out_initializer or initializer)
        self.rotary = None if rotary is None else rotary.init()

    def _cached_widths(self) -> tuple[int, int]:
        return self.d_rotary, self.kv_rank

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        """Queries [..., n_heads, n, d_content + d_rotary], rotary parts of keys [..., 1, n, d_rotary] and latents."""
        if self.query_down is not None and self.query_norm is not None:
            query = self.query_norm(self.query_down(query))
        q = self.query(query)
        q = q.reshape((*q.shape[:-1], self.n_heads, self.d_content + self.d_rotary)).swapaxes(-3, -2)
        latent, rotary = self.key_value_down(key).split([self.kv_rank, self.d_rotary], -1)
        return [q, rotary.expand_dims(-3), self.key_value_norm(latent).expand_dims(-3)]

    def _rotate(self, query: Tensor, key: Tensor, positions: Tensor[Any, Any, Int] | None = None) -> list[Tensor]:
        if self.rotary is None:
            return [query, key]
        content, rotary = query.split([self.d_content, self.d_rotary], -1)
        return [concat([content, self.rotary(rotary, positions)], -1), self.rotary(key, positions)]

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
        options: dict[str, Any] = {
            "mask": mask, "bias": bias, "causal": causal, "scale": self.scale, "dropout": rate,
        }  # fmt: skip
        heads, d = self.n_heads, self.d_content + self.d_head
        if query.shape[-2] == 1 and type(self.key_value_up.weight) is Param:
            # One token attends to the latents themselves: expanding those of all tokens would take longer.
            up = self.key_value_up.weight.val().reshape((self.kv_rank, heads, d)).swapaxes(0, 1)
            content, rotary = query.split([self.d_content, self.d_rotary], -1)
            query = concat([content @ up[..., : self.d_content].mT, rotary], -1)
            y = attention(query, concat([value, key], -1), value, **options) @ up[..., self.d_content :]
        else:
            m = value.shape[-2]
            expanded = self.key_value_up(value).reshape((*value.shape[:-3], m, heads, d)).swapaxes(-3, -2)
            content, values = expanded.split([self.d_content, self.d_head], -1)
            keys = concat([content, key.broadcast_to((*content.shape[:-1], self.d_rotary))], -1)
            y = attention(query, keys, values, **options)
        y = y.swapaxes(-3, -2)
        return self.out(y.reshape((*y.shape[:-2], heads * self.d_head)))


class LatentAttentionConfig(config_of(LatentAttention)):
    """Hyper-parameters of `LatentAttention`."""

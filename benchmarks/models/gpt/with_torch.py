"""The transformer in PyTorch: one product for queries, keys and values, and its fused attention."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.models import gpt


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, sizes: gpt.Sizes) -> None:
        super().__init__()
        self.heads, self.dropout = sizes.heads, sizes.dropout
        self.qkv = nn.Linear(sizes.width, 3 * sizes.width)
        self.out = nn.Linear(sizes.width, sizes.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, n, width = x.shape
        q, k, v = self.qkv(x).view(batch, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        rate = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=rate, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, n, width))


class Block(nn.Module):
    """Attention and an MLP."""

    def __init__(self, sizes: gpt.Sizes) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(sizes.width, eps=gpt.EPSILON)
        self.attention = Attention(sizes)
        self.norm_2 = nn.LayerNorm(sizes.width, eps=gpt.EPSILON)
        self.up = nn.Linear(sizes.width, 4 * sizes.width)
        self.down = nn.Linear(4 * sizes.width, sizes.width)
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.dropout(self.attention(self.norm_1(x)))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh")))


class Gpt(nn.Module):
    """Tokens [batch, n] to logits [batch, n, vocabulary]."""

    def __init__(self, sizes: gpt.Sizes) -> None:
        super().__init__()
        self.tokens = nn.Embedding(sizes.vocabulary, sizes.width)
        self.places = nn.Embedding(sizes.context, sizes.width)
        self.dropout = nn.Dropout(sizes.dropout)
        self.blocks = nn.Sequential(*[Block(sizes) for _ in range(sizes.layers)])
        self.norm = nn.LayerNorm(sizes.width, eps=gpt.EPSILON)
        self.head = nn.Linear(sizes.width, sizes.vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.tokens(tokens) + self.places(places))
        return self.head(self.norm(self.blocks(x)))


def model(sizes: gpt.Sizes, weights: dict[str, Any]) -> Gpt:
    """The model with these weights."""
    state = {"tokens.weight": weights["tokens"], "places.weight": weights["places"], "head.weight": weights["head"].T}
    pairs = {"norm": "norm"}
    for layer in range(sizes.layers):
        pairs |= {f"blocks.{layer}.{name}": f"{layer}.{name}" for name in ("norm_1", "norm_2", "up", "down")}
        pairs |= {f"blocks.{layer}.attention.{name}": f"{layer}.{name}" for name in ("qkv", "out")}
    for theirs, ours in pairs.items():
        state |= {f"{theirs}.weight": weights[ours].T, f"{theirs}.bias": weights[f"{ours}_bias"]}
    net = Gpt(sizes)
    net.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
    return net

"""The language model of LSTMs in PyTorch, on `torch.nn.LSTM`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from benchmarks.models import lstm


class Language(nn.Module):
    """Tokens [batch, n] to logits [batch, n, vocabulary]."""

    def __init__(self, sizes: lstm.Sizes) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.embedding)
        self.lstm = nn.LSTM(sizes.embedding, sizes.width, num_layers=sizes.layers, batch_first=True)
        self.head = nn.Linear(sizes.width, sizes.vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.embedding(tokens))[0])


def model(sizes: lstm.Sizes, weights: dict[str, Any]) -> Language:
    """With these weights; PyTorch's second bias stays zero."""
    state = {
        "embedding.weight": weights["embedding"],
        "head.weight": weights["head"].T,
        "head.bias": weights["head_bias"],
    }
    for layer in range(sizes.layers):
        state[f"lstm.weight_ih_l{layer}"] = weights[f"{layer}.input"].T
        state[f"lstm.weight_hh_l{layer}"] = weights[f"{layer}.hidden"].T
        state[f"lstm.bias_ih_l{layer}"] = weights[f"{layer}.bias"]
        state[f"lstm.bias_hh_l{layer}"] = 0.0 * weights[f"{layer}.bias"]
    net = Language(sizes)
    net.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
    for name, parameter in net.lstm.named_parameters():
        parameter.requires_grad_(not name.startswith("bias_hh"))
    return net

"""Embedding of tokens."""

from __future__ import annotations

from typing import Any

from phlox.backend import DeviceLike, Int
from phlox.config import config_of
from phlox.module import Module, Param
from phlox.nn.initializer import Initializer, Normal
from phlox.tensor import Tensor, functional


class Embedding(Module):
    """A learned vector of width d_model for each of n_entries tokens: Int [...] to Float [..., d_model]."""

    def __init__(
        self,
        n_entries: int,
        d_model: int,
        *,
        initializer: Initializer = Normal(),  # noqa: B008
        device: DeviceLike | None = None,
    ) -> None:
        self.weight = Param.deferred((n_entries, d_model), initializer, device=device)

    def __call__(self, indices: Tensor[Any, Any, Int]) -> Tensor:
        return functional.embedding(self.weight.val(), indices)


class EmbeddingConfig(config_of(Embedding)):
    """Hyper-parameters of `Embedding`."""

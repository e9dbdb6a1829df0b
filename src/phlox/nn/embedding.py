"""Embedding of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from phlox.backend import Device, DeviceLike, Int
from phlox.config import config_of
from phlox.errors import ConfigError
from phlox.module import Module, Param
from phlox.module.reparameterization import computed
from phlox.nn.initializer import Initializer, Normal
from phlox.tensor import Tensor, functional

__all__ = ["Embedding", "EmbeddingConfig"]


class Embedding(Module):
    """A learned vector of width d_model for each of n_entries tokens: Int [...] to Float [..., d_model].

    The entry `padding_index` is initialised to zeros and gets no gradient; a negative one counts from the end. A
    token below zero (such as the code of a missing category) or one that is too large raises `IndexRangeError`.

    >>> import phlox as px
    >>> Embedding(10, 4, padding_index=0)(px.tensor([[0, 3, 9]]))[0, 0].tolist()
    [0.0, 0.0, 0.0, 0.0]
    """

    _phlox_output_axis: ClassVar = 0

    def __init__(
        self,
        n_entries: int,
        d_model: int,
        *,
        padding_index: int | None = None,
        initializer: Initializer = Normal(),  # noqa: B008
        device: DeviceLike | None = None,
    ) -> None:
        fans = (n_entries, d_model)
        table_initializer: Any = initializer
        if padding_index is not None:
            if not -n_entries <= padding_index < n_entries:
                raise ConfigError(f"Embedding: padding_index {padding_index} is out of range for {n_entries} entries")
            table_initializer = _ZeroRow(initializer, padding_index)
        self.padding_index = padding_index
        self.weight = Param.deferred((n_entries, d_model), table_initializer, fans=fans, device=device)

    def __call__(self, indices: Tensor[Any, Any, Int]) -> Tensor:
        weight = self.weight
        if type(weight) is not Param:
            return computed(weight).embedding(indices, padding_index=self.padding_index)
        return functional.embedding(weight.val(), indices, padding_index=self.padding_index)

    def logits(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x @ weight.T + bias: the head of a model whose weight this is too, x [..., d_model] to [..., n_entries].

        >>> import phlox as px
        >>> Embedding(10, 4).logits(px.ones((2, 4))).shape
        (2, 10)
        """
        weight = self.weight
        if type(weight) is not Param:
            return computed(weight).linear_transposed(x, bias)
        return functional.linear(x, weight.val().T, bias)


@dataclass(frozen=True, slots=True)
class _ZeroRow:
    """An initializer, except that one row is zeros."""

    initializer: Initializer
    row: int

    def __call__(self, shape: tuple[int, ...], fans: tuple[int, int], device: Device) -> Tensor[Any, Any, Any]:
        return self.initializer(shape, fans, device).at[self.row].set(0.0)


class EmbeddingConfig(config_of(Embedding)):
    """Hyper-parameters of `Embedding`."""

"""DoRA: low-rank adapters that change direction and length apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from phlox.errors import ModuleError
from phlox.module import Module, Param
from phlox.module.reparameterization import Site
from phlox.module.select import Selector
from phlox.nn.reparameterizations.lora import LoraFactors, linear_by, with_factors
from phlox.nn.reparameterizations.weight_norm import norm_of
from phlox.tensor import Tensor

M = TypeVar("M", bound=Module)


class DoraFactors(LoraFactors):
    """The factors of `LoraFactors`, and the length of the weight for each output."""

    scales_base: ClassVar = True

    def __init__(self, site: Site, *, values: Mapping[str, Tensor] | None = None, **options: Any) -> None:
        if site.is_stack:
            raise ModuleError("DoRA does not support the weights of experts; use phlox.lora for them")
        super().__init__(site, values=values, **options)
        self.axis = 1 if len(site.param.shape) == 2 else site.output_axis  # of an embedding too, as PEFT
        if values is None:
            base = site.param.val().detach()
            magnitude = self._norm(base + self.product().detach()).reshape(base.shape[self.axis])
        else:
            magnitude = values["magnitude"]
        self.magnitude = Param(magnitude)

    def delta(self, base: Tensor) -> Tensor:
        """See `LoraFactors.delta`."""
        directed = base + self.product()
        return (
            directed * self._gain(directed).reshape(tuple([-1 if n == self.axis else 1 for n in range(base.ndim)]))
            - base
        )

    def of_linear(self, x: Tensor, product: Tensor, base: Any) -> Tensor:
        """See `LoraFactors.of_linear`."""
        dropped = self.dropped(x)
        if dropped is not x:
            product = linear_by(base, dropped, None)
        gain = self._gain(base.val() + self.product())
        return product * (gain - 1.0) + (dropped @ self.A.val()) @ self.B.val() * (gain * self.scale)

    def of_rows(self, low: Tensor, rows: Tensor, base: Any) -> Tensor:
        """See `LoraFactors.of_rows`."""
        gain = self._gain(base.val() + self.product())
        return rows * (gain - 1.0) + low * gain

    def _gain(self, directed: Tensor) -> Tensor:
        """The length for each output over that of W + A B, which counts as a constant, as in the paper."""
        return self.magnitude.val() / self._norm(directed.detach()).reshape(self.magnitude.shape)

    def _norm(self, weight: Tensor) -> Tensor:
        return norm_of(weight, self.axis)


def dora(
    model: M,
    which: Selector,
    *,
    rank: int = 8,
    alpha: float | None = None,
    dropout: float = 0.0,
    rank_stabilized: bool = False,
    name: str = "default",
    train: Selector | None = None,
) -> M:
    """As `lora`, but the length of the weight for each output is trained apart from its direction (Liu et al. 2024).

    weight = magnitude * (base + scale A B) / |base + scale A B|, where the norm counts as a constant.

    >>> import phlox as px
    >>> model = px.dora(px.nn.Linear(64, 32).init(0), "weight", rank=4)
    >>> [path for path, param in model.named_params() if param.trained]
    ['weight.lora.default.A', 'weight.lora.default.B', 'weight.lora.default.magnitude']
    """
    options = {"rank": rank, "alpha": alpha, "dropout": dropout, "rank_stabilized": rank_stabilized}
    return with_factors(model, which, DoraFactors, options, name, train)

"""Quantisation-aware training: weights that are rounded in each step, as they will be."""

from __future__ import annotations

from functools import partial
from typing import Any, TypeVar, cast

from phlox.module import Module
from phlox.module.reparameterization import Reparameterization, Rule, Site, reparameterize
from phlox.module.select import Selector
from phlox.quantization.schemes import SchemeName, as_matrix, packed_matrix, scheme_of
from phlox.tensor import Tensor

M = TypeVar("M", bound=Module)


class FakeQuantized(Reparameterization):
    """The value that a weight has when it is packed; gradients pass as if it were not rounded.

    This is the straight-through estimator of Bengio et al. 2013. See `phlox.fake_quantize`.
    """

    def __init__(self, param: Any, scheme: SchemeName, group: int | None, symmetric: bool, axis: int) -> None:
        scheme_of(scheme, group, symmetric)
        self.base = param
        self.scheme, self.group, self.symmetric, self.axis = scheme, group, symmetric, axis

    @classmethod
    def at(cls, site: Site, **options: Any) -> FakeQuantized:
        """See `Reparameterization.at`."""
        return cls(site.param, axis=site.output_axis, **options)

    def val(self) -> Tensor:
        """See `Reparameterization.val`."""
        base = self.base.val()
        value = base.detach()
        scheme, group = scheme_of(self.scheme, self.group, self.symmetric)
        packed = packed_matrix(as_matrix(value, self.axis), scheme, group, self.symmetric)
        return base + (packed.as_weight(value.shape, self.axis).val() - value)


def fake_quantize(
    model: M, which: Selector, scheme: SchemeName = "int8", *, group: int | None = None, symmetric: bool = True
) -> M:
    """A view of the model that computes with rounded weights, and trains the weights themselves.

    Train the result; then `phlox.quantize` with the same options packs what it computed with, and `phlox.merge` makes
    plain weights of these values. For the arguments see `phlox.quantize`.

    >>> import phlox as px
    >>> model = px.fake_quantize(px.nn.Linear(64, 32).init(0), "weight", "int4")
    >>> packed = px.quantize(model, "weight", "int4")
    >>> bool((model.weight.val() == packed.weight.val()).all())
    True
    """
    options: dict[str, Any] = {"scheme": scheme, "group": group, "symmetric": symmetric}
    return reparameterize(model, which, cast("Rule", partial(FakeQuantized, **options)))

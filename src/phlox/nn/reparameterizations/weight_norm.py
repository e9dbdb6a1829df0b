"""Weight normalization."""

from __future__ import annotations

from typing import Any

from phlox.module import Param
from phlox.module.reparameterization import Reparameterization, Site
from phlox.tensor import Tensor


def norm_of(weight: Tensor, axis: int | None) -> Tensor:
    """The norm of a weight's slice for each index along `axis`, or of the whole; its axes are kept."""
    axes = tuple([n for n in range(weight.ndim) if n != axis])
    return (weight * weight).sum(axis=axes, keepdims=True).sqrt()


class WeightNorm(Reparameterization):
    """weight = magnitude * base / |base|: its length and its direction are trained apart (Salimans, Kingma 2016).

    Args:
        param: the parameter; the value does not change.
        axis: each index along this axis has a length of its own; None is one length for all. By default the axis of the
            outputs, for which a matrix in the layout of `Linear` is assumed if it is not known.

    >>> import phlox as px
    >>> layer = px.nn.Linear(2, 3).init(0)
    >>> normed = px.reparameterize(layer, "weight", WeightNorm)
    >>> normed.weight.magnitude.shape, bool((normed.weight.val() - layer.weight.val()).abs().max() < 1e-6)
    ((1, 3), True)
    """

    def __init__(self, param: Any, *, axis: int | None = 1) -> None:
        self.base = param
        self.axis = axis
        self.magnitude = Param(norm_of(param.val().detach(), axis))

    @classmethod
    def at(cls, site: Site, **options: Any) -> WeightNorm:
        """See `Reparameterization.at`."""
        options.setdefault("axis", site.output_axis)
        return cls(site.param, **options)

    def val(self) -> Tensor:
        """See `Reparameterization.val`."""
        base = self.base.val()
        return base * (self.magnitude.val() / norm_of(base, self.axis))

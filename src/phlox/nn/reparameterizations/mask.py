"""Pruning: a mask that keeps some elements of a parameter at zero."""

from __future__ import annotations

import math
from typing import Any, cast

from phlox.backend import Bool
from phlox.errors import ModuleError
from phlox.module import Param
from phlox.module.reparameterization import Reparameterization, Site
from phlox.tensor import Tensor, tensor, where


class Mask(Reparameterization):
    """weight = base where the mask is true, elsewhere 0. The mask is saved, and is not trained.

    Give one of the three. Elements are chosen by their magnitude when the mask is made; make it again later for another
    schedule of pruning.

    Args:
        param: the parameter.
        mask: true for the elements to keep: a Bool tensor, or an array of NumPy, of the parameter's shape.
        sparsity: the share of elements to prune, from 0 to 1: those of the smallest magnitudes.
        keep: (n, m): of each m elements in a row along the inputs, keep the n largest; (2, 4) is what some GPUs
            multiply faster.
        axis: the axis of the outputs, for `keep`.

    Raises `ModuleError` if not just one is given, and for values that do not fit the parameter.

    >>> from functools import partial
    >>> import phlox as px
    >>> pruned = px.reparameterize(px.nn.Linear(8, 4).init(0), "weight", partial(Mask, sparsity=0.75))
    >>> (pruned.weight.val() != 0).int().sum().item()
    8
    """

    def __init__(
        self,
        param: Any,
        *,
        mask: Any = None,
        sparsity: float | None = None,
        keep: tuple[int, int] | None = None,
        axis: int = 1,
    ) -> None:
        if (mask is None) + (sparsity is None) + (keep is None) != 2:
            raise ModuleError("Mask: give just one of mask, sparsity and keep")
        self.base = param
        if mask is not None:
            kept: Tensor[Any, Any, Any] = (
                cast("Any", mask) if isinstance(mask, Tensor) else tensor(mask, device=param.device)
            )
            if kept.kind is not Bool or kept.shape != param.shape:
                raise ModuleError(
                    f"Mask: the mask must be Bool of the parameter's shape {param.shape}, got {kept.kind.__name__} of "
                    f"shape {kept.shape}"
                )
        elif sparsity is not None:
            kept = _largest(param.val().detach().abs(), sparsity)
        else:
            assert keep is not None
            kept = _largest_of_each(param.val().detach().abs(), keep, axis)
        self.mask = Param(kept, trained=False)

    @classmethod
    def at(cls, site: Site, **options: Any) -> Mask:
        """See `Reparameterization.at`."""
        options.setdefault("axis", site.output_axis)
        return cls(site.param, **options)

    def val(self) -> Tensor:
        """See `Reparameterization.val`."""
        return where(self.mask.val(), self.base.val(), 0.0)


def _ranks(x: Tensor) -> Tensor[Any, Any, Any]:
    """The position of each element of the last axis in falling order; of equal ones the first comes first."""
    return x.argsort(axis=-1, descending=True).argsort(axis=-1)


def _largest(x: Tensor, sparsity: float) -> Tensor[Any, Any, Bool]:
    if not 0.0 <= sparsity <= 1.0:
        raise ModuleError(f"Mask: sparsity must be between 0 and 1, got {sparsity}")
    count = math.prod(x.shape)
    return (_ranks(x.reshape(count)) < count - round(sparsity * count)).reshape(x.shape)


def _largest_of_each(x: Tensor, keep: tuple[int, int], axis: int) -> Tensor[Any, Any, Bool]:
    n, m = keep
    rows = x.moveaxis(axis, 0)
    size = math.prod(rows.shape[1:])
    if not 0 <= n <= m or m < 1 or size % m:
        raise ModuleError(f"Mask: keep=({n}, {m}) does not fit a parameter with {size} inputs")
    kept = _ranks(rows.reshape(rows.shape[0], size // m, m)) < n
    return kept.reshape(rows.shape).moveaxis(0, axis)

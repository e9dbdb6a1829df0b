"""Matrices with orthonormal rows or columns."""

from __future__ import annotations

import math
from typing import Any

from phlox.module.reparameterization import Reparameterization, Site
from phlox.tensor import Tensor, linalg


class Orthogonal(Reparameterization):
    """The factor Q of base = QR, with a positive diagonal of R: orthonormal columns, or rows if it is wide.

    A base that is orthogonal already (see `phlox.nn.Orthogonal`, the initializer) is its own value. Weights with more
    axes are matrices of `axis` by all others.

    Args:
        param: the parameter, with at least two axes.
        axis: the axis that is the rows of the matrix. By default that of the outputs.

    >>> import phlox as px
    >>> layer = px.reparameterize(px.nn.Linear(4, 3).init(0), "weight", Orthogonal)
    >>> w = layer.weight.val()
    >>> bool((w.T @ w - px.eye(3)).abs().max() < 1e-5)
    True
    """

    def __init__(self, param: Any, *, axis: int = 1) -> None:
        self.base = param
        self.axis = axis

    @classmethod
    def at(cls, site: Site, **options: Any) -> Orthogonal:
        """See `Reparameterization.at`."""
        options.setdefault("axis", site.output_axis)
        return cls(site.param, **options)

    def val(self) -> Tensor:
        """See `Reparameterization.val`."""
        base = self.base.val().moveaxis(self.axis, 0)
        rows = base.shape[0]
        matrix = base.reshape(rows, math.prod(base.shape[1:]))
        is_wide = matrix.shape[0] < matrix.shape[1]
        q, r = linalg.qr(matrix.T if is_wide else matrix)
        signs = r.diagonal().detach().sign()
        q = q * (signs + (signs == 0.0).float())  # as if R had a positive diagonal: Q depends smoothly on the base
        return (q.T if is_wide else q).reshape(base.shape).moveaxis(0, self.axis)

"""Two factors of low rank in the place of a matrix."""

from __future__ import annotations

from typing import Any

from phlox.errors import ModuleError
from phlox.module import Param
from phlox.module.reparameterization import Reparameterization, origin_of
from phlox.tensor import Tensor, functional, linalg


class LowRank(Reparameterization):
    """weight = base @ right, of a lower rank: fewer parameters, and products with one factor after the other.

    Args:
        param: a matrix. The factors are the best approximation of this rank, by its singular values.
        rank: at most the smaller size of the matrix.

    Raises `ModuleError` for a parameter that is not a matrix, and for a rank that does not fit.

    >>> from functools import partial
    >>> import phlox as px
    >>> model = px.reparameterize(px.nn.Linear(8, 6).init(0), "weight", partial(LowRank, rank=2))
    >>> [(path, param.shape) for path, param in model.named_params()]
    [('weight.base', (8, 2)), ('weight.right', (2, 6)), ('bias', (6,))]
    """

    def __init__(self, param: Any, *, rank: int) -> None:
        check_rank("LowRank", param.shape, rank)
        u, s, v = linalg.svd(param.val().detach(), full_matrices=False)
        root = s[:rank].sqrt()
        self.base = origin_of(param).another(u[:, :rank] * root)
        self.right = Param(v[:rank] * root.expand_dims(-1), trained=origin_of(param).trained)

    @property
    def shape(self) -> tuple[int, ...]:
        """See `Reparameterization.shape`."""
        return self.base.shape[0], self.right.shape[1]

    def val(self) -> Tensor:
        """See `Reparameterization.val`."""
        return self.base.val() @ self.right.val()

    def linear(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """See `Reparameterization.linear`."""
        return functional.linear(x @ self.base.val(), self.right.val(), bias)

    def linear_transposed(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """See `Reparameterization.linear_transposed`."""
        return functional.linear(x @ self.right.val().T, self.base.val().T, bias)

    def embedding(self, indices: Tensor[Any, Any, Any], *, padding_index: int | None = None) -> Tensor:
        """See `Reparameterization.embedding`."""
        return functional.embedding(self.base.val(), indices, padding_index=padding_index) @ self.right.val()


def check_rank(name: str, shape: tuple[int, ...], rank: int) -> None:
    """`ModuleError` for a shape without a matrix, and for a rank that does not fit it."""
    if len(shape) != 2:
        raise ModuleError(f"{name}: factors are for matrices, and this parameter has the shape {shape}")
    if isinstance(rank, bool) or not isinstance(rank, int) or not 1 <= rank <= min(shape):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ModuleError(
            f"{name}: rank must be between 1 and {min(shape)} for a parameter of shape {shape}, got {rank}"
        )

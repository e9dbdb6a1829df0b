"""`GradientsParams`: gradients by parameter."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator
from typing import Any

from phlox.module.module import Module
from phlox.module.param import ParamId
from phlox.tensor import Gradients, Tensor


class GradientsParams:
    """The gradients of a module's parameters, on the inner backend, by parameter id.

    >>> import phlox as px
    >>> from phlox import nn, optim
    >>> from phlox.backend import Autodiff, NumPy
    >>> model = nn.Linear(2, 1, device=Autodiff(NumPy()).device())
    >>> x = px.ones((4, 2), device=Autodiff(NumPy()))
    >>> len(optim.GradientsParams.from_grads(model(x).sum().backward(), model))
    2
    """

    __slots__ = ("_tensors",)

    def __init__(self, tensors: dict[ParamId, Tensor[Any, Any, Any]]) -> None:
        self._tensors = tensors

    @classmethod
    def from_grads(cls, grads: Gradients, module: Module) -> GradientsParams:
        """The gradients of those parameters of `module` that the differentiated tensor depended on."""
        found: dict[ParamId, Tensor[Any, Any, Any]] = {}
        for param in module.params():
            # Of whichever backend: a tape may go across several.
            if param.trained and param.is_initialized and param.backend.differentiates:
                gradient = param.val().grad(grads)
                if gradient is not None:
                    found[param.id] = gradient
        return cls(found)

    def get(self, id: ParamId) -> Tensor[Any, Any, Any] | None:
        """The gradient of a parameter, or None."""
        return self._tensors.get(id)

    def items(self) -> ItemsView[ParamId, Tensor[Any, Any, Any]]:
        """Ids and gradients."""
        return self._tensors.items()

    def __iter__(self) -> Iterator[ParamId]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        return f"GradientsParams(of {len(self)} parameters)"

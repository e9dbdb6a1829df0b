"""The base class of initializers."""

from __future__ import annotations

from typing import Any, ClassVar

from phlox.backend import Device
from phlox.config import Config
from phlox.tensor import Tensor


class Initializer(Config):
    """Base class of initializers, which create the first values of parameters. To write your own, subclass it.

    >>> import phlox as px
    >>> class Alternating(Initializer):
    ...     value: float = 1.0
    ...
    ...     def __call__(self, shape, fans, device):
    ...         return (px.arange(shape[-1], device=device) % 2).float().broadcast_to(shape) * self.value
    >>> px.nn.Linear(1, 4, bias=False, initializer=Alternating()).weight.val().tolist()
    [[0.0, 1.0, 0.0, 1.0]]
    """

    of_weights: ClassVar[bool] = False
    """Does it work only for weights? The bias of a layer is then initialised to zeros."""

    def __call__(self, shape: tuple[int, ...], fans: tuple[int, int], device: Device) -> Tensor[Any, Any, Any]:
        """A tensor of `shape` on `device`; `fans` is (fan_in, fan_out), the connections into and out of a unit."""
        raise NotImplementedError

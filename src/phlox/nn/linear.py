"""A dense layer."""

from __future__ import annotations

from phlox.backend import DeviceLike
from phlox.config import config_of
from phlox.module import Module, Param
from phlox.nn.initializer import Initializer, KaimingUniform, bias_initializer_of
from phlox.tensor import Tensor, functional


class Linear(Module):
    """y = x @ weight + bias, for x [..., d_input], weight [d_input, d_output] and bias [d_output].

    The bias begins as the weight does unless it has an initializer of its own; as zeros, if the weight's is for
    weights alone (`Orthogonal`).

    >>> import phlox as px
    >>> Linear(3, 2)(px.ones((5, 3))).shape
    (5, 2)
    """

    def __init__(
        self,
        d_input: int,
        d_output: int,
        *,
        bias: bool = True,
        initializer: Initializer = KaimingUniform(),  # noqa: B008  (configs are immutable)
        bias_initializer: Initializer | None = None,
        device: DeviceLike | None = None,
    ) -> None:
        fans = (d_input, d_output)
        bias_initializer = bias_initializer_of(initializer, bias_initializer)
        self.weight = Param.deferred((d_input, d_output), initializer, fans=fans, device=device)
        self.bias = Param.deferred((d_output,), bias_initializer, fans=fans, device=device) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight.val(), None if self.bias is None else self.bias.val())


class LinearConfig(config_of(Linear)):
    """Hyper-parameters of `Linear`."""

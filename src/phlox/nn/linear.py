"""The dense (fully connected) layer."""

from __future__ import annotations

from collections.abc import Sequence

from phlox.backend import DeviceLike
from phlox.backend.contract.backend import engine_of
from phlox.config import config_of
from phlox.module import Module, Param
from phlox.module.reparameterization import computed
from phlox.nn.initializer import Initializer, KaimingUniform, bias_initializer_of
from phlox.tensor import Tensor, concat, functional

__all__ = ["Linear", "LinearConfig"]


class Linear(Module):
    """y = x @ weight + bias, for x [..., d_input], weight [d_input, d_output] and bias [d_output].

    Args:
        d_input: the size of the last axis of x.
        d_output: the size of the last axis of y.
        bias: whether there is a bias.
        initializer: the initializer of the weight.
        bias_initializer: the initializer of the bias; by default that of the weight, or zeros if that works only for
            weights (`Orthogonal`).
        device: the device of the parameters.

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
        weight = self.weight
        if weight.__class__ is Param:
            return functional.linear(x, weight.val(), None if self.bias is None else self.bias.val())
        return computed(weight).linear(x, None if self.bias is None else self.bias.val())


def linear_each(layers: Sequence[Module], x: Tensor) -> list[Tensor]:
    """The results of several layers on one x. Several `Linear` use one fused product where that is faster.

    >>> import phlox as px
    >>> [y.shape for y in linear_each([Linear(3, 2), Linear(3, 4)], px.ones((5, 3)))]
    [(5, 2), (5, 4)]
    """
    linears = [layer for layer in layers if type(layer) is Linear and type(layer.weight) is Param]
    if len(linears) < len(layers) or not isinstance(x, Tensor) or not engine_of(x.backend).partitions:  # pyright: ignore[reportUnnecessaryIsInstance]
        return [layer(x) for layer in layers]
    weights = [layer.weight.val() for layer in linears]
    biases = [layer.bias.val() for layer in linears if layer.bias is not None]
    can_fuse = len(biases) in (0, len(layers)) and bool(layers)
    if not can_fuse or not weights[0].backend.prefers_fused_matmul([param.primitive for param in (*weights, *biases)]):
        return [layer(x) for layer in layers]
    y = functional.linear(x, concat(weights, 1), concat(biases, 0) if biases else None)
    return y.split([weight.shape[1] for weight in weights], -1)


class LinearConfig(config_of(Linear)):
    """Hyper-parameters of `Linear`."""

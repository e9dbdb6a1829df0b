"""IA3: adapters that scale inputs or outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from phlox.errors import ModuleError
from phlox.module import Module, Param
from phlox.module.reparameterization import Site, Sites
from phlox.module.select import Selector
from phlox.nn.reparameterizations.adapters import Adapted, adapted
from phlox.nn.reparameterizations.lora import linear_by
from phlox.tensor import Tensor, ones

M = TypeVar("M", bound=Module)


class Ia3(Adapted):
    """value = base * scale, one factor for each index along `axis` (Liu et al. 2022); see `phlox.ia3`."""

    ia3: dict[str, Param]

    def __init__(self, base: Any, name: str, scale: Param, axis: int) -> None:
        self._start(base, name)
        self.ia3 = {name: scale}
        self.axis = axis

    @property
    def adapters(self) -> dict[str, Any]:
        """See `Adapted.adapters`."""
        return self.ia3

    def val(self) -> Tensor:
        """See `Reparameterization.val`."""
        value = self.base.val()
        shape = tuple([-1 if n == self.axis else 1 for n in range(value.ndim)])
        for scale, weight in self.weights(None):
            value = value * _weighted(scale.val(), weight).reshape(shape)
        return value

    def linear(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """See `Reparameterization.linear`."""
        scales = [_weighted(scale.val(), weight) for scale, weight in self.weights(x)]
        if self.axis == 0:
            for scale in scales:
                x = x * scale
            return linear_by(self.base, x, bias)
        y = linear_by(self.base, x, None)
        for scale in scales:
            y = y * scale
        return y if bias is None else y + bias


def _weighted(scale: Tensor, weight: Any) -> Tensor:
    """The scale for a weight of one, and 1 for a weight of zero."""
    return scale if isinstance(weight, float) and weight == 1.0 else 1.0 + (scale - 1.0) * weight


def ia3(
    model: M,
    outputs: Selector | None = None,
    inputs: Selector | None = None,
    *,
    name: str = "default",
    train: Selector | None = None,
) -> M:
    """A view of the model for fine-tuning, where vectors that scale activations train and everything else is frozen.

    Args:
        model: any module.
        outputs: the weights whose results are scaled, with their biases: keys and values of attention in the paper.
        inputs: the weights whose inputs are scaled: the second layer of a feed-forward network.
        name: the adapter's name.
        train: further parameters that stay trained.

    Raises `ModuleError`, with the path, for a pattern that matches nothing and a name that is there already.

    >>> import phlox as px
    >>> from phlox import nn
    >>> model = px.ia3(nn.Sequential([nn.Linear(4, 6), nn.Linear(6, 2)]).init(0), "layers.0.weight", "layers.1.weight")
    >>> [(path, param.shape) for path, param in model.named_params() if param.trained]
    [('layers.0.weight.ia3.default', (6,)), ('layers.1.weight.ia3.default', (6,))]
    """
    if outputs is None and inputs is None:
        raise ModuleError("ia3: choose weights whose outputs or whose inputs are scaled")
    if outputs is not None:
        model = scaled_outputs(model, Sites(model).select(outputs), name)
    if inputs is not None:

        def by_inputs(site: Site) -> Ia3:
            shape = site.param.shape
            if len(shape) < 2:
                raise ModuleError(f"inputs can be scaled for weights, and this parameter has the shape {shape}")
            axis = 1 - site.output_axis
            return scaled(site, name, axis, Param(ones((shape[axis],), device=site.param.device)))

        model = adapted(model, inputs, name, by_inputs)
    return model if train is None else model.unfreeze(train)


def scaled_outputs(model: M, weights: Mapping[str, Site], name: str) -> M:
    """A view of the model where vectors of ones scale the results of these weights, with their biases."""
    scales: dict[str, tuple[Param, int]] = {}
    present = Sites(model).found
    for path, site in weights.items():
        axis = site.output_axis
        scale = Param(ones((site.param.shape[axis],), device=site.param.device))
        scales[path] = scale, axis
        if (bias := bias_of(path)) in present:
            scales[bias] = scale, 0
    return adapted(
        model, list(scales), name, lambda site: scaled(site, name, scales[site.path][1], scales[site.path][0])
    )


def bias_of(path: str) -> str:
    """The path of the bias that belongs to a weight."""
    return f"{path.rpartition('.')[0]}.bias".removeprefix(".")


def scaled(site: Site, name: str, axis: int, scale: Param) -> Ia3:
    """What stands at a site with a further adapter."""
    if site.is_stack:
        raise ModuleError("IA3 does not support the weights of experts; use phlox.lora for them")
    other = site.param
    if not isinstance(other, Ia3) or other.axis != axis:
        return Ia3(other, name, scale, axis)
    if name in other.ia3:
        raise ModuleError(f"there is an adapter {name!r} already; give this one another name")
    other.ia3 = {**other.ia3, name: scale}
    return other

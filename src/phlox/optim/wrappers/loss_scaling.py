"""Loss scaling: what keeps small gradients from vanishing at f16."""

from __future__ import annotations

import math
from typing import Any

from phlox.backend import DeviceLike, as_device
from phlox.backend.contract.backend import without_autodiff
from phlox.errors import OptimizerError
from phlox.module import GradientsParams, Module, Param
from phlox.module.param import set_together
from phlox.tensor import Tensor, tensor, where


class LossScaler(Module):
    """Multiplies the loss by a number that the gradients just bear, and divides them by it (Micikevicius et al. 2018).

    The scale doubles after `interval` steps whose gradients were finite, and halves at once where they were not; such a
    step is to be left out, as `skip_nonfinite=True` does. f16 needs it, bf16 and f32 do not. It is a module: it may be
    an argument of a compiled step, and its record is like any other's.

    Args:
        initial: the first scale; by default the largest power of two that f16 has, for the loss has it as a gradient.
        interval: of how many good steps it grows.
        growth, backoff: what it is multiplied by when it grows, and when it was too large.
        minimum: what it does not fall below, however many steps are not finite (divided by zero, no gradient would ever
            be finite again); by default the smallest normal number of f16.
        device: where the losses are.

    Raises `OptimizerError` for numbers that make no sense.

    >>> import phlox as px
    >>> from phlox import nn, optim
    >>> from phlox.backend import Autodiff, NumPy
    >>> model = nn.Linear(3, 1, device=Autodiff(NumPy(float="f16")))
    >>> scaler, optimizer = optim.LossScaler(device="numpy"), optim.SgdConfig().init(skip_nonfinite=True)
    >>> x = px.full((2, 3), 1e-4, device=Autodiff(NumPy(float="f16")))
    >>> loss = model(x).mean()
    >>> grads = optim.GradientsParams.from_grads(scaler.scaled(loss).backward(), model)
    >>> grads = scaler.unscaled(grads)
    >>> model = optimizer.step(0.1, model, grads)
    """

    def __init__(
        self,
        initial: float = 32768.0,
        *,
        interval: int = 2000,
        growth: float = 2.0,
        backoff: float = 0.5,
        minimum: float = 2.0**-14,
        device: DeviceLike | None = None,
    ) -> None:
        if not (initial > 0.0 and math.isfinite(initial)):
            raise OptimizerError(f"LossScaler: the initial scale is a finite number above zero, got {initial}")
        if interval < 1 or not growth >= 1.0 or not 0.0 < backoff < 1.0:
            raise OptimizerError(
                f"LossScaler: interval is at least one, growth at least 1, backoff between 0 and 1, got {interval}, "
                f"{growth} and {backoff}"
            )
        if not 0.0 < minimum <= initial:
            raise OptimizerError(f"LossScaler: the minimum lies above zero, up to {initial}, got {minimum}")
        self.interval, self.growth, self.backoff, self.minimum = interval, growth, backoff, minimum
        given = as_device(device)
        place = given.on(without_autodiff(given.backend).full_precision())
        self.scale = Param(tensor(float(initial), device=place), trained=False, full_precision=True)
        self.good_steps = Param(tensor(0, device=place), trained=False)

    def scaled(self, loss: Tensor[Any, Any, Any]) -> Tensor[Any, Any, Any]:
        """The loss times the scale, at full precision: call `backward` on it."""
        wide = loss.to_full_precision()
        return wide * self._scale_for(wide)

    def unscaled(self, grads: GradientsParams) -> GradientsParams:
        """The gradients divided by the scale, at full precision; the scale is set for the next step.

        Where they are not finite, they are left so, for the optimizer to see.
        """
        if not len(grads):
            return grads
        finite = grads.isfinite()
        wide = grads.map(lambda grad: grad.to_full_precision())
        result = wide.map(lambda grad: grad / self._scale_for(grad))
        place = self.scale.device
        self._update(finite if finite.device == place else finite.to_device(place))
        return result

    def _scale_for(self, x: Tensor[Any, Any, Any]) -> Tensor[Any, Any, Any]:
        scale = self.scale.val()
        return scale if scale.device == x.device else scale.to_device(x.device)

    def _update(self, finite: Tensor[Any, Any, Any]) -> None:
        scale, good = self.scale.val(), self.good_steps.val() + 1
        grows = finite & (good >= self.interval)
        grown = where((scale * self.growth).isfinite(), scale * self.growth, scale)
        after = where(finite, where(grows, grown, scale), (scale * self.backoff).maximum(self.minimum))
        set_together([(self.scale, after), (self.good_steps, where(grows | ~finite, good * 0, good))])

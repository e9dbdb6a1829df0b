"""Loss scaling, which keeps small gradients from vanishing at f16."""

from __future__ import annotations

import math
from typing import Self

from phlox.backend import Device, DeviceLike, as_device
from phlox.backend.contract.backend import without_autodiff
from phlox.backend.parallel import same_everywhere
from phlox.errors import OptimizerError
from phlox.module import GradientsParams, Module, Param
from phlox.module.param import set_together
from phlox.optim.simple import AnyTensor
from phlox.tensor import tensor, where


class LossScaler(Module):
    """Scales the loss so that small gradients do not vanish at f16 (Micikevicius et al. 2018).

    The loss is multiplied by a scale, and the gradients are divided by it. The scale doubles after `interval` steps
    with finite gradients. It halves after a step with an infinite or NaN gradient; skip that step, with
    `skip_nonfinite=True` in the optimizer. f16 needs loss scaling; bf16 and f32 do not. The scaler is a module: it can
    be an argument of a compiled step, and is saved like any other.

    Args:
        initial: the first scale; by default the largest power of two in f16, because the scale is the loss's gradient.
        interval: the number of steps with finite gradients after which the scale grows.
        growth, backoff: the factors by which the scale grows and shrinks.
        minimum: the smallest scale; by default the smallest normal number of f16. A scale of zero would make all later
            gradients NaN.
        device: the device of the losses.

    Raises `OptimizerError` if an argument is out of range.

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
        own_device = _device_of_scale(device)
        self.scale = Param(tensor(float(initial), device=own_device), trained=False, full_precision=True)
        self.good_steps = Param(tensor(0, device=own_device), trained=False)

    def to_device(self, device: DeviceLike) -> Self:
        """A scaler of its own for losses on this device, with the same scale: at full precision, and without a tape.

        >>> from phlox import optim
        >>> optim.LossScaler(1024.0).to_device("jax").scale.val().item()
        1024.0
        """
        own_device = _device_of_scale(device)
        return self.map(lambda path, param: param.copy().to_device(own_device))

    def scaled(self, loss: AnyTensor) -> AnyTensor:
        """Multiply the loss by the scale, at full precision; call `backward` on the result."""
        wide = loss.to_full_precision()
        return wide * self._scale_for(wide)

    def unscaled(self, grads: GradientsParams) -> GradientsParams:
        """Divide the gradients by the scale, at full precision, and update the scale for the next step.

        Infinities and NaN stay, so that the optimizer can skip the step.
        """
        if not len(grads):
            return grads
        with same_everywhere(grads.backend):
            finite = grads.isfinite()
            wide = grads.map(lambda grad: grad.to_full_precision())
            result = wide.map(lambda grad: grad / self._scale_for(grad))
        own_device = self.scale.device
        self._update(finite if finite.device == own_device else finite.to_device(own_device))
        return result

    def _scale_for(self, x: AnyTensor) -> AnyTensor:
        scale = self.scale.val()
        return scale if scale.device == x.device else scale.to_device(x.device)

    def _update(self, finite: AnyTensor) -> None:
        scale, good = self.scale.val(), self.good_steps.val() + 1
        grows = finite & (good >= self.interval)
        grown = where((scale * self.growth).isfinite(), scale * self.growth, scale)
        after = where(finite, where(grows, grown, scale), (scale * self.backoff).maximum(self.minimum))
        set_together([(self.scale, after), (self.good_steps, where(grows | ~finite, good * 0, good))])


def _device_of_scale(device: DeviceLike | None) -> Device:
    """The device of a scaler's numbers, for losses on `device`."""
    loss_device = as_device(device)
    return loss_device.on(without_autodiff(loss_device.backend).full_precision())

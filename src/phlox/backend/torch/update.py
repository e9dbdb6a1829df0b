"""Updates of optimizers on PyTorch: its fused kernels, which take all tensors of one device and type at once."""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportPrivateUsage=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from phlox.backend.contract import Backend
from phlox.backend.contract.types import Array
from phlox.backend.contract.update import AdamNumbers, Moved

_FUSED = {
    decoupled: getattr(torch, name)
    for decoupled, name in ((True, "_fused_adamw_"), (False, "_fused_adam_"))
    if hasattr(torch, name)
}


class Update(Backend):
    """See `phlox.backend.contract.update`."""

    def adam_updates(
        self,
        xs: Sequence[Array],
        gs: Sequence[Array],
        ms: Sequence[Array],
        vs: Sequence[Array],
        numbers: Sequence[AdamNumbers],
        own: Sequence[bool],
    ) -> tuple[list[Moved], Callable[[], object]]:
        alike = {number[:6] for number in numbers}
        plain = all(type(x) is torch.Tensor and x.device.type in ("cpu", "cuda") for x in (*xs, *gs))
        if self.float_element not in ("f32", "f64") or len(alike) != 1 or not plain or len(_FUSED) != 2:
            return super().adam_updates(xs, gs, ms, vs, numbers, own)
        lr, beta_1, beta_2, epsilon, decay, decoupled = alike.pop()
        # Times are on the device, one for all parameters that have been stepped as often.
        times = {time: torch.tensor(float(time), device=xs[0].device) for time in {number.time for number in numbers}}
        new_x = [_copied(x) for x in xs]
        new_m, new_v = (
            [one if mine and one.is_contiguous() else _copied(one) for one, mine in zip(moments, own, strict=True)]
            for moments in (ms, vs)
        )
        run: Callable[[], Any] = partial(
            _FUSED[decoupled],
            new_x,
            [g.contiguous() for g in gs],
            new_m,
            new_v,
            [],
            [times[number.time] for number in numbers],
            lr=lr,
            beta1=beta_1,
            beta2=beta_2,
            weight_decay=decay,
            eps=epsilon,
            amsgrad=False,
            maximize=False,
        )
        return list(zip(new_x, new_m, new_v, strict=True)), torch.no_grad()(run)


def _copied(x: torch.Tensor) -> torch.Tensor:
    return x.detach().clone(memory_format=torch.contiguous_format)

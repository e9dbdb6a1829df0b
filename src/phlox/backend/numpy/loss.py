"""Losses on NumPy: rows at a time while they are in the cache, in private buffers."""

from __future__ import annotations

from typing import Any

import numpy as np

from phlox.backend.contract import Backend
from phlox.backend.contract.types import Array, Gradients, Needed
from phlox.backend.numpy.blocks import in_blocks


class Loss(Backend):
    """See `phlox.backend.contract.nn.loss`."""

    def cross_entropy_forward(
        self, logits: Array, targets: Array, weight: Array | None, smoothing: float, ignored: int | None
    ) -> tuple[Array, Any]:
        if smoothing:
            return super().cross_entropy_forward(logits, targets, weight, smoothing, ignored)
        counted = None if ignored is None else targets != ignored
        targets = targets if counted is None else np.where(counted, targets, 0)
        log_p = self.log_softmax(logits, 1)
        if counted is not None:
            log_p[~counted] = 0.0  # ignored rows, whatever their logits
        losses = -log_p[np.arange(len(targets)), targets]
        factor = None if weight is None else weight[targets]
        losses = losses if factor is None else self._weighed(losses, factor)
        losses = losses if counted is None else np.where(counted, losses, np.zeros((), losses.dtype))
        return losses, (log_p, targets[:, None], factor, weight, counted)

    def cross_entropy_backward(
        self, saved: Any, g: Array, needed: Needed, smoothing: float, ignored: int | None
    ) -> Gradients:
        if smoothing:
            return super().cross_entropy_backward(saved, g, needed, smoothing, ignored)
        log_p, column, factor, _, counted = saved
        g = g if counted is None else np.where(counted, g, np.zeros((), g.dtype))
        g = (g if factor is None else g * factor)[:, None]
        dx = np.empty_like(log_p)

        def work(start: int, stop: int) -> None:
            out = dx[start:stop]
            np.exp(log_p[start:stop], out=out)
            out[np.arange(stop - start), column[start:stop, 0]] -= 1.0
            out *= g[start:stop]

        in_blocks(work, *dx.shape)
        return dx, None, None

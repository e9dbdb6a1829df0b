"""Losses by PyTorch's own kernels."""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from phlox.backend.contract import Backend
from phlox.backend.contract.types import Array, Gradients, Needed
from phlox.backend.torch import autograd_bridge, compat
from phlox.backend.torch.ops.indexing import missing
from phlox.backend.torch.tracer import is_tracer


def _has_nll_loss() -> bool:
    return compat.NLL_LOSS.exists and compat.NLL_LOSS_BACKWARD.exists and compat.LOG_SOFTMAX_BACKWARD.exists


class Loss(Backend):
    """See `phlox.backend.contract.nn.loss`."""

    def cross_entropy_forward(
        self, logits: Array, targets: Array, weight: Array | None, smoothing: float, ignored: int | None
    ) -> tuple[Array, Any]:
        if not _has_nll_loss():
            return super().cross_entropy_forward(logits, targets, weight, smoothing, ignored)
        targets = targets.long()
        if is_tracer(targets):
            # A program cannot raise, and its code might end the process.
            inside = (targets >= 0) & (targets < logits.shape[1])
            if ignored is not None:
                inside = inside | (targets == ignored)
            logits = torch.where(inside.unsqueeze(1), logits, missing(logits.dtype))
            targets = torch.where(inside, targets, 0)
        if ignored is not None:  # ignored rows, whatever their logits
            logits = torch.where((targets == ignored).unsqueeze(1), 0.0, logits)
        if not smoothing:
            number = -100 if ignored is None else ignored
            log_p = torch.log_softmax(logits, 1)
            losses, total = compat.NLL_LOSS.value(log_p, targets, weight, 0, number)
            if weight is not None:  # zero times an infinite loss counts as zero
                losses = torch.where(losses.isnan() & (weight[targets.clamp(0, len(weight) - 1)] == 0.0), 0.0, losses)
            return losses, (log_p, targets, weight, number, total)
        return autograd_bridge.forward(
            lambda x: functional.cross_entropy(
                x,
                targets,
                weight,
                ignore_index=-100 if ignored is None else ignored,  # -100 is no class, so it ignores nothing
                reduction="none",
                label_smoothing=smoothing,
            ),
            logits,
        )

    def cross_entropy_backward(
        self, saved: Any, g: Array, needed: Needed, smoothing: float, ignored: int | None
    ) -> Gradients:
        if not _has_nll_loss():
            return super().cross_entropy_backward(saved, g, needed, smoothing, ignored)
        if smoothing:
            return *autograd_bridge.backward(saved, g, needed[:1]), None, None
        log_p, targets, weight, number, total = saved
        h = compat.NLL_LOSS_BACKWARD.value(g, log_p, targets, weight, 0, number, total)
        return compat.LOG_SOFTMAX_BACKWARD.value(h, log_p, 1, log_p.dtype), None, None

    def ctc_loss_forward(
        self, log_p: Array, targets: Array, input_lengths: Array, target_lengths: Array, blank: int
    ) -> tuple[Array, Any]:
        floats = log_p.dtype in (torch.float32, torch.float64) and log_p.device.type == "cpu"
        kernels = compat.CTC_LOSS.exists and compat.CTC_LOSS_BACKWARD.exists
        if not kernels or not floats or not targets.numel() or is_tracer(input_lengths) or is_tracer(target_lengths):
            return super().ctc_loss_forward(log_p, targets, input_lengths, target_lengths, blank)
        # The kernel reads elements beyond the lengths, without effect.
        targets = targets.clamp(0, log_p.shape[2] - 1).long()
        lengths = input_lengths.tolist(), target_lengths.tolist()
        loss, alphas = compat.CTC_LOSS.value(log_p, targets, *lengths, blank, False)
        steps = torch.arange(log_p.shape[0])[:, None] < input_lengths
        return loss, (log_p, targets, alphas, loss, steps, lengths)

    def ctc_loss_backward(self, saved: Any, g: Array, needed: Needed, blank: int) -> Gradients:
        if len(saved) == 9:
            return super().ctc_loss_backward(saved, g, needed, blank)
        log_p, targets, alphas, loss, steps, lengths = saved
        gradient = compat.CTC_LOSS_BACKWARD.value(g, log_p, targets, *lengths, loss, alphas, blank, False)
        # The kernel returns the gradient of the logits; log_p is the log-softmax of the logits.
        gradient = gradient - log_p.exp() * g[:, None]
        return torch.where((steps & torch.isfinite(loss))[:, :, None], gradient, 0.0), None, None, None

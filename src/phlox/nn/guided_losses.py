"""Losses of models that learn from a teacher, or from preferences between two answers."""

from __future__ import annotations

from typing import Any, NamedTuple

from phlox.backend import Bool, Float
from phlox.errors import RangeError, ShapeError
from phlox.tensor import Tensor, functional, where
from phlox.tensor.functional.classification import weighted_mean
from phlox.tensor.functional.operands import Reduction, check_kind, check_same_shape, reduce_losses
from phlox.tensor.functions import at_full_precision

__all__ = ["PreferenceLoss", "distillation_loss", "dpo_loss"]


@at_full_precision
def distillation_loss(
    logits: Tensor,
    teacher_logits: Tensor,
    *,
    temperature: float = 1.0,
    mask: Tensor[Any, Any, Bool] | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """How far a student is from its teacher: T^2 KL(softmax(teacher_logits / T) || softmax(logits / T)).

    This is the loss of Hinton et al. 2015, whose gradients keep their size for any temperature T.

    Args:
        logits: [..., classes].
        teacher_logits: of the same shape; constant.
        temperature: T; with a higher one, unlikely classes count more.
        mask: [...], Bool; the losses where it is false are zero, and do not count in the mean.
        reduction: "mean", "sum" or "none", of the losses [...].

    The weight of the mean is the number of losses that count. Raises `ShapeError` for other shapes, and `RangeError`
    for a temperature that is not positive.

    >>> import phlox as px
    >>> px.nn.distillation_loss(px.tensor([[0.0, 2.0]]), px.tensor([[0.0, 2.0]]), temperature=2.0).item()
    0.0
    """
    name = "distillation_loss"
    check_kind(name, Float, logits=logits, teacher_logits=teacher_logits)
    check_kind(name, Bool, mask=mask)
    check_same_shape(name, logits=logits, teacher_logits=teacher_logits)
    if not temperature > 0.0:
        raise RangeError(f"{name}: temperature must be positive, got {temperature}")
    log_p, log_q = ((x * (1.0 / temperature)).log_softmax(-1) for x in (logits, teacher_logits.detach()))
    losses = functional.kl_div(log_p, log_q, log_target=True, reduction="none").sum(-1) * temperature**2
    if mask is None:
        return reduce_losses(name, losses, reduction)
    if mask.shape != losses.shape:
        raise ShapeError(f"{name}: mask must have the shape of the losses, {losses.shape}, got {mask.shape}")
    return weighted_mean(where(mask, losses, 0.0), mask.int(), None, 0, reduction, name)


class PreferenceLoss(NamedTuple):
    """The result of `dpo_loss`."""

    loss: Tensor
    chosen_rewards: Tensor
    """[n]: constant."""
    rejected_rewards: Tensor
    """[n]: constant."""


def dpo_loss(
    chosen: Tensor,
    rejected: Tensor,
    reference_chosen: Tensor,
    reference_rejected: Tensor,
    *,
    beta: float = 0.1,
    label_smoothing: float = 0.0,
    reduction: Reduction = "mean",
) -> PreferenceLoss:
    """Direct preference optimization: a model learns which of two answers is better (Rafailov et al. 2023).

    The reward of an answer is beta times the gain of its log-probability over that of the reference, the model before
    this training. The loss is -log sigmoid(reward of the chosen answer - reward of the rejected one).

    Args:
        chosen, rejected: [n], the log-probabilities of the better and the worse answer of each pair, such as
            `CausalModel.log_prob` gives.
        reference_chosen, reference_rejected: [n], those of the reference; constant.
        beta: how much it costs to differ from the reference.
        label_smoothing: the probability that the answers of a pair are the wrong way round (Mitchell 2023).
        reduction: "mean", "sum" or "none", of the losses of the pairs.

    Returns the loss and the rewards. The weight of the mean is the number of pairs. Raises `ShapeError` for other
    shapes, and `RangeError` for a beta that is not positive or a label_smoothing outside [0, 0.5).

    >>> import phlox as px
    >>> better, worse, before = px.tensor([-3.0]), px.tensor([-8.0]), px.tensor([-5.0])
    >>> loss, *rewards = px.nn.dpo_loss(better, worse, before, before, beta=0.5)
    >>> round(loss.item(), 4), [reward.item() for reward in rewards]
    (0.0789, [1.0, -1.5])
    """
    name = "dpo_loss"
    log_probs = {
        "chosen": chosen, "rejected": rejected,
        "reference_chosen": reference_chosen, "reference_rejected": reference_rejected,
    }  # fmt: skip
    check_kind(name, Float, **log_probs)
    check_same_shape(name, **log_probs)
    if not beta > 0.0 or not 0.0 <= label_smoothing < 0.5:
        raise RangeError(
            f"{name}: beta must be positive and label_smoothing in [0, 0.5), got {beta} and {label_smoothing}"
        )
    better, worse = (chosen - reference_chosen.detach()) * beta, (rejected - reference_rejected.detach()) * beta
    margin = (better - worse).to_full_precision()
    losses = (-margin).softplus()
    if label_smoothing:
        losses = losses * (1.0 - label_smoothing) + margin.softplus() * label_smoothing
    return PreferenceLoss(reduce_losses(name, losses, reduction), better.detach(), worse.detach())

"""Accumulating the gradients of several batches for one step."""

from __future__ import annotations

from typing import Any

from phlox.errors import OptimizerError
from phlox.module import GradientsParams, Module, Param, ParamId
from phlox.module.param import set_together
from phlox.tensor import Tensor, tensor, where, zeros_like


class GradientsAccumulator(Module):
    """Accumulates the gradients of several batches for one step, so that small batches act like a large one.

    The sums and the gradients that `take` returns are f32 or higher. Unscale the gradients of a scaled loss first, with
    `LossScaler.unscaled`. The accumulator is a module: it can be an argument of a compiled step, and can be saved in
    the middle of a sum.

    Args:
        model: the model; its deferred parameters get their values now.
        mean: whether `take` returns the mean of the added gradients, or their sum. The mean is over the number of calls
            of `add`, so a last step with fewer batches is right too.

    >>> import phlox as px
    >>> from phlox import nn, optim
    >>> model = nn.Linear(3, 1).train()
    >>> accumulator, optimizer = optim.GradientsAccumulator(model), optim.SgdConfig().init()
    >>> for x in px.ones((4, 2, 3)):
    ...     loss, grads = px.value_and_grad(lambda m: m(x).mean())(model)
    ...     accumulator.add(grads, model)
    >>> model = optimizer.step(0.1, model, accumulator.take(model))
    """

    def __init__(self, model: Module, *, mean: bool = True) -> None:
        self.mean = mean
        plain = model.valid()
        self.sums = [Param(zeros_like(param.val()), trained=False, full_precision=True) for param in plain.params()]
        place = plain.params()[0].device if plain.params() else None
        self.count = Param(tensor(0, device=place), trained=False)

    def add(self, grads: GradientsParams, model: Module) -> None:
        """Add gradients of `model`; a missing gradient counts as zero.

        Raises `OptimizerError` if the model has another structure, or if the gradients are of another model.
        """
        params = self._checked(model)
        if len(grads) and not any(grads.get(param.id) is not None for param in params):
            raise OptimizerError(
                f"GradientsAccumulator: none of the {len(grads)} gradients is of a parameter of this "
                f"{type(model).__name__}; are they another model's?"
            )
        sums: list[tuple[Param, Tensor[Any, Any, Any]]] = []
        for param, total in zip(params, self.sums, strict=True):
            grad = grads.get(param.id)
            if grad is not None:
                kept = total.val()
                sums.append((total, kept + grad.to_device(kept.device)))
        set_together([*sums, (self.count, self.count.val() + 1)])

    def take(self, model: Module) -> GradientsParams:
        """Return the sum or mean of the added gradients, for a step of `model`, and reset the sums to zero.

        Every trained parameter has a gradient: zero if none was added.
        """
        number = self.count.val()
        share = 1.0 / where(number > 0, number, 1).to_full_precision().float()
        taken: dict[ParamId, Tensor[Any, Any, Any]] = {}
        anew = [(self.count, zeros_like(number))]
        for param, total in zip(self._checked(model), self.sums, strict=True):
            value = total.val()
            if param.trained:
                taken[param.id] = value * share.to_device(value.device) if self.mean else value
            anew.append((total, zeros_like(value)))
        gradients = GradientsParams(taken)
        set_together(anew)
        return gradients

    def _checked(self, model: Module) -> list[Param]:
        params = model.params()
        if [param.shape for param in params] != [total.shape for total in self.sums]:
            raise OptimizerError(
                f"GradientsAccumulator: this {type(model).__name__} has not the parameters that it was made for; "
                "make another accumulator for it"
            )
        return params

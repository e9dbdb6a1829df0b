"""Accumulating the gradients of several batches for one step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from phlox.backend import Float
from phlox.backend.parallel import row_group, same_everywhere
from phlox.errors import OptimizerError
from phlox.module import GradientsParams, Module, Param, ParamId
from phlox.module.averaging import averaged
from phlox.module.gradients import LocalGradients
from phlox.module.param import set_together
from phlox.optim.simple import AnyTensor
from phlox.tensor import Tensor, tensor, where, zeros, zeros_like

_ONE = 1.0


class GradientsAccumulator(Module):
    """Accumulates the gradients of several batches for one step, so that small batches act like a large one.

    The sums and the gradients that `take` returns are f32 or higher. Unscale the gradients of a scaled loss first, with
    `LossScaler.unscaled`. The accumulator is a module: it can be an argument of a compiled step, and can be saved in
    the middle of a sum.

    Args:
        model: the model; its deferred parameters get their values now.
        mean: whether `take` returns the mean of the added gradients, or their sum. The mean is over the weights that
            `add` is given, so a last step with fewer batches is right too.
        local: whether the sums are of the rows of this process, of gradients that were made within
            `px.distributed.no_sync()`. Then `take` communicates, once for a step, and `add` does not. Each process
            holds all sums as a whole; they are not a model's state before `agree`.

    >>> import phlox as px
    >>> from phlox import nn, optim
    >>> model = nn.Linear(3, 1).train()
    >>> accumulator, optimizer = optim.GradientsAccumulator(model), optim.SgdConfig().init()
    >>> for x in px.ones((4, 2, 3)):
    ...     loss, grads = px.value_and_grad(lambda m: m(x).mean())(model)
    ...     accumulator.add(grads, model)
    >>> model = optimizer.step(0.1, model, accumulator.take(model))
    """

    def __init__(self, model: Module, *, mean: bool = True, local: bool = False) -> None:
        self.mean = mean
        self.local = local
        plain = model.valid()
        zeros = _zeros_whole if local else zeros_like
        self.sums = [Param(zeros(param.val()), trained=False, full_precision=True) for param in plain.params()]
        device = plain.params()[0].device if plain.params() else None
        self.weight = Param(tensor(0.0, device=device), trained=False, full_precision=True)

    def add(self, grads: GradientsParams, model: Module, weight: AnyTensor | float = _ONE) -> None:
        """Add gradients of `model`, with this weight in the mean; a missing gradient counts as zero.

        Raises `OptimizerError` if the model has another structure, or if the gradients are of another model.
        """
        if len(grads) and row_group() is not None and self.local != isinstance(grads, LocalGradients):
            origin = (
                "of all processes; make them within px.distributed.no_sync(), for local=True"
                if self.local
                else "of this process's rows alone; make it with local=True"
            )
            raise OptimizerError(f"GradientsAccumulator: these gradients are {origin}")
        with same_everywhere(None if self.local else grads.backend):
            new_sums = self._add(grads, model, weight)
        set_together(new_sums)

    def _add(self, grads: GradientsParams, model: Module, weight: AnyTensor | float) -> list[tuple[Param, AnyTensor]]:
        params = self._checked(model)
        if len(grads) and not any(grads.get(param.id) is not None for param in params):
            raise OptimizerError(
                f"GradientsAccumulator: none of the {len(grads)} gradients is of a parameter of this "
                f"{type(model).__name__}; are they another model's?"
            )
        sums: list[tuple[Param, AnyTensor]] = []
        for param, total in zip(params, self.sums, strict=True):
            grad = grads.get(param.id)
            if grad is not None:
                old = total.val()
                wide = grad.to_device(old.device)
                sums.append((total, old + (wide * _like(weight, old) if self.mean and weight is not _ONE else wide)))
        total_weight = self.weight.val()
        return [*sums, (self.weight, total_weight + _like(weight, total_weight))]

    def take(self, model: Module) -> GradientsParams:
        """Return the sum or mean of the added gradients, for a step of `model`, and reset the sums to zero.

        Every trained parameter has a gradient: zero if none was added.
        """
        with same_everywhere(None if self.local or not self.sums else self.sums[0].backend):
            means, reset = self._take_sums(model)
        gradients = GradientsParams(means if not self.local or row_group() is None else averaged(means, model))
        set_together(reset)
        return gradients

    def agree(self) -> None:
        """Make local sums the mean over the processes, before they are saved; what `take` returns stays the same."""
        if not self.local or row_group() is None or not self.sums:
            return
        values = [total.val() for total in self.sums]
        backend = values[0].backend
        means = backend.all_reduce([value.primitive for value in values], "mean")
        agreed = [Tensor.from_primitive(mean, backend, Float) for mean in means]
        set_together(list(zip(self.sums, agreed, strict=True)))

    def _take_sums(self, model: Module) -> tuple[dict[ParamId, AnyTensor], list[tuple[Param, AnyTensor]]]:
        number = self.weight.val()
        share = 1.0 / where(number > 0.0, number, 1.0)
        gradients: dict[ParamId, AnyTensor] = {}
        reset = [(self.weight, zeros_like(number))]
        for param, total in zip(self._checked(model), self.sums, strict=True):
            value = total.val()
            if param.trained:
                gradients[param.id] = value * share.to_device(value.device) if self.mean else value
            reset.append((total, zeros_like(value)))
        return gradients, reset

    def _checked(self, model: Module) -> list[Param]:
        params = model.params()
        if [param.shape for param in params] != [total.shape for total in self.sums]:
            raise OptimizerError(
                f"GradientsAccumulator: this {type(model).__name__} has other parameters than the model that "
                "it was made for; make another accumulator for it"
            )
        return params


def _like(weight: AnyTensor | float, beside: AnyTensor) -> Any:
    """The weight, on the device and at the precision of the sums."""
    return weight.detach().float().to_device(beside.device) if isinstance(weight, Tensor) else weight


def _zeros_whole(value: AnyTensor) -> AnyTensor:
    """Zeros of its shape; not in slices, because each process has sums of its own."""
    backend = value.backend
    return zeros(value.shape, device=replace(value.device, sharding=None)) if backend.has_slices else zeros_like(value)

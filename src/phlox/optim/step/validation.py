"""Checks before a step: of its arguments, and of states that were loaded."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from phlox.backend import Device, Float
from phlox.backend.levels import has_history, levels
from phlox.errors import AutodiffError, OptimizerError
from phlox.module import GradientsParams, Module
from phlox.module.gradients import LocalGradients
from phlox.optim.groups import Group
from phlox.optim.optimizer import Rate
from phlox.optim.simple import AnyTensor, SimpleOptimizer
from phlox.optim.state.blocks import in_form_of
from phlox.optim.state.tree import Mastered, State, mismatch, unmastered
from phlox.other_names import class_of
from phlox.tensor import Tensor, zeros


def check_arguments(module: Any, grads: Any) -> None:
    """Raise `OptimizerError` unless these are a module and gradients of at least one of its parameters."""
    if not isinstance(module, Module):
        raise OptimizerError(
            f"step takes a learning rate, a module and its gradients; got {class_of(module)} as module"
        )
    if not isinstance(grads, GradientsParams):
        raise OptimizerError(
            f"step takes the gradients of parameters, got {class_of(grads)}; after loss.backward() make them with "
            "GradientsParams.from_grads(gradients, module)"
        )
    if type(grads) is LocalGradients:
        raise OptimizerError(
            "these gradients are of the rows of this process alone (px.distributed.no_sync()), and a step needs those "
            "of all; add them to GradientsAccumulator(model, local=True), and give what its take(model) returns"
        )
    tensors = grads._tensors  # pyright: ignore[reportPrivateUsage]
    if tensors and tensors.keys().isdisjoint(module.structure().owners):
        raise OptimizerError(
            f"none of the {len(grads)} gradients is of a parameter of this {type(module).__name__} "
            f"({', '.join(path for path, _ in module.named_params()) or 'it has none'}); are they another model's?"
        )
    if levels():
        check_no_history(module, grads)


def check_no_history(module: Module, grads: GradientsParams) -> None:
    """Raise `AutodiffError` if an enclosing function is differentiated with respect to these parameters."""
    for path, param in module.named_params():
        grad = grads.get(param.id)
        values = () if grad is None else (param.val(), grad)
        if any(has_history(x.backend, x.primitive) for x in values):
            raise AutodiffError(
                f"{path}: an optimizer's step inside of a differentiated function would cut the history of the "
                "parameter; write the update with tensors: module.map(lambda path, param: param.map(lambda value: "
                "value - lr * grads.get(param.id))); or step outside"
            )


def value_for(path: str, value: AnyTensor, grad: AnyTensor) -> AnyTensor:
    """The value of a parameter without its tape; `OptimizerError` unless `grad` is its gradient."""
    if value.backend.batched or grad.backend.batched:
        raise OptimizerError(
            f"{path}: an optimizer steps outside of phlox.vmap, because it has one state for all examples; "
            "return the gradients, and step there on the stacked modules"
        )
    inner = value.inner() if value.backend.differentiates else value
    if grad.shape != inner.shape or grad.kind is not Float:
        raise OptimizerError(
            f"{path}: the gradient is {grad.kind.__name__} of shape {grad.shape}, the parameter Float of shape "
            f"{inner.shape}; is it the gradient of another model?"
        )
    return inner


def rates_of(lr: Rate, groups: Sequence[Group]) -> list[Any]:
    """The rate of each group, then the rate of all others; `OptimizerError` for an invalid rate or unknown group."""
    if not isinstance(lr, Mapping):
        rate = _checked_rate(lr)
        if not groups:
            return [rate]
        return [*[rate if group.lr_factor == 1.0 else rate * group.lr_factor for group in groups], rate]
    group_names = {group.name for group in groups if group.name is not None}
    if "*" not in lr or not lr.keys() <= group_names | {"*"}:
        names = ", ".join(sorted(group_names)) or "none has one"
        raise OptimizerError(
            f"learning rates by group need one for all others under '*', and names of groups ({names}), got "
            f"{', '.join(map(repr, lr))}"
        )
    rates = {name: _checked_rate(rate) for name, rate in lr.items()}
    default = rates["*"]
    return [*[rates.get(group.name or "*", default) * group.lr_factor for group in groups], default]


def _checked_rate(lr: Any) -> Any:
    """The rate as a Python number or, in a compiled function, a traced scalar."""
    if isinstance(lr, Tensor):
        raise OptimizerError(
            "the learning rate is a number, not a tensor; give it as .item(), or as an argument of a compiled function"
        )
    rate: object = lr
    if isinstance(rate, np.ndarray) and not lr.ndim:
        lr = lr.item()
    if isinstance(lr, (int, float, np.floating, np.integer)) and not isinstance(lr, bool):
        lr = float(cast("float", lr))
    elif isinstance(lr, bool) or getattr(lr, "ndim", None) != 0:  # a traced scalar has no axes
        raise OptimizerError(f"the learning rate must be a number, got {class_of(lr)}")
    if isinstance(lr, float) and not (lr >= 0.0 and math.isfinite(lr)):
        raise OptimizerError(f"the learning rate must be a finite number of at least zero, got {lr}")
    return lr


# --- does a state belong to this optimizer, and to a parameter of this shape?


def first_state(optimizer: SimpleOptimizer, shape: tuple[int, ...], device: Device | None = None) -> State:
    """The first state of a parameter of this shape; None if it is not known."""
    try:
        return optimizer.init(zeros(shape, device=device))
    except Exception:  # the optimizer does not support such a parameter
        return None


def misfit(fresh: State, state: State, shape: tuple[int, ...]) -> str | None:
    """As `mismatch`, of a state that may have a master, and moments of other bits, which will be converted."""
    if isinstance(state, Mastered) and state.master.shape != shape:
        return f"master: expected shape {shape}, found {state.master.shape}"
    return mismatch(in_form_of(unmastered(state), fresh, shape), unmastered(state))


def other_entries(optimizer: SimpleOptimizer, shape: tuple[int, ...], state: State) -> str | None:
    """How the names in a state differ from those in a first state for this shape; None if they do not."""
    fresh = first_state(optimizer, shape)
    return mismatch(dict.fromkeys(cast("Any", fresh)), state) if isinstance(fresh, dict) else None

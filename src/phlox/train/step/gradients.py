"""The gradients of the last step, computed again, because a step keeps none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from phlox import random
from phlox.data.loader import placed
from phlox.errors import RunError

if TYPE_CHECKING:
    from phlox.train.step.stepper import Stepper


def gradients_on(stepper: Stepper, batch: Any) -> dict[str, dict[str, np.ndarray[Any, Any]]]:
    """The gradients of the loss on the last batch, by model and path, computed eagerly; nothing changes.

    The random numbers are those of the last step. Raises `RunError` where there is no such batch or no such loss.
    """
    check_has_gradients(stepper)
    if batch is None:
        raise RunError("gradients: there is no batch before the first step")
    from phlox.debug.running import undisturbed

    state, functions = stepper.state, stepper.functions
    inputs = stepper.inputs(stepper.asked)
    with random.stream(state.stream.replay(stepper.position)), undisturbed():
        _, grads_of = functions.gradients(
            state.models, state.optimizers, state.auxiliary, placed(batch, stepper.device), inputs
        )  # fmt: skip
    return {
        name: {
            path: grad.numpy()
            for path, param in state.models[name].named_params()
            if (grad := grads.get(param.id)) is not None
        }
        for name, grads in grads_of.items()
    }


def check_has_gradients(stepper: Stepper) -> None:
    """Raise `RunError` if the gradients of a batch cannot be computed here."""
    if stepper.functions.step is None:
        raise RunError("with update= the learner knows no gradients; report what you need of them in its logs")
    if stepper.team is not None and stepper.team.in_shards:
        raise RunError("gradients need one process and one device; with several, report what you need in the step")

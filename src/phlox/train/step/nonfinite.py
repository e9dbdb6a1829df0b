"""Losses that are NaN or infinite: find where the first such value arises, and undo such a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from phlox import random
from phlox.backend import Float
from phlox.data.loader import placed
from phlox.data.structure import is_array, leaves
from phlox.module.calls import with_function_layers
from phlox.train.state import ONLY
from phlox.train.step.functions import NotFiniteLossError
from phlox.transform.tree import tensors_of

if TYPE_CHECKING:
    from phlox.train.step.metric_state import Output
    from phlox.train.step.stepper import Stepper


def undo_if_not_finite(stepper: Stepper, before: tuple[Any, Any], output: Output) -> None:
    """If a step's loss or new weights are not finite, undo the step and raise an error."""
    losses: list[float] = [] if output.loss is None else np.asarray(output.loss.numpy()).reshape(-1).tolist()
    bad = next((str(loss) for loss in losses if not np.isfinite(loss)), None)
    if bad is None:
        weights = _nonfinite_weight(stepper)
        bad = None if weights is None else f"{losses[0] if losses else 'unknown'}, and the gradient of {weights} is not"
    if bad is not None:
        stepper.state.models, stepper.state.optimizers = before
        raise NotFiniteLossError(bad)


def _nonfinite_weight(stepper: Stepper) -> str | None:
    for name, model in stepper.state.models.items():
        for path, param in model.named_params():
            if not param.trained:
                continue
            value = param.val()
            # On a mesh no process may have the whole parameter.
            is_finite = (
                np.isfinite(value.numpy()).all() if stepper.team is None else value.isfinite().all().item()
            )  # fmt: skip
            if not is_finite:
                return f"`{name or 'model'}.{path}`"
    return None


def find_in_step(stepper: Stepper, batch: Any) -> str | None:
    """The first value that is not finite in the step on the last batch, as a text; None if all are finite.

    The step is repeated eagerly, with the same random numbers, and changes nothing.
    """
    for path, leaf in leaves(batch):
        if is_array(leaf) and leaf.dtype.kind == "f" and not np.isfinite(leaf).all():
            rows = np.isfinite(leaf.reshape(len(leaf), -1)).all(axis=1)
            bad = np.flatnonzero(~rows)[:8].tolist()
            return f"the data{path} in row {', '.join(map(str, bad))} of the batch"
    step, team = stepper.functions.step, stepper.team
    if step is None or (team is not None and team.in_shards):  # all processes would have to repeat the step
        return None
    # Imported here, because only a training that has failed needs them.
    from phlox.debug.nonfinite import search
    from phlox.debug.origins import bad_parameter
    from phlox.debug.running import undisturbed

    state = stepper.state
    models = {name: model if name in state.optimizers else model.valid() for name, model in state.models.items()}
    models = {name: with_function_layers(model) for name, model in models.items()}
    models, _ = stepper.functions.narrowed(models)
    carry = stepper.functions.carry(state.auxiliary)
    on_device = placed(batch, stepper.device)

    def run() -> tuple[Any, Any]:
        results = step(models[ONLY] if state.is_single else models, on_device, *carry, **stepper.inputs(stepper.asked))
        loss: Any = results
        while isinstance(loss, (tuple, list)) and loss:
            loss = cast("Any", loss)[0]
        follows = [x for x in tensors_of(loss) if x.kind is Float and x.size == 1 and x.is_require_grad()]
        return results, follows[0] if follows else None

    named = {name or "model": model for name, model in models.items()}
    with random.stream(state.stream.replay(stepper.position)), undisturbed():
        origin = bad_parameter(named) or search(named, run, differentiate=True)
    return None if origin is None else str(origin)

"""Losses that are NaN or infinite: where the first such value arises, and how a bad step is undone."""

# The parts of a learner know each other.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from phlox import random
from phlox.backend import Float
from phlox.data.structure import is_array, leaves
from phlox.module.calls import with_function_layers
from phlox.train.callback import AnyLearner, Callback
from phlox.train.feed import onto
from phlox.train.steps import ONLY, NotFiniteLossError
from phlox.transform.tree import tensors_of

if TYPE_CHECKING:
    from phlox.train.meter import Output
    from phlox.train.state import State


class NanGuard(Callback):
    """Stops the training at the first step with a loss or new weights that are not finite, and undoes that step.

    Without it, a compiled loop reads losses some steps later, when the weights that gave them are gone. With it, the
    loop waits for each step and keeps a copy of the weights before it, which takes their memory once more. The error
    names the step, the rows and the first layer; the model has the weights before the step.

    >>> from phlox.train import NanGuard
    >>> NanGuard().state()
    {}
    """

    def on_fit_start(self, learner: AnyLearner) -> None:
        learner.guards = True

    def on_fit_end(self, learner: AnyLearner) -> None:
        learner.guards = False


def take_back(learner: State, before: tuple[Any, Any], output: Output) -> None:
    """If a step's loss or new weights are not finite, undo the step and raise an error."""
    losses: list[float] = [] if output.loss is None else np.asarray(output.loss.numpy()).reshape(-1).tolist()
    bad = next((str(loss) for loss in losses if not np.isfinite(loss)), None)
    if bad is None:
        weights = _weight_that_is_not(learner)
        bad = None if weights is None else f"{losses[0] if losses else 'unknown'}, and the gradient of {weights} is not"
    if bad is not None:
        learner._models, learner._optimizers = before
        raise NotFiniteLossError(bad)


def _weight_that_is_not(learner: State) -> str | None:
    for name, model in learner._models.items():
        for path, param in model.named_params():
            if not param.trained:
                continue
            value = param.val()
            # Of a mesh the whole may be in no process.
            is_finite = (
                np.isfinite(value.numpy()).all() if learner._team is None else value.isfinite().all().item()
            )  # fmt: skip
            if not is_finite:
                return f"`{name or 'model'}.{path}`"
    return None


def find_in_step(learner: State) -> str | None:
    """The first value that is not finite in the step on the last batch, as a text; None if all are finite.

    The step is repeated eagerly, with the same random numbers, and changes nothing.
    """
    for path, leaf in leaves(learner.batch):
        if is_array(leaf) and leaf.dtype.kind == "f" and not np.isfinite(leaf).all():
            rows = np.isfinite(leaf.reshape(len(leaf), -1)).all(axis=1)
            bad = np.flatnonzero(~rows)[:8].tolist()
            return f"the data{path} in row {', '.join(map(str, bad))} of the batch"
    step, team = learner._functions.step, learner._team
    if step is None or (team is not None and team.in_shards):  # there all processes would have to take it
        return None
    # Which only a training needs that has failed.
    from phlox.debug.nonfinite import search
    from phlox.debug.origins import bad_parameter
    from phlox.debug.running import undisturbed

    models = {name: one if name in learner._optimizers else one.valid() for name, one in learner._models.items()}
    models = {name: with_function_layers(one) for name, one in models.items()}
    carry: list[Any] = [learner._aids["carry"].value()] if "carry" in learner._aids else []
    batch = onto(learner.batch, learner.device)

    def run() -> tuple[Any, Any]:
        results = step(models[ONLY] if learner._single else models, batch, *carry)
        loss: Any = results
        while isinstance(loss, (tuple, list)) and loss:
            loss = cast("Any", loss)[0]
        follows = [x for x in tensors_of(loss) if x.kind is Float and x.size == 1 and x.is_require_grad()]
        return results, follows[0] if follows else None

    named = {name or "model": one for name, one in models.items()}
    with random.stream(learner.stream.replay(learner._position)), undisturbed():
        found = bad_parameter(named) or search(named, run, differentiate=True)
    return None if found is None else str(found)

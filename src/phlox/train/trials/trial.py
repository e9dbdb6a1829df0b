"""`on_trial`: a scope that restores a learner at its end."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phlox.train.learner import Learner


@contextmanager
def on_trial(learner: Learner[Any]) -> Generator[None]:
    """A scope that restores the learner at its end, except for the programs that were compiled in it."""
    state, run = learner.state, learner.run
    guards, schedules, extra = learner.guards, state.schedules, dict(state.extra)
    trained = [[param.trained for param in model.params()] for model in state.models.values()]
    record, fit = learner.snapshot(), learner.attach(None)
    learner.run = replace(run)
    try:
        yield
    finally:
        learner.attach(None)
        state.schedules = schedules
        for model, flags in zip(state.models.values(), trained, strict=True):
            for param, flag in zip(model.params(), flags, strict=True):
                param.set_trained(flag)
        learner.load_state(record)
        learner.guards, learner.run, state.extra = guards, run, extra
        learner.attach(fit)

"""`evaluate` and `predict` of a learner: passes over data in inference mode."""

# The parts of a learner know each other.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from phlox import random
from phlox.data.structure import mapped
from phlox.errors import RunError
from phlox.metrics.base import Results
from phlox.random.stream import Stream, key_of
from phlox.train.arguments import without_tape
from phlox.train.feed import Feed, count, onto
from phlox.train.meter import Pending
from phlox.train.steps import ONLY, predicted, to_numpy
from phlox.transform import compile as compiled

if TYPE_CHECKING:
    from phlox.train.learner import Learner


def evaluate(learner: Learner[Any], data: Any) -> Results:
    """See `Learner.evaluate`."""
    feed = data if isinstance(data, Feed) else learner.feed(data, "validation")
    learner._functions.check_validates()
    team = learner._team
    learner._align()
    meter, models = learner._validation, learner._for_inference()
    meter.reset()
    aids = meter.aids()
    measure, device = learner._program("measure"), without_tape(learner.device)
    feed.of_arrays = learner.compiles
    with ExitStack() as stack:
        # A step that draws in validation draws the same each time.
        stack.enter_context(random.stream(Stream(key_of(0))))
        if team is not None:
            stack.enter_context(team.scope())
        for item in feed.epoch(0):
            if team is None:
                batch, rows, counts = item, count(item), True
                on = batch if learner._takes_arrays else onto(batch, device)
            else:
                batch, rows, counts = item.batch, team.measured_rows(item), team.counts(item)
                on = team.placed(batch, item, device)
            if learner._functions.carries and "carry" not in aids:
                aids["carry"] = learner._carried(models, on if team is not None else onto(batch, device))
            if not counts:
                continue
            if team is None:
                aids, output = measure(models, aids, on)
            else:
                with team.rows_scope(item):
                    aids, output = measure(models, aids, on)
                    output = team.readable(output)
            meter.keep(aids)
            for _ in meter.add(Pending(0, 0, 0, rows, output, None)):
                pass
    for _ in meter.read():
        pass
    return Results(meter.values() if team is None else meter.values(team.merged(meter, means=True)))


def predict(learner: Learner[Any], data: Any, function: Callable[..., Any] | None = None) -> Any:
    """See `Learner.predict`."""
    if function is None and learner._own_step is not None and not learner._single:
        raise RunError("predict: with several models it is not known which is meant; give function=(models, batch)")
    team = learner._team
    learner._align()
    models, device = learner._for_inference(), without_tape(learner.device)
    model = models[ONLY] if learner._single else models
    call = function or predicted
    run: Any = compiled(call) if learner.compiles else call
    if team is None:
        found = [mapped(to_numpy, run(model, onto(batch, device))) for batch in Feed(data).epoch(0)]
        if not found:
            raise RunError("predict: there is no batch in the data")
        return mapped(lambda *parts: np.concatenate(parts), found[0], *found[1:])
    found: list[Any] = []
    with team.scope():
        for item in learner.feed(data, "validation").epoch(0):
            with team.rows_scope(item):
                output = team.everywhere(run(model, team.placed(item.batch, item, device)))
            part = mapped(to_numpy, output)
            found.append(part if team.counts(item) else mapped(_no_rows, part))
    if not found:
        raise RunError("predict: there is no batch in the data")
    if not team.adds_up:
        return mapped(lambda *parts: np.concatenate(parts), found[0], *found[1:])
    return mapped(lambda *parts: team.in_order(parts), found[0], *found[1:])


def _no_rows(leaf: Any) -> Any:
    return leaf[:0]

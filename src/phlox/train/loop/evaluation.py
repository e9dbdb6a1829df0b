"""`evaluate` and `predict` of a learner: passes over data in inference mode."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from phlox import random
from phlox.data.loader import Loader, placed
from phlox.data.structure import mapped
from phlox.errors import DataWarning, RunError
from phlox.metrics.base import Results
from phlox.random.stream import Stream, key_of
from phlox.tensor import Tensor
from phlox.train.loop.feed import Feed
from phlox.train.loop.portions import SharedFeed
from phlox.train.state import ONLY
from phlox.train.step.batch import count, without_tape
from phlox.train.step.functions import of_step
from phlox.train.step.meter import Pending
from phlox.transform import compile as compiled

if TYPE_CHECKING:
    from phlox.train.step.stepper import Stepper


def evaluate(stepper: Stepper, data: Any) -> Results:
    """See `Learner.evaluate`."""
    stepper.functions.check_validates()
    feed = data if isinstance(data, Feed) else feed_of(stepper, data, "validation")
    team = stepper.team
    stepper.align()
    meter, kept = stepper.validation, stepper.for_inference()
    models, _ = stepper.functions.narrowed(kept)
    meter.reset()
    auxiliary = meter.auxiliary()
    measure, device = stepper.program("measure"), without_tape(stepper.device)
    feed.of_arrays = stepper.compiles
    is_empty = True
    inputs = stepper.inputs(stepper.asked_validating)
    more = (inputs,) if inputs else ()
    with ExitStack() as stack:
        # A step that draws in validation draws the same each time.
        stack.enter_context(random.stream(Stream(key_of(0))))
        if team is not None:
            stack.enter_context(team.scope())
        for item in feed.epoch(0):
            is_empty = False
            if team is None:
                batch, rows, counts = item, count(item), True
                on = batch if stepper.takes_arrays else placed(batch, device)
            else:
                batch, rows, counts = item.batch, team.measured_rows(item), team.counts(item)
                on = team.placed(batch, item, device)
            if stepper.functions.carries and "carry" not in auxiliary:
                auxiliary["carry"] = stepper.carried(kept, on if team is not None else placed(batch, device))
            if not counts and team is not None and not team.computes_together:
                continue
            if team is None:
                auxiliary, output = measure(models, auxiliary, on, *more)
            else:
                # What another process counts is computed here too, where that needs all of them.
                given = auxiliary if counts else copy.deepcopy(auxiliary)
                with team.rows_scope(item):
                    after, output = measure(models, given, on, *more)
                    output = team.readable(output)
                if not counts:
                    continue
                auxiliary = after
            meter.keep(auxiliary)
            for _ in meter.add(Pending(0, 0, 0, rows, output, None)):
                pass
    if is_empty:
        raise RunError(f"{feed.name}: there is no batch in it; is the data empty, or used up?")
    for _ in meter.read():
        pass
    return Results(meter.values() if team is None else meter.values(team.merged(meter, means=True)))


def feed_of(stepper: Stepper, data: Any, name: str = "data") -> Feed:
    """The batches of this process, to train on or, with `name="validation"`, to validate on."""
    if stepper.team is None:
        return Feed(data, name)
    return SharedFeed(data, stepper.team, name, trains=name == "data", weighs=stepper.functions.update is None)


def predict(stepper: Stepper, data: Any, function: Callable[..., Any] | None = None) -> Any:
    """See `Learner.predict`."""
    is_single = stepper.state.is_single
    if isinstance(data, Loader) and not data.is_in_order:
        warnings.warn(
            f"predict: {data!r} gives its rows in another order than the source's, or not all of them; the outputs are "
            "in its order. For the order of the source: shuffle=False, drop_last=False, and no order=",
            DataWarning,
            stacklevel=4,
        )
    if function is None and not is_single:
        raise RunError("predict: with several models it is not known which is meant; give function=(models, batch)")
    team = stepper.team
    stepper.align()
    (models, _), device = stepper.functions.narrowed(stepper.for_inference()), without_tape(stepper.device)
    model = models[ONLY] if is_single else models
    call: Any = of_step(function or _predicted, stepper.functions.narrow)
    run: Any = compiled(call) if stepper.compiles else call
    if team is None:
        found = [mapped(_to_numpy, run(model, placed(batch, device))) for batch in Feed(data).epoch(0)]
        if not found:
            raise RunError("predict: there is no batch in the data")
        return mapped(lambda *parts: np.concatenate(parts), found[0], *found[1:])
    found: list[Any] = []
    with team.scope():
        for item in feed_of(stepper, data, "validation").epoch(0):
            with team.rows_scope(item):
                output = team.everywhere(run(model, team.placed(item.batch, item, device)))
            part = mapped(_to_numpy, output)
            found.append(part if team.counts(item) else mapped(_no_rows, part))
    if not found:
        raise RunError("predict: there is no batch in the data")
    if not team.adds_up:
        return mapped(lambda *parts: np.concatenate(parts), found[0], *found[1:])
    return mapped(lambda *parts: team.in_order(parts), found[0], *found[1:])


def _no_rows(leaf: Any) -> Any:
    return leaf[:0]


def _to_numpy(x: Any) -> Any:
    """A tensor as an array; anything else unchanged."""
    return x.numpy() if isinstance(x, Tensor) else x


def _predicted(model: Any, batch: Any) -> Any:
    """The model's output for a batch or, of batches `(input, ...)`, for the input."""
    inputs = cast("tuple[Any, ...]", batch)[0] if isinstance(batch, tuple) else batch
    try:
        return model(*inputs) if isinstance(batch, tuple) and type(inputs) is tuple else model(inputs)
    except TypeError as error:
        error.add_note("predict: the model was called with the batch; where that is wrong give function=(model, batch)")
        raise

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
from phlox.train.loop.batch_stream import BatchStream
from phlox.train.loop.sharded_batch_stream import ShardedBatchStream
from phlox.train.state import ONLY
from phlox.train.step.batch import count, without_tape
from phlox.train.step.functions import of_step
from phlox.train.step.metric_state import Pending
from phlox.transform import compile as compiled

if TYPE_CHECKING:
    from phlox.train.step.stepper import Stepper


def evaluate(stepper: Stepper, data: Any) -> Results:
    """See `Learner.evaluate`."""
    stepper.functions.check_validates()
    stream = data if isinstance(data, BatchStream) else batch_stream_of(stepper, data, "validation")
    team = stepper.team
    stepper.align()
    state, kept = stepper.validation, stepper.for_inference()
    models, _ = stepper.functions.narrowed(kept)
    state.reset()
    auxiliary = state.auxiliary()
    measure, device = stepper.program("measure"), without_tape(stepper.device)
    stream.needs_arrays = stepper.compiles
    is_empty = True
    inputs = stepper.inputs(stepper.asked_validating)
    extra = (inputs,) if inputs else ()
    with ExitStack() as stack:
        # A step that draws random numbers draws the same ones in each validation.
        stack.enter_context(random.stream(Stream(key_of(0))))
        if team is not None:
            stack.enter_context(team.scope())
        for item in stream.epoch(0):
            is_empty = False
            if team is None:
                batch, rows, is_counted = item, count(item), True
                on_device = batch if stepper.takes_arrays else placed(batch, device)
            else:
                batch, rows, is_counted = item.batch, team.measured_rows(item), team.is_counted(item)
                on_device = team.batch_on_devices(batch, item, device)
            if stepper.functions.has_carry and "carry" not in auxiliary:
                auxiliary["carry"] = stepper.first_carry(kept, on_device if team is not None else placed(batch, device))
            if not is_counted and team is not None and not team.computes_together:
                continue
            if team is None:
                auxiliary, output = measure(models, auxiliary, on_device, *extra)
            else:
                # Another process counts this batch, and the computation needs all processes.
                step_auxiliary = auxiliary if is_counted else copy.deepcopy(auxiliary)
                with team.rows_scope(item):
                    after, output = measure(models, step_auxiliary, on_device, *extra)
                    output = team.readable(output)
                if not is_counted:
                    continue
                auxiliary = after
            state.keep(auxiliary)
            for _ in state.add(Pending(0, 0, 0, rows, output, None)):
                pass
    if is_empty:
        raise RunError(f"{stream.name}: there is no batch in it; is the data empty, or used up?")
    for _ in state.read():
        pass
    return Results(state.values() if team is None else state.values(team.reduced_metrics(state, means=True)))


def batch_stream_of(stepper: Stepper, data: Any, name: str = "data") -> BatchStream:
    """The batches of this process, to train on or, with `name="validation"`, to validate on."""
    if stepper.team is None:
        return BatchStream(data, name)
    return ShardedBatchStream(
        data, stepper.team, name, training=name == "data", weighted=stepper.functions.update is None
    )


def predict(stepper: Stepper, data: Any, function: Callable[..., Any] | None = None) -> Any:
    """See `Learner.predict`."""
    is_single = stepper.state.is_single
    if isinstance(data, Loader) and not data.is_in_order:
        warnings.warn(
            f"predict: {data!r} gives its rows in another order than the source's, or not all of them; the outputs are "
            "in the loader's order. For the order of the source give shuffle=False, drop_last=False, and no order=",
            DataWarning,
            stacklevel=4,
        )
    if function is None and not is_single:
        raise RunError("predict: with several models it is unclear which one to call; give function=(models, batch)")
    team = stepper.team
    stepper.align()
    (models, _), device = stepper.functions.narrowed(stepper.for_inference()), without_tape(stepper.device)
    model = models[ONLY] if is_single else models
    call: Any = of_step(function or _predicted, stepper.functions.narrow)
    run: Any = compiled(call) if stepper.compiles else call
    if team is None:
        outputs = [mapped(_to_numpy, run(model, placed(batch, device))) for batch in BatchStream(data).epoch(0)]
        if not outputs:
            raise RunError("predict: there is no batch in the data")
        return mapped(lambda *parts: np.concatenate(parts), outputs[0], *outputs[1:])
    outputs: list[Any] = []
    with team.scope():
        for item in batch_stream_of(stepper, data, "validation").epoch(0):
            with team.rows_scope(item):
                output = team.replicate(run(model, team.batch_on_devices(item.batch, item, device)))
            part = mapped(_to_numpy, output)
            outputs.append(part if team.is_counted(item) else mapped(_no_rows, part))
    if not outputs:
        raise RunError("predict: there is no batch in the data")
    if not team.adds_up:
        return mapped(lambda *parts: np.concatenate(parts), outputs[0], *outputs[1:])
    return mapped(lambda *parts: team.in_order(parts), outputs[0], *outputs[1:])


def _no_rows(leaf: Any) -> Any:
    return leaf[:0]


def _to_numpy(x: Any) -> Any:
    """A tensor as an array; anything else unchanged."""
    return x.numpy() if isinstance(x, Tensor) else x


def _predicted(model: Any, batch: Any) -> Any:
    """The model's output for a batch or, if batches are `(input, ...)`, for the input."""
    inputs = cast("tuple[Any, ...]", batch)[0] if isinstance(batch, tuple) else batch
    try:
        return model(*inputs) if isinstance(batch, tuple) and type(inputs) is tuple else model(inputs)
    except TypeError as error:
        error.add_note("predict: the model was called with the batch; where that is wrong give function=(model, batch)")
        raise

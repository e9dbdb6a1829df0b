"""`profile`: time and memory of a model by layer, forward and backward."""

from __future__ import annotations

from typing import Any

from phlox.backend.contract.backend import engine_of
from phlox.debug.profile_report import Profile, rows_of
from phlox.debug.running import LossOf, checked_model, inputs_on, is_on_tape, twin_of, undisturbed, with_tape
from phlox.debug.timing import EagerTimer, Times, program_times
from phlox.errors import ModuleError
from phlox.module import Module
from phlox.module.calls import with_function_layers
from phlox.optim import Optimizer
from phlox.transform.summary.evaluate import place_of


def profile(
    model: Module,
    *inputs: Any,
    calls: int = 5,
    warmup: int = 1,
    backward: bool = True,
    loss: LossOf | None = None,
    optimizer: Any = None,
    compiled: bool | None = None,
    **named: Any,
) -> Profile:
    """Measure the time of each layer, forward and backward, and the memory of its results.

    On NumPy and PyTorch each layer is timed as it is called, and each step of the backward pass counts for the layer of
    its operation. On JAX the run is compiled as one program, and XLA's trace has the time of each operation; one that
    XLA fused from several layers counts for the layer of its result. `print` the result, or write it with
    `.to_html(path)`, which has a flame graph, or `.to_chrome_trace(path)`. The model and the optimizer do not change.

    Args:
        model: the model, in its current mode.
        inputs, named: the arguments of the call; NumPy arrays become tensors.
        calls: the number of runs over which the times are averaged.
        warmup: the number of runs before them, which are not timed.
        backward: whether to differentiate, too.
        loss: a function from the outputs to a scalar; by default the sum of the outputs with fixed weights.
        optimizer: an optimizer or its config, whose step is timed too (eagerly).
        compiled: False times eagerly also on JAX; True is an error if the engine has no compiled program with names.

    >>> import phlox as px
    >>> from phlox import nn
    >>> model = nn.Sequential([nn.Linear(8, 16), nn.Gelu(), nn.Linear(16, 4)]).init(0)
    >>> profile = px.debug.profile(model, px.ones((2, 8)), calls=2)
    >>> [row.path for row in profile.rows]
    ['', 'layers.0', 'layers.1', 'layers.2']
    >>> profile.row("layers.1").results, profile.row("layers.0").forward > 0.0
    (128, True)
    """
    checked_model("profile", model)
    if calls < 1 or warmup < 0:
        raise ModuleError(f"profile: calls is at least 1 and warmup at least 0, got {calls} and {warmup}")
    view = with_function_layers(with_tape(model) if backward else model)
    args, kwargs = inputs_on(view, (inputs, named))
    device = place_of(view, (args, kwargs), training=False)
    engine = engine_of(device.backend)
    times, notes = Times(), list[str]()
    seconds: float | None = None
    with undisturbed() as trace:
        by_program = compiled is not False and program_times(
            view, args, kwargs, loss, times, calls, backward=backward and is_on_tape(view)
        )
        if compiled and not by_program:
            raise ModuleError(f"profile: compiled=True: {engine!r} reports no times of operations in a program")
        if by_program:
            notes.append("one compiled program; an operation fused from several layers counts for the last of them")
        elif engine.compiles and engine.prefers_compiled:
            notes.append("timed eagerly, operation by operation; a compiled program is faster, with other proportions")
        if by_program and optimizer is not None:
            notes.append("the optimizer's step is timed eagerly")
        stepped = None if optimizer is None else twin_of(_optimizer_of(optimizer), trace)
        if not by_program or stepped is not None:
            timer = EagerTimer(view, Times())
            for index in range(warmup + calls):
                if index == warmup:
                    timer.times = Times()
                timer.run(args, kwargs, loss, stepped, backward=backward)
            eager = timer.times
            seconds = eager.own.get((None, "optimizer"), 0.0) / calls if stepped is not None else None
            times = times if by_program else eager
    return Profile(
        rows=rows_of(view, times),
        device=str(device.on(engine)),
        source="program" if by_program else "eager",
        calls=calls,
        outside_forward=times.own.get((None, "forward"), 0.0) / times.runs,
        outside_backward=times.own.get((None, "backward"), 0.0) / times.runs,
        optimizer=seconds,
        peak_memory=engine.peak_memory_used(device.on(engine)),
        events=times.events,
        notes=tuple(notes),
    )


def _optimizer_of(value: Any) -> Optimizer:
    if not isinstance(value, Optimizer) and callable(getattr(value, "init", None)):
        value = value.init()
    if not isinstance(value, Optimizer):
        raise ModuleError(f"profile: optimizer is an optimizer or its config, got {type(value).__name__}")
    return value

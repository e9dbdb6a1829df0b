"""The times of layers: eagerly by the clock, or by the names in an engine's trace of a compiled program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Literal, TypeAlias, cast

from phlox import random
from phlox.autodiff.tape import Node, Vjp
from phlox.backend import Backend
from phlox.backend.contract.backend import engine_of
from phlox.backend.levels import resumed
from phlox.debug.running import LossOf, float_leaves, loss_of
from phlox.debug.timeline import Timeline, around
from phlox.module import GradientsParams, Module, Param
from phlox.module.calls import Call, observed
from phlox.optim import Optimizer
from phlox.tensor import Tensor
from phlox.tensor.dispatch import ops_of
from phlox.transform.summary.evaluate import bytes_of
from phlox.transform.tree import AnyTensor, map_leaves, tensors_of

Phase: TypeAlias = Literal["forward", "backward", "optimizer"]
OUTSIDE = None
"""The path of everything outside of all layers."""


@dataclass(frozen=True, slots=True)
class Event:
    """A timed event."""

    path: str | None
    """The layer; None outside of all layers."""
    phase: Phase
    name: str
    start: float
    """In seconds."""
    seconds: float
    thread: str = ""


@dataclass(slots=True)
class Times:
    """The measurements of all runs together."""

    own: dict[tuple[str | None, Phase], float] = field(default_factory=dict[tuple[str | None, Phase], float])
    """The seconds of a layer without the layers in it."""
    whole: dict[tuple[str | None, Phase], float] = field(default_factory=dict[tuple[str | None, Phase], float])
    """The seconds of a layer with the layers in it."""
    calls: dict[str, int] = field(default_factory=dict[str, int])
    results: dict[str, int] = field(default_factory=dict[str, int])
    """Bytes of the results of the layers that call no other, in one run."""
    events: list[Event] = field(default_factory=list[Event])
    """Of the last run."""
    runs: int = 0

    def add(self, chain: Sequence[str | None], phase: Phase, seconds: float) -> None:
        """Add time of the first of these layers, which is inside of the others."""
        first = chain[0]
        self.own[first, phase] = self.own.get((first, phase), 0.0) + seconds
        for path in dict.fromkeys(chain):
            self.whole[path, phase] = self.whole.get((path, phase), 0.0) + seconds


class Sizes:
    """The number of calls of each layer, and the bytes of its results."""

    def __init__(self, times: Times) -> None:
        self.times = times
        self._parents: set[int] = set()

    def entered(self, call: Call) -> None:
        """A call begins."""
        if call.within is not None:
            self._parents.add(id(call.within))

    def left(self, call: Call) -> None:
        """A call ends."""
        times = self.times
        times.calls[call.path] = times.calls.get(call.path, 0) + 1
        if id(call) in self._parents:
            return
        inputs = {id(x.primitive) for x in tensors_of((call.args, call.kwargs))}
        kept = sum(bytes_of(x) for x in tensors_of(call.outputs) if id(x.primitive) not in inputs)
        for path in {outer.path for outer in around(call)}:
            times.results[path] = times.results.get(path, 0) + kept


class EagerTimer:
    """Times a model as it is called, one call and one step of the backward pass after the other."""

    def __init__(self, model: Module, times: Times) -> None:
        self.model, self.times = model, times

    def run(self, args: Any, kwargs: Any, loss: LossOf | None, optimizer: Optimizer | None, *, backward: bool) -> None:
        """One run."""
        times, line, sizes = self.times, Timeline(), Sizes(Times())
        times.events, times.runs = [], times.runs + 1
        begun = perf_counter()
        inside: list[tuple[float, float]] = []
        """For each unfinished call, the seconds in the calls that it made, and in this timer during them."""
        active = True

        def enter(call: Call) -> None:
            if active:
                line.entered(call)
                sizes.entered(call)
                inside.append((0.0, 0.0))
                call.notes["start"] = perf_counter()

        def leave(call: Call) -> None:
            if not active:  # a checkpoint runs its function again in the backward pass
                return
            _await(float_leaves(call.outputs))
            now = perf_counter()
            within, timer = inside.pop()
            seconds = now - call.notes["start"] - timer  # the timer's own time belongs to no layer
            key: tuple[str | None, Phase] = (call.path, "forward")
            times.own[key] = times.own.get(key, 0.0) + max(seconds - within, 0.0)
            if all(outer.path != call.path for outer in around(call)[1:]):
                times.whole[key] = times.whole.get(key, 0.0) + seconds
            times.events.append(Event(call.path, "forward", "", call.notes["start"] - begun, seconds + timer))
            sizes.left(call)
            line.left(call)
            if inside:
                before, spent = inside[-1]
                inside[-1] = before + seconds, spent + timer + (perf_counter() - now)

        with observed(self.model, leave, on_enter=enter):
            outputs = cast("Callable[..., Any]", self.model)(*args, **kwargs)
            if times.runs == 1:
                times.calls, times.results = sizes.times.calls, sizes.times.results
            active = False
            start = perf_counter()
            value = loss_of(outputs, loss) if backward or loss is not None else None
            if value is not None:
                _await([value])
                self._outside("forward", "loss", start, begun)
            if not backward or value is None:
                return
            line.wrap(value, self._timed(begun, engine_of(value.backend)))
            gradients = value.backward()
        if optimizer is not None:
            grads = GradientsParams.from_grads(gradients, self.model)
            start = perf_counter()
            stepped = optimizer.step(0.0, self.model, grads)
            _await([param.val() for param in stepped.params()])
            self._outside("optimizer", "step", start, begun)

    def _outside(self, phase: Phase, name: str, start: float, begun: float) -> None:
        seconds = perf_counter() - start
        self.times.add([OUTSIDE], phase, seconds)
        self.times.events.append(Event(OUTSIDE, phase, name, start - begun, seconds))

    def _timed(self, begun: float, engine: Backend) -> Callable[[Vjp, Call | None], Vjp]:
        times = self.times

        def wrap(vjp: Vjp, call: Call | None) -> Vjp:
            chain: list[str | None] = [OUTSIDE] if call is None else [outer.path for outer in around(call)]

            def timed(node: Node, g: Any, cotangents: Any) -> None:
                start = perf_counter()
                vjp(node, g, cotangents)
                for parent in node.parents:
                    gradient = None if parent is None else cotangents.get(parent.id)
                    if gradient is not None and type(gradient) is not dict:
                        engine.await_array(engine.strip(gradient))
                seconds = perf_counter() - start
                times.add(chain, "backward", seconds)
                times.events.append(Event(chain[0], "backward", "", start - begun, seconds))

            return timed

        return wrap


def _await(tensors: Sequence[AnyTensor]) -> None:
    """Wait until the tensors are computed, on an engine that computes asynchronously."""
    for tensor in tensors:
        tensor.backend.await_array(tensor.primitive)


# --- compiled programs

_MARK = "phlox."


def _scope_name(phase: Phase, path: str | None) -> str:
    # XLA would end the name at a colon, and the scope at a slash.
    return f"{_MARK}{phase[0]}={'(outside)' if path is None else path.replace('/', '|').replace(':', '|')}="


def program_times(
    model: Module, args: Any, kwargs: Any, loss: LossOf | None, times: Times, calls: int, *, backward: bool
) -> bool:
    """Time a model as one compiled program, by the names in its trace; False if the engine has no such trace."""
    params = list(model.structure().params)
    engine = engine_of(params[0].backend) if params else None
    if engine is None or not engine.compiles or any(engine_of(param.backend) is not engine for param in params):
        return False
    leaves = tensors_of((args, kwargs))
    arrays = [param.val().backend.strip(param.val().primitive) for param in params]
    inputs = [tensor.backend.strip(tensor.primitive) for tensor in leaves]
    stream = random.current()
    paths: dict[str, str | None] = {}
    done: list[bool] = []

    def body(donated: Any, kept: Any) -> list[Any]:
        words, *arrays_in = kept
        with random.stream(random.TracedStream(words)), resumed(()):
            copy = _around_arrays(model, params, arrays_in)
            values = iter(arrays_in[len(params) :])
            own_args, own_kwargs = map_leaves(
                lambda x: Tensor.from_primitive(next(values), engine, x.kind), (args, kwargs), Tensor
            )
            sizes = Sizes(Times())
            results = _traced(engine, copy, own_args, own_kwargs, loss, sizes, paths, backward=backward)
            if not done:
                times.calls, times.results = sizes.times.calls, sizes.times.results
                done.append(True)
        return results

    run = engine.compile(body, lambda: None)
    operations = engine.profile_operations(run, [], [stream.words(), *arrays, *inputs], calls)
    if not operations:
        return False
    times.runs = calls
    for operation in operations:
        phase, path = _phase_and_layer(operation.scope, paths)
        times.add(_chain(path, paths), phase, operation.seconds)
        times.events.append(Event(path, phase, operation.name, operation.start, operation.seconds, operation.thread))
    return True


def _around_arrays(model: Module, params: Sequence[Param], arrays: Sequence[Any]) -> Module:
    twins: list[Param] = []
    for param, array in zip(params, arrays, strict=False):
        ops = ops_of(param.backend, param.kind)
        twins.append(Param.revive(ops, array, param.trained, param.trainable, param.id, param.full_precision))
    return model.structure().build(twins)


def _traced(
    engine: Backend,
    model: Module,
    args: Any,
    kwargs: Any,
    loss: LossOf | None,
    sizes: Sizes,
    paths: dict[str, str | None],
    *,
    backward: bool,
) -> list[Any]:
    """The results of a run, in which each operation is traced in the scope of its layer."""
    line = Timeline()
    open_scopes: list[AbstractContextManager[Any]] = []
    active = True

    def scope_of(phase: Phase, path: str | None) -> AbstractContextManager[Any]:
        name = _scope_name(phase, path)
        paths[name] = path
        return engine.named_scope(name)

    def enter(call: Call) -> None:
        if active:
            line.entered(call)
            sizes.entered(call)
            scope = scope_of("forward", call.path)
            scope.__enter__()
            open_scopes.append(scope)

    def leave(call: Call) -> None:
        if active:
            open_scopes.pop().__exit__(None, None, None)
            sizes.left(call)
            line.left(call)

    def wrap(vjp: Vjp, call: Call | None) -> Vjp:
        def scoped(node: Node, g: Any, cotangents: Any) -> None:
            with scope_of("backward", None if call is None else call.path):
                vjp(node, g, cotangents)

        return scoped

    try:
        with observed(model, leave, on_enter=enter):
            outputs = cast("Callable[..., Any]", model)(*args, **kwargs)
            active = False
            results = [x.backend.strip(x.primitive) for x in tensors_of(outputs)]
            with scope_of("forward", None):
                value = loss_of(outputs, loss) if backward or loss is not None else None
            if value is not None:
                results.append(value.backend.strip(value.primitive))
            if value is not None and backward:
                line.wrap(value, wrap)
                gradients = GradientsParams.from_grads(value.backward(), model)
                grads = [gradients.get(param.id) for param in model.params()]
                results += [x.backend.strip(x.primitive) for x in grads if x is not None]
    finally:
        while open_scopes:  # after an exception
            open_scopes.pop().__exit__(None, None, None)
    return results


def _phase_and_layer(scope: str, paths: dict[str, str | None]) -> tuple[Phase, str | None]:
    """Phase and layer of an operation, from the innermost of our scopes."""
    start = scope.rfind(_MARK)
    name = scope[start : scope.find("=", scope.find("=", start) + 1) + 1] if start >= 0 else ""
    phase: Phase = "backward" if name.startswith(f"{_MARK}b") else "forward"
    return phase, paths.get(name)


def _chain(path: str | None, paths: dict[str, str | None]) -> list[str | None]:
    """A layer and the layers around it, the innermost first."""
    if path is None:
        return [OUTSIDE]
    layers = set(paths.values())
    parts = path.split(".")
    outer = [".".join(parts[:count]) for count in range(len(parts) - 1, 0, -1)]
    return [path, *(layer for layer in outer if layer in layers), *([""] if path else [])]

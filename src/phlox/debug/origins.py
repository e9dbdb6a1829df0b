"""The origin of values that are not finite: each is traced back to the operation that made the first of them.

An operation is an origin if its operands are finite and its result is not; everything computed from its result, forward
and backward, has this origin. An infinity that reaches no result (a mask of -inf before a softmax) is not reported.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import CodeType
from typing import Any, Literal, TypeAlias, cast

from phlox.autodiff.tape import Node, is_poisoned, is_spent
from phlox.backend import Backend, Float
from phlox.debug.operands import Range, arrays_in, range_of
from phlox.debug.places import Place, place_of_call
from phlox.debug.running import float_leaves
from phlox.module import Module
from phlox.module.calls import Call, layer_name, observed
from phlox.tensor.dispatch import Ops
from phlox.tensor.observing import observed_operations
from phlox.transform.tree import AnyTensor

Phase: TypeAlias = Literal["parameter", "input", "forward", "backward"]


@dataclass(frozen=True, slots=True)
class NonFinite:
    """The first NaN or infinity of a computation, as `find_nan` returns it; print it."""

    phase: Phase
    """Where the value is: in a parameter, in an input, or in a result of the forward or the backward pass."""
    path: str
    """The path of the layer, such as `layers.1`, or of the parameter; the empty string is the model itself."""
    layer: str
    """The class of the layer, or the name of a function among layers. Empty outside of all layers."""
    operation: str | None
    """The operation, such as `sqrt`; in the backward pass, the one that is differentiated. None if it is not known."""
    found: Range
    """The range of the result; in the backward pass, of the gradient that the operation returned."""
    inputs: tuple[Range, ...] = ()
    """The ranges of the Float operands; in the backward pass, the gradient that reached the operation comes first."""
    place: Place | None = None
    """The line of the program."""
    model: str = ""
    """The name of the model, if there are several."""

    @property
    def what(self) -> Literal["NaN", "infinity"]:
        """Is the value "NaN" or "infinity"?"""
        return "NaN" if self.found.nans else "infinity"

    @property
    def full_path(self) -> str:
        """The path, with the name of the model if it has one."""
        return ".".join(part for part in (self.model, self.path) if part)

    def __str__(self) -> str:
        text = self.found.what()
        if self.phase in ("parameter", "input"):
            return f"{text} in the {self.phase} `{self.full_path}`"
        inside = f"`{self.full_path}`" if self.full_path else "the model"
        layer = f"in {inside} ({self.layer})" if self.layer else "outside of all layers"
        if self.phase == "forward":
            subject = f"the output of `{self.operation}` {layer}" if self.operation else f"the output of {inside}"
            lead = f"{text} in {subject if self.operation or self.layer else 'a value computed from the outputs'}"
            lead += f" ({self.layer})" if self.layer and not self.operation else ""
        else:
            where = f"through `{self.operation}` {layer}" if self.operation else f"of {inside}"
            lead = f"{text} in the gradient {where}"
        lines = [lead]
        if self.place is not None:
            line = f": {self.place.text}" if self.place.text else ""
            lines.append(f"  at {self.place}{line}")
        operands = list(self.inputs)
        if self.phase == "backward" and operands:
            lines.append(f"  the gradient that reaches it: {operands.pop(0)}")
        lines += [f"  {'operand' if len(operands) > 1 else 'its operand'}{f' {n}' * (len(operands) > 1)}: {operand}"
                  for n, operand in enumerate(operands, 1)]  # fmt: skip
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class _Origin:
    report: NonFinite
    is_meant: bool
    """Did the program mean it: a constant of infinity, or an operand of unknown origin?"""


class Search:
    """The search in one computation."""

    def __init__(self, models: dict[str, Module], run: CodeType) -> None:
        self.models, self.run = models, run
        self.first_backward: NonFinite | None = None
        self._faults: list[_Origin] = []  # in the forward pass, without those that are meant
        self._layer: tuple[str, Call] | None = None
        self._origins: dict[int, tuple[Any, _Origin]] = {}  # by id, with the array: it keeps its id while it exists
        self._wrapped: set[int] = set()

    @property
    def first_forward(self) -> NonFinite | None:
        """The first origin that is not deliberate, whether or not it reaches a result."""
        return self._faults[0].report if self._faults else None

    @contextmanager
    def watching(self) -> Generator[None]:
        """A scope in which operations and calls of the models are observed."""
        with ExitStack() as stack:
            for name, model in self.models.items():
                enter, leave = self._entering(name), self._leaving(name)
                stack.enter_context(observed(model, leave, on_enter=enter))
            stack.enter_context(observed_operations(self._on_operation))
            yield

    def origin_of(self, tensors: Iterable[AnyTensor]) -> NonFinite | None:
        """The origin of the first of these that is not finite."""
        for tensor in tensors:
            span = range_of(tensor.backend, tensor.primitive)
            if span is None or span.is_finite:
                continue
            origin = self.known_origin(tensor.primitive) or self.known_origin(tensor.backend.strip(tensor.primitive))
            if origin is not None:
                return origin
            # Nothing is known of values that are computed where no operation is observed, as in an optimizer.
            return self.first_forward or self.first_backward or NonFinite("forward", "", "", None, span)
        return None

    # --- layers

    def _entering(self, name: str) -> Callable[[Call], None]:
        def enter(call: Call) -> None:
            call.notes["around"] = self._layer
            call.notes["known"] = len(self._faults)
            self._layer = name, call

        return enter

    def _leaving(self, name: str) -> Callable[[Call], None]:
        def leave(call: Call) -> None:
            self._layer = call.notes["around"]
            # A value that arises where no operation is observed, as in a loop that the engine runs, is the layer's.
            for tensor in float_leaves(call.outputs):
                if self._lookup(tensor.primitive) is not None:
                    continue
                span = range_of(tensor.backend, tensor.primitive)
                if span is None or span.is_finite:
                    continue
                operands = float_leaves((call.args, call.kwargs))
                origin = self._origin_among(tensor.backend, [x.primitive for x in operands])
                origin = origin or next(iter(self._faults[call.notes["known"] :]), None)
                if origin is None:
                    inputs = tuple([r for x in operands if (r := range_of(x.backend, x.primitive)) is not None])
                    origin = self._new(self._at("forward", None, span, inputs, None, (name, call)), is_meant=False)
                self._mark(tensor.primitive, origin)

        return leave

    def _at(
        self,
        phase: Phase,
        operation: str | None,
        span: Range,
        inputs: tuple[Range, ...],
        place: Place | None,
        layer: tuple[str, Call] | None,
    ) -> NonFinite:
        if layer is None:
            return NonFinite(phase, "", "", operation, span, inputs, place)
        name, call = layer
        return NonFinite(phase, call.path, layer_name(call.module), operation, span, inputs, place, name)

    # --- operations

    def _on_operation(self, ops: Ops, name: str, arguments: tuple[Any, ...], result: Any) -> None:
        backend = ops.backend
        results = list(arrays_in(cast("Sequence[Any]", result) if isinstance(result, (list, tuple)) else [result]))
        operands = list(arrays_in(arguments))
        ranges = [range_of(backend, x) for x in results]
        if backend.differentiates and any(span is not None for span in ranges):
            self._watch_nodes(backend, name, operands, results)
        bad = [(x, span) for x, span in zip(results, ranges, strict=True) if span is not None and not span.is_finite]
        if not bad:
            return
        inputs = [r for x in operands if (r := range_of(backend, x)) is not None]
        origin = self._origin_among(backend, operands)
        had_nan = any(span.nans for span in inputs)
        had_some = any(not span.is_finite for span in inputs)
        if origin is None and had_nan and self._faults:
            origin = self._faults[0]  # it came through an unobserved operation, such as the stacking of results
        for x, span in bad:
            cause = origin
            if cause is None or (cause.is_meant and span.nans and not had_nan):
                # Infinities that the program itself creates are no fault; a NaN that results from them is one.
                is_meant = had_some and not (span.nans and not had_nan)
                place = place_of_call(self.run)
                cause = self._new(self._at("forward", name, span, tuple(inputs), place, self._layer), is_meant=is_meant)
            self._mark(x, cause)

    def _origin_among(self, backend: Backend, operands: Iterable[Any]) -> _Origin | None:
        origins = [origin for x in operands if (origin := self._lookup(x)) is not None]
        return next((origin for origin in origins if not origin.is_meant), origins[0] if origins else None)

    def _new(self, report: NonFinite, *, is_meant: bool) -> _Origin:
        origin = _Origin(report, is_meant)
        if report.phase == "forward" and not is_meant:
            self._faults.append(origin)
        elif report.phase == "backward" and self.first_backward is None:
            self.first_backward = report
        return origin

    def known_origin(self, x: Any) -> NonFinite | None:
        """The origin of a backend's own array, if it is not finite and was observed."""
        origin = self._lookup(x)
        return None if origin is None else origin.report

    def _lookup(self, x: Any) -> _Origin | None:
        entry = self._origins.get(id(x))
        return None if entry is None else entry[1]

    def _mark(self, x: Any, origin: _Origin) -> None:
        self._origins.setdefault(id(x), (x, origin))

    # --- the backward pass

    def _watch_nodes(self, backend: Backend, name: str, operands: list[Any], results: list[Any]) -> None:
        layer, lines, inner = self._layer, place_of_call(self.run), backend.inner
        assert inner is not None
        nodes = [node for x in results if (node := backend.node_of(x)) is not None]
        # If an operation has several results, each has a node, and they share one more, which has the derivative.
        common = {parent.id: parent for node in nodes for parent in node.parents[:1] if parent is not None}
        if len(nodes) > 1 and len(common) == 1:
            nodes += common.values()
        for node in nodes:
            vjp = node.vjp
            if vjp is None or node.id in self._wrapped or is_spent(node) or is_poisoned(node):
                continue
            self._wrapped.add(node.id)
            node.vjp = self._watched(vjp, inner, (backend, name, operands), layer, lines)

    def _watched(
        self,
        vjp: Callable[..., None],
        inner: Backend,
        step: tuple[Backend, str, list[Any]],
        layer: tuple[str, Call] | None,
        place: Place | None,
    ) -> Callable[..., None]:
        def watched(node: Node, g: Any, cotangents: Any) -> None:
            parents = [parent.id for parent in node.parents if parent is not None]
            before = {node_id: _several(cotangents.get(node_id)) for node_id in parents}
            vjp(node, g, cotangents)
            for node_id in parents:
                for x in _several(cotangents.get(node_id)):
                    if any(x is old for old in before[node_id]) or self._lookup(x) is not None:
                        continue
                    span = range_of(inner, x)
                    if span is None or span.is_finite:
                        continue
                    arrived = _several(g)
                    origin = self._origin_among(inner, [*arrived, *before[node_id]])
                    if origin is None:
                        origin = self._new(self._of_step(span, arrived, inner, step, layer, place), is_meant=False)
                    self._mark(x, origin)

        return watched

    def _of_step(
        self,
        span: Range,
        arrived: list[Any],
        inner: Backend,
        step: tuple[Backend, str, list[Any]],
        layer: tuple[str, Call] | None,
        place: Place | None,
    ) -> NonFinite:
        backend, name, operands = step
        ranges = [range_of(inner, g) for g in arrived[:1]] + [range_of(backend, x) for x in operands]
        inputs = tuple([span for span in ranges if span is not None])
        return self._at("backward", name, span, inputs, place, layer)


def _several(g: Any) -> list[Any]:
    """A gradient, or the gradients of a node with several results."""
    if g is None:
        return []
    return list(cast("dict[int, Any]", g).values()) if type(g) is dict else [g]


def bad_parameter(models: dict[str, Module]) -> NonFinite | None:
    """The first parameter with NaN, or the first trained one with an infinity."""
    for name, model in models.items():
        for path, param in model.named_params():
            if not param.is_initialized or param.kind is not Float:
                continue
            value = param.val()
            span = range_of(value.backend, value.primitive)
            if span is not None and (span.nans or (span.infinities and param.trained)):
                return NonFinite("parameter", path, "", None, span, model=name)
    return None


def bad_input(inputs: Iterable[tuple[str, AnyTensor]]) -> NonFinite | None:
    """The first input that has a NaN; an infinity may be a mask."""
    for path, value in inputs:
        span = range_of(value.backend, value.primitive) if value.kind is Float else None
        if span is not None and span.nans:
            return NonFinite("input", path, "", None, span)
    return None

"""The origin of values that are not finite: each is traced back to the operation that made the first of them.

An operation whose operands are finite and whose result is not is an origin; everything computed from its result,
forward and backward, comes from there. So an infinity that goes nowhere (a mask of -inf before a softmax) is no origin.
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
        found = self.found.what()
        if self.phase in ("parameter", "input"):
            return f"{found} in the {self.phase} `{self.full_path}`"
        inside = f"`{self.full_path}`" if self.full_path else "the model"
        layer = f"in {inside} ({self.layer})" if self.layer else "outside of all layers"
        if self.phase == "forward":
            what = f"the output of `{self.operation}` {layer}" if self.operation else f"the output of {inside}"
            lead = f"{found} in {what if self.operation or self.layer else 'what is computed of the outputs'}"
            lead += f" ({self.layer})" if self.layer and not self.operation else ""
        else:
            way = f"through `{self.operation}` {layer}" if self.operation else f"of {inside}"
            lead = f"{found} in the gradient {way}"
        lines = [lead]
        if self.place is not None:
            text = f": {self.place.text}" if self.place.text else ""
            lines.append(f"  at {self.place}{text}")
        given = list(self.inputs)
        if self.phase == "backward" and given:
            lines.append(f"  the gradient that reaches it: {given.pop(0)}")
        lines += [f"  {'operand' if len(given) > 1 else 'its operand'}{f' {n}' * (len(given) > 1)}: {one}"
                  for n, one in enumerate(given, 1)]  # fmt: skip
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class _Origin:
    found: NonFinite
    given: bool
    """Is it deliberate: a constant of infinity, or an operand of unknown origin?"""


class Search:
    """The search in one computation."""

    def __init__(self, models: dict[str, Module], run: CodeType) -> None:
        self.models, self.run = models, run
        self.first_backward: NonFinite | None = None
        self._made: list[_Origin] = []  # forward, but for those that the program has put there itself
        self._layer: tuple[str, Call] | None = None
        self._origins: dict[int, tuple[Any, _Origin]] = {}  # with the array, which is kept so that its id stays its own
        self._wrapped: set[int] = set()

    @property
    def first_forward(self) -> NonFinite | None:
        """The first origin that is not deliberate, whether or not it reaches a result."""
        return self._made[0].found if self._made else None

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
        for one in tensors:
            found = range_of(one.backend, one.primitive)
            if found is None or found.is_finite:
                continue
            origin = self.known_origin(one.primitive) or self.known_origin(one.backend.strip(one.primitive))
            if origin is not None:
                return origin
            # Of what is computed where no operation is seen, as by an optimizer, nothing is known.
            return self.first_forward or self.first_backward or NonFinite("forward", "", "", None, found)
        return None

    # --- layers

    def _entering(self, name: str) -> Callable[[Call], None]:
        def enter(call: Call) -> None:
            call.notes["around"] = self._layer
            call.notes["known"] = len(self._made)
            self._layer = name, call

        return enter

    def _leaving(self, name: str) -> Callable[[Call], None]:
        def leave(call: Call) -> None:
            self._layer = call.notes["around"]
            # What arises where no operation is seen, as in a loop that the engine runs, arises in the layer.
            for one in float_leaves(call.outputs):
                if self._known(one.primitive) is not None:
                    continue
                found = range_of(one.backend, one.primitive)
                if found is None or found.is_finite:
                    continue
                given = float_leaves((call.args, call.kwargs))
                origin = self._origin_among(one.backend, [x.primitive for x in given])
                origin = origin or next(iter(self._made[call.notes["known"] :]), None)
                if origin is None:
                    inputs = tuple([known for x in given if (known := range_of(x.backend, x.primitive)) is not None])
                    origin = self._new(self._at("forward", None, found, inputs, None, (name, call)), given=False)
                self._mark(one.primitive, origin)

        return leave

    def _at(
        self,
        phase: Phase,
        operation: str | None,
        found: Range,
        inputs: tuple[Range, ...],
        place: Place | None,
        layer: tuple[str, Call] | None,
    ) -> NonFinite:
        if layer is None:
            return NonFinite(phase, "", "", operation, found, inputs, place)
        name, call = layer
        return NonFinite(phase, call.path, layer_name(call.module), operation, found, inputs, place, name)

    # --- operations

    def _on_operation(self, ops: Ops, name: str, arguments: tuple[Any, ...], result: Any) -> None:
        backend = ops.backend
        results = list(arrays_in(cast("Sequence[Any]", result) if isinstance(result, (list, tuple)) else [result]))
        operands = list(arrays_in(arguments))
        ranges = [range_of(backend, x) for x in results]
        if backend.differentiates and any(one is not None for one in ranges):
            self._watch_nodes(backend, name, operands, results)
        bad = [(x, one) for x, one in zip(results, ranges, strict=True) if one is not None and not one.is_finite]
        if not bad:
            return
        inputs = [one for x in operands if (one := range_of(backend, x)) is not None]
        origin = self._origin_among(backend, operands)
        had_nan = any(one.nans for one in inputs)
        had_some = any(not one.is_finite for one in inputs)
        if origin is None and had_nan and self._made:
            origin = self._made[0]  # it has gone a way that is not seen, such as the stacking of a loop's results
        for x, found in bad:
            here = origin
            if here is None or (here.given and found.nans and not had_nan):
                # Infinities that the program has put there itself are no fault; a NaN that is made of them is.
                given = had_some and not (found.nans and not had_nan)
                place = place_of_call(self.run)
                here = self._new(self._at("forward", name, found, tuple(inputs), place, self._layer), given=given)
            self._mark(x, here)

    def _origin_among(self, backend: Backend, operands: Iterable[Any]) -> _Origin | None:
        known = [origin for x in operands if (origin := self._known(x)) is not None]
        return next((origin for origin in known if not origin.given), known[0] if known else None)

    def _new(self, found: NonFinite, *, given: bool) -> _Origin:
        origin = _Origin(found, given)
        if found.phase == "forward" and not given:
            self._made.append(origin)
        elif found.phase == "backward" and self.first_backward is None:
            self.first_backward = found
        return origin

    def known_origin(self, x: Any) -> NonFinite | None:
        """Where a backend's own array comes from, if it is not finite and was seen."""
        known = self._known(x)
        return None if known is None else known.found

    def _known(self, x: Any) -> _Origin | None:
        known = self._origins.get(id(x))
        return None if known is None else known[1]

    def _mark(self, x: Any, origin: _Origin) -> None:
        self._origins.setdefault(id(x), (x, origin))

    # --- the backward pass

    def _watch_nodes(self, backend: Backend, name: str, operands: list[Any], results: list[Any]) -> None:
        layer, lines, inner = self._layer, place_of_call(self.run), backend.inner
        assert inner is not None
        nodes = [node for x in results if (node := backend.node_of(x)) is not None]
        # Several results of one operation have a node each, and one in common, which has the derivative.
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
            before = {number: _several(cotangents.get(number)) for number in parents}
            vjp(node, g, cotangents)
            for number in parents:
                for x in _several(cotangents.get(number)):
                    if any(x is old for old in before[number]) or self._known(x) is not None:
                        continue
                    found = range_of(inner, x)
                    if found is None or found.is_finite:
                        continue
                    arrived = _several(g)
                    origin = self._origin_among(inner, [*arrived, *before[number]])
                    if origin is None:
                        origin = self._new(self._of_step(found, arrived, inner, step, layer, place), given=False)
                    self._mark(x, origin)

        return watched

    def _of_step(
        self,
        found: Range,
        arrived: list[Any],
        inner: Backend,
        step: tuple[Backend, str, list[Any]],
        layer: tuple[str, Call] | None,
        place: Place | None,
    ) -> NonFinite:
        backend, name, operands = step
        ranges = [range_of(inner, g) for g in arrived[:1]] + [range_of(backend, x) for x in operands]
        inputs = tuple([one for one in ranges if one is not None])
        return self._at("backward", name, found, inputs, place, layer)


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
            found = range_of(value.backend, value.primitive)
            if found is not None and (found.nans or (found.infinities and param.trained)):
                return NonFinite("parameter", path, "", None, found, model=name)
    return None


def bad_input(inputs: Iterable[tuple[str, AnyTensor]]) -> NonFinite | None:
    """The first input that has a NaN; an infinity may be a mask."""
    for path, value in inputs:
        found = range_of(value.backend, value.primitive) if value.kind is Float else None
        if found is not None and found.nans:
            return NonFinite("input", path, "", None, found)
    return None

"""`scan`: a loop that a compiled function contains as one loop, whatever the number of steps."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from operator import index
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from phlox import random
from phlox.backend import Backend, Device, Float, Int, Kind, as_device
from phlox.backend.kind import Bool
from phlox.backend.pytree import Build
from phlox.backend.tracing import checks
from phlox.backend.tracing.scalar import TracedScalar
from phlox.backend.tracing.symbolic import less
from phlox.errors import BackendError, KindError, ModuleError, ShapeError
from phlox.host.signal_guard import scope
from phlox.module import Module, Param
from phlox.module.statics import static_key
from phlox.module.template import aux_of
from phlox.optim import Optimizer
from phlox.optim.optimizer import tracing
from phlox.other_names import answering
from phlox.tensor import Tensor, stack, tensor
from phlox.tensor.backend_promotion import is_below, on_vmap_backend
from phlox.transform.tree import AnyTensor, parts_of, with_parts

_SCALARS: dict[type[Any], type[Kind]] = {bool: Bool, int: Int, float: Float}
C = TypeVar("C")
ScanBody = Callable[[Any, Any], tuple[Any, Any]]


@answering
def scan(
    fn: Callable[[C, Any], tuple[C, Any]], carry: C, xs: Any = None, *, length: int | None = None, reverse: bool = False
) -> tuple[C, Any]:
    """Loop `fn(carry, x) -> (carry, y)` over the first axis of `xs`, and return the last carry and the stacked ys.

    Carry, xs and ys are tensors and modules, or lists, tuples and dicts of them. xs are stacked on their first axis;
    `phlox.stack_modules` does that for layers. In eager mode this is an ordinary loop. In a program compiled by XLA it
    is one loop of the program: program size and compile time do not grow with the number of steps. Both do the same:

    - Random draws differ from step to step, and are the same in both.
    - Gradients flow to the carry, to xs, and to everything else that the function uses. The tape saves the values of
      every step; with `phlox.scan(phlox.checkpoint(fn), ...)` it saves only the carries.
    - A module in the carry is a copy. It may set its running statistics, and the last copy is returned. So a module
      that sets running statistics must be in the carry, not outside the function.

    The carry must keep its structure, shapes and kinds. Numbers in it become tensors of rank 0. Modules in the ys are
    stacked into a new model, as by `phlox.stack_modules`.

    Args:
        fn: the function of a step.
        carry: the carry of the first step.
        xs: the values to loop over; without them `fn` gets None in place of x.
        length: the number of steps; needed only without xs.
        reverse: loop from the last x to the first; the ys stay in the order of the xs.

    Raises `ShapeError` if first axes differ in size or there are no steps, `ModuleError` if the carry does not keep its
    structure, or if a value cannot be part of a loop. Each error names the path.

    >>> import phlox as px
    >>> total, sums = px.scan(lambda total, x: (total + x, total + x), px.tensor(0.0), px.tensor([1.0, 2.0, 3.0]))
    >>> total.item(), sums.tolist()
    (6.0, [1.0, 3.0, 6.0])
    """
    if not callable(fn):
        raise KindError(f"scan: the first argument is a function of (carry, x), got {type(fn).__name__}")
    start, along = _TreeLeaves(carry, "carry"), _TreeLeaves(xs, "xs")
    device = start.device() or along.device() or as_device(None)
    start.on(device)
    steps = _length(along.on(device), length)
    backend = _highest([*start.tensors, *along.tensors], device.backend)
    loop = _Loop(fn, start, along, steps, reverse)
    if not backend.traces_loops():
        return loop.run()
    while True:
        try:
            return loop.trace(backend)
        except _HigherBackend as higher:
            if higher.loop is not loop:
                raise
            backend = higher.backend


def _length(along: _TreeLeaves, length: int | None) -> int:
    """The number of steps."""
    if length is not None:
        try:
            length = index(length)
        except TypeError:
            raise KindError(f"scan: length is an integer, the number of steps; got {length!r}") from None
    sizes = _lengths(along.tensors, along.paths())
    scalar = next((path for path, size in sizes.items() if size is None), None)
    if scalar is not None:
        raise ShapeError(
            f"scan: {scalar} has no axis to loop over; use values that are the same in every step without xs"
        )
    distinct: list[int] = []
    for size in sizes.values():
        if size not in distinct:  # symbolic dimensions have no hash
            distinct.append(cast(int, size))
    if len(distinct) > 1 or (distinct and length is not None and distinct != [length]):
        have = ", ".join(f"{path} has {size}" for path, size in sizes.items())
        suffix = "" if length is None else f", and length is {length}"
        raise ShapeError(
            f"scan: the first axes of xs must be of one size: {have}{suffix} (a list of layers is not "
            "run along: make them one with phlox.stack_modules)"
        )
    if not distinct and length is None:
        raise ShapeError("scan: without tensors in xs, give the number of steps: length=...")
    steps = cast("int", distinct.pop() if distinct else length)
    if less(steps, 1):
        raise ShapeError(f"scan: there must be at least one step, to know the form of its results; got {steps}")
    return steps


def _highest(tensors: Iterable[AnyTensor], backend: Backend) -> Backend:
    """The highest backend of these tensors that decorates this one; this one if none does."""
    for x in tensors:
        if is_below(backend, x.backend):
            backend = x.backend
    return backend


class _HigherBackend(Exception):
    """The function computes on a backend above the backend of its arguments."""

    def __init__(self, loop: _Loop, backend: Backend) -> None:
        self.loop, self.backend = loop, backend


class _Loop:
    """A call of `scan`."""

    def __init__(self, fn: ScanBody, start: _TreeLeaves, along: _TreeLeaves, length: int, reverse: bool) -> None:
        self.fn, self.start, self.along, self.length, self.reverse = fn, start, along, length, reverse
        self.is_raised = False
        """Was a tensor of the carry raised to a higher backend?"""

    def _step(self, carry: Any, x: Any) -> tuple[_TreeLeaves, _TreeLeaves]:
        """Call the function, and check that the carry kept its form."""
        result: Any = self.fn(carry, x)
        if not isinstance(result, tuple) or len(cast("tuple[Any, ...]", result)) != 2:
            raise ModuleError(
                f"scan: the function must return a pair (carry, y), got {type(cast('object', result)).__name__}; "
                "y may be None"
            )
        device = self.start.device() or self.along.device()
        after, y = _TreeLeaves(result[0], "carry").on(device), _TreeLeaves(result[1], "y", is_result=True).on(device)
        self.is_raised |= self.start.meet(after)
        difference = self.start.difference(after)
        if difference is not None:
            raise ModuleError(
                "scan: the carry must be returned with the structure, shapes and kinds that it had: "
                f"{difference}; return it like that, or start with a carry like the returned one"
            )
        return after, y

    def run(self) -> tuple[Any, Any]:
        """Run as an ordinary loop."""
        entries = [[x._with(row) for row in x.backend.unstack(x.primitive)] for x in self.along.tensors]  # pyright: ignore[reportPrivateUsage]
        carry, rows = self.start, list[_TreeLeaves]()
        for number in reversed(range(self.length)) if self.reverse else range(self.length):
            x = self.along.build(iter([rows[number] for rows in entries]))
            carry, y = self._step(carry.build(iter(carry.tensors)), x)
            if rows:
                rows[0].meet(y)
            difference = rows[0].difference(y) if rows else None
            if difference is not None:
                raise ModuleError(f"scan: the result beside the carry must have one form in every step: {difference}")
            rows.append(y)
        if self.reverse:
            rows.reverse()
        columns = zip(*(row.tensors for row in rows), strict=True)
        return carry.build(iter(carry.tensors)), rows[0].build(map(stack, columns))

    def trace(self, backend: Backend) -> tuple[Any, Any]:
        """Run as one loop of the program that is being traced."""
        stream, start, along = random.current(), self.start.tensors, self.along.tensors
        self._check_engine(backend, [*start, *along], [*self.start.paths(), *self.along.paths()])
        tracer = checks.tracer()
        checked = tracer is not None and backend.trace_of(tracer) is backend.current_trace()
        last: list[Any] = []

        def body(state: tuple[Any, ...], entry: tuple[Any, ...]) -> tuple[Sequence[Any], Sequence[Any]]:
            rng = random.TracedStream(state[0])
            rng.whole = stream.whole
            carry = self.start.build(map(_tensor_like, [backend] * len(start), start, state[1:]))
            x = self.along.build(map(_tensor_like, [backend] * len(along), along, entry))
            # Traced: an optimizer from outside would otherwise keep tracers after the loop.
            with scope(tracing, rng), random.stream(rng), checks.collecting(checked, state[0]) as collected:
                after, y = self._step(carry, x)
            tensors = [*after.tensors, *y.tensors]
            higher = _highest(tensors, backend)
            if higher is not backend or self.is_raised:
                self.is_raised = False
                raise _HigherBackend(self, higher)
            self._check_engine(backend, tensors, [*after.paths(), *y.paths()])
            last[:] = after, y, rng.position, collected
            ys = [x.primitive for x in y.tensors]
            return [rng.words(), *(x.primitive for x in after.tensors)], [*ys, *collected.values]

        state, entries = [stream.words(), *(x.primitive for x in start)], [x.primitive for x in along]
        (_, *carry), stacked = backend.scan(body, state, entries, self.length, reverse=self.reverse)
        after, y, draws, collected = last
        stream.skip(draws * self.length, backend)
        count = len(y.tensors)
        if collected.checks:
            checks.add_from_loop(collected, [backend.strip(x) for x in stacked[count:]])
        ends = after.build(map(_tensor_like, [backend] * len(carry), after.tensors, carry))
        return ends, y.build(map(_tensor_like, [backend] * count, y.tensors, stacked[:count]))

    def _check_engine(self, backend: Backend, tensors: Sequence[AnyTensor], paths: Sequence[str]) -> None:
        for x, path in zip(tensors, paths, strict=True):
            if x.backend is not backend and not is_below(x.backend, backend):
                raise BackendError(
                    f"scan: {path} is on {x.backend!r}, and the loop is traced on {backend!r}; move it there with "
                    ".to_device(...), or make it there (device=...)"
                )


def _tensor_like(backend: Backend, like: AnyTensor, array: Any) -> AnyTensor:
    """A tensor like another, around an array of its backend or of a backend above it."""
    while backend is not like.backend and (below := backend.without_tape()) is not None:
        array, backend = backend.value(array), below
    if backend is not like.backend:  # a constant, beside arrays of a decorator without a tape
        like = like._on(backend)  # pyright: ignore[reportPrivateUsage]
    return like._with(array)  # pyright: ignore[reportPrivateUsage]


# --- trees that go from step to step


class _Part(NamedTuple):
    """A part of a structure: a tensor, which is a leaf, or a value that must not change between steps."""

    path: str
    leaf: Any
    form: Hashable
    text: str


class _TreeLeaves:
    """A flattened structure: its tensors, and how to build it around other tensors."""

    def __init__(self, value: Any, name: str, *, is_result: bool = False) -> None:
        self._name, self._is_result = name, is_result
        self._parts: list[_Part] = []
        self.build: Build = self._flatten(value, name)
        self._leaves: list[Any] = [part.leaf for part in self._parts if part.form is None]

    def device(self) -> Device | None:
        """The device of the first tensor."""
        return next((x.device for x in self._leaves if isinstance(x, Tensor)), None)

    def on(self, device: Device | None) -> _TreeLeaves:
        """Make tensors on a device of the scalars; returns self."""
        self._leaves = [
            on_vmap_backend(x if isinstance(x, Tensor) else _of_scalar(x, as_device(device))) for x in self._leaves
        ]
        return self

    @property
    def tensors(self) -> list[AnyTensor]:
        """The tensors, in order; scalars are tensors after `on`."""
        return self._leaves

    def paths(self) -> list[str]:
        """The path of each tensor."""
        return [part.path for part in self._parts if part.form is None]

    def meet(self, other: _TreeLeaves) -> bool:
        """Raise each pair of tensors, of this and another structure, to the higher of their backends.

        A raised tensor is a constant of the higher backend. Returns whether one of this structure was raised.
        """
        moved = False
        if self._forms() == other._forms():
            for index, (x, y) in enumerate(zip(self._leaves, other._leaves, strict=True)):
                if is_below(x.backend, y.backend):
                    self._leaves[index], moved = x._on(y.backend), True
                elif is_below(y.backend, x.backend):
                    other._leaves[index] = y._on(x.backend)
        return moved

    def difference(self, other: _TreeLeaves) -> str | None:
        """The first difference from another structure, apart from values, in words; None if there is none."""
        if self._forms() == other._forms() and self._shapes() == other._shapes():
            return None
        before, after = self._describe(), other._describe()
        for path, (key, text) in before.items():
            if path not in after:
                return f"{path} ({text}) is missing"
            if after[path][0] != key:
                return f"{path} was {text} and is {after[path][1]}"
        return next((f"{path} ({text}) is new" for path, (_, text) in after.items() if path not in before), None)

    def _forms(self) -> list[tuple[str, Hashable]]:
        return [(part.path, part.form) for part in self._parts]

    def _shapes(self) -> list[Any]:
        return [(x.backend, x.kind, x.shape) for x in self._leaves]

    def _describe(self) -> dict[str, tuple[Hashable, str]]:
        leaves = iter(self._leaves)
        described: dict[str, tuple[Hashable, str]] = {}
        for part in self._parts:
            if part.form is None:
                x = next(leaves)
                text = f"{x.kind.__name__} of shape {x.shape} on {x.backend!r}"
                described[part.path] = (text, text)
            else:
                described[part.path] = (part.form, part.text)
        return described

    def _flatten(self, value: Any, path: str) -> Build:
        if isinstance(value, Tensor):
            return self._leaf(cast("AnyTensor", value), path)
        if isinstance(value, Module):
            return self._module(value, path)
        if isinstance(value, np.generic):
            value = cast("Any", value).item()
        kind = cast("type[Any]", type(value))
        if kind in _SCALARS or kind is TracedScalar or (getattr(value, "ndim", None) == 0 and hasattr(value, "dtype")):
            return self._leaf(value, path)
        parts = parts_of(value)
        if parts is None:
            return self._static(value, path)
        labels = tuple(sorted(label for label, _ in parts)) if isinstance(value, dict) else len(parts)
        self._parts.append(_Part(path, None, (kind, labels), f"a {kind.__name__} of {len(parts)}"))
        builds: dict[int, Build] = {}
        # The keys of a dict may come in another order each time.
        order = range(len(parts))
        for position in sorted(order, key=lambda position: parts[position][0]) if isinstance(value, dict) else order:
            label, part = parts[position]
            builds[position] = self._flatten(part, path + label)

        def build(tensors: Iterator[AnyTensor]) -> Any:
            built = {position: build_part(tensors) for position, build_part in builds.items()}
            return with_parts(value, [built[position] for position in order])

        return build

    def _leaf(self, value: Any, path: str) -> Build:
        self._parts.append(_Part(path, value, None, ""))
        return next

    def _module(self, module: Module, path: str) -> Build:
        structure = module.structure()
        for name, param in structure.named():
            value = param.val()
            self._leaf(value.detach() if self._is_result else value, f"{path}.{name}")
        self._parts.append(_Part(path, None, aux_of(structure).template, f"a {type(module).__name__}"))
        make_param = Param.another if self._is_result else Param.around
        return lambda tensors: structure.build([make_param(param, next(tensors)) for param in structure.params])

    def _static(self, value: Any, path: str) -> Build:
        if isinstance(value, Optimizer):
            raise ModuleError(
                f"{path}: an optimizer changes in place and cannot be part of a loop; for several steps in one program "
                "use phlox.compile(step, steps=...)"
            )
        try:
            form = static_key(value)
        except TypeError:
            raise ModuleError(
                f"{path}: a value of type {type(value).__name__} cannot be part of a loop, which takes tensors, "
                "modules, gradients, numbers and constants, in lists, tuples and dicts; make it a tensor"
            ) from None
        self._parts.append(_Part(path, None, form, repr(value)))
        return lambda tensors: value


def _of_scalar(value: Any, device: Device) -> AnyTensor:
    kind = _SCALARS.get(cast("type[Any]", type(value)))
    if kind is not None:
        return tensor(value, device=device, kind=kind)
    if isinstance(value, TracedScalar):
        return tensor(value, device=device)
    backend = device.backend  # the value is a traced scalar of this backend
    kind = backend.kind_of(value)
    if kind is Float:
        return Tensor.from_primitive(backend.float_full((), 0.0, device), backend, Float) + value
    return Tensor.from_primitive(backend.int_full((), 0, device), backend, Int) + value


def _lengths(packed: Sequence[AnyTensor], paths: Sequence[str]) -> dict[str, int | None]:
    """The size of the first axis of each tensor, by path; None for one that has no axes."""
    return {path: x.shape[0] if x.ndim else None for path, x in zip(paths, packed, strict=True)}

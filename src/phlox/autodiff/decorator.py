"""`Autodiff(B)`: the backend B with a tape."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, cast

from phlox.autodiff.backward import backpropagate
from phlox.autodiff.build import build
from phlox.autodiff.checkpoint import RunAgain, checkpoint
from phlox.autodiff.collectives import TapeOps
from phlox.autodiff.loop import Body, scan, unstack
from phlox.autodiff.precision import at_full_precision, sums_of_gradients
from phlox.autodiff.recompute import Recomputed, build_recomputing
from phlox.autodiff.rules import CONSTANT, RULES, WIDE
from phlox.autodiff.tape import Cotangents, Node, Tracked, is_poisoned, is_spent, leaf, poisoned
from phlox.autodiff.taping import Differentiate, Run, boxed, operation_node, tape, tape_several
from phlox.backend.contract import Backend
from phlox.backend.contract.types import Array, Arrays, Gradients, Kinds, Needed, Shape
from phlox.backend.contract.widening import DEFINED_IN_STEPS, converters, widen
from phlox.backend.device import Device
from phlox.backend.kind import Float
from phlox.backend.out_of_memory import out_of_memory
from phlox.backend.pytree import container_of_class
from phlox.backend.reproducible import when_installed
from phlox.errors import AutodiffError, BackendError
from phlox.host.dtypes import FloatElement

_FORWARDED = ("int_", "bool_", "random_", "float_full")
"""Operations without a float operand: those of the inner backend, as they are."""


def _constant(box: type[Tracked], function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments: function(*(x.value if type(x) is box else x for x in arguments))


class Autodiff(TapeOps):
    """The backend `inner` with a tape, which records the history of values that require gradients.

    A float value without history stays the inner backend's own array, so it costs nothing. The decorator composes: on
    `Autodiff(Autodiff(B))`, gradients can be differentiated again.

    Args:
        inner: the backend that computes.
        recompute: recompute the results of cheap operations (elementwise, shapes) in the backward pass, instead of
            saving them. This gradient checkpointing needs less memory and more time; gradients are the same to the last
            bit. For whole blocks of a network see `phlox.checkpoint`.

    >>> import phlox as px
    >>> from phlox.backend import Autodiff, NumPy
    >>> x = px.tensor(3.0, device=Autodiff(NumPy()).device()).require_grad()
    >>> x.grad((x * x).backward()).item()
    6.0
    """

    differentiates = True
    recompute: bool
    """Are cheap values recomputed instead of saved?"""
    _instances: ClassVar[dict[tuple[Backend, bool], Autodiff]] = {}

    def __new__(cls, inner: Backend, *, recompute: bool = False) -> Autodiff:
        key = (inner, recompute)
        if key in cls._instances:
            return cls._instances[key]
        self = super().__new__(cls)
        self.inner = inner
        self.recompute = recompute
        self.name = f"autodiff({inner.name})"
        self.float_element = inner.float_element
        self.int_element = inner.int_element
        self.compiles = inner.compiles
        self.batched = inner.batched
        base: type[Tracked] = Recomputed if recompute else Tracked
        add, settle = sums_of_gradients(inner)
        settle_of = _leaf_settle_of(inner, settle)
        attributes = {
            "__slots__": (), "add": staticmethod(add), "settle": settle and staticmethod(settle),
            "settle_of": settle_of and staticmethod(settle_of),
        }  # fmt: skip
        box = cast("type[Tracked]", type("Tracked", (base,), attributes))
        Tracked.some_settle |= settle is not None or settle_of is not None
        self.box = box
        shape = inner.shape
        self.shape = lambda x: shape(x.value if type(x) is box else x)
        self._bind()
        self = cls._instances.setdefault(key, self)
        when_installed(self._bind)
        return self

    def _bind(self) -> None:
        """Build the operations from the inner backend's."""
        inner, box = self.inner, self.box
        build_operation = build_recomputing if self.recompute else build
        for name in _operations():
            try:
                if name in RULES:
                    rule = at_full_precision(RULES[name], inner, name) if name in WIDE else RULES[name]
                    setattr(self, name, build_operation(inner, box, name, rule))
                elif name in CONSTANT:
                    setattr(self, name, _constant(box, getattr(inner, name)))
                elif name.startswith(_FORWARDED):
                    setattr(self, name, getattr(inner, name))
            except BackendError:
                continue  # An operation that the inner backend lacks is missing here too.
        detach = inner.detach
        self.detach = lambda x: detach(x.value if type(x) is box else x)
        wide, grow, shrink = converters(self)
        if wide is not self:
            widen(self, wide, DEFINED_IN_STEPS - RULES.keys() - CONSTANT, grow, shrink)

    def __reduce__(self) -> tuple[Any, ...]:
        return _autodiff, (self.inner, self.recompute)

    def __repr__(self) -> str:
        return f"Autodiff({self.inner!r}{', recompute=True' * self.recompute})"

    def spec(self) -> tuple[str, dict[str, Any]]:
        return "autodiff", {"recompute": self.recompute}

    # --- the tape

    def value(self, x: Array) -> Array:
        return x.value if type(x) is self.box else x

    def make_leaf(self, x: Array) -> Array:
        return leaf(self.box, x.value if type(x) is self.box else x)

    def copy_leaf(self, x: Array) -> Array:
        return leaf(self.box, x.value) if type(x) is self.box and x.node.vjp is None else x

    def node_of(self, x: Array) -> Node | None:
        return x.node if type(x) is self.box else None

    def is_leaf(self, x: Array) -> bool:
        return type(x) is self.box and x.node.vjp is None

    def requires_grad(self, x: Array) -> bool:
        return type(x) is self.box and not is_spent(x.node)

    def poisoned(self, x: Array, why: str) -> Array:
        return poisoned(self.box, self.value(x), why)

    def is_poisoned(self, x: Array) -> bool:
        return type(x) is self.box and is_poisoned(x.node)

    def backward(self, x: Array, cotangent: Array | None, retain: bool) -> Cotangents:
        if type(x) is not self.box:
            raise AutodiffError("no input of this tensor requires gradients; call .require_grad() on one of them first")
        shape = self.inner.shape(x.value)
        if cotangent is None:
            if math.prod(shape) != 1:
                raise AutodiffError(
                    f"backward() of a tensor of shape {shape} needs a cotangent of that shape; "
                    "reduce the tensor to one number (.sum(), .mean()), or give a cotangent"
                )
            ones = self.inner.float_full(shape, 1.0, self.inner.device_of(x.value))
            cotangent = self.inner.replicate_like(ones, x.value)
        try:
            return backpropagate([x.node], {x.node.id: cotangent}, retain=retain)
        except Exception as error:
            memory_error = out_of_memory(f"backward of a tensor of shape {shape}", self.inner, error)
            if memory_error is None:
                raise
            raise memory_error from error

    def tape_function(self, operands: tuple[Array, ...], run: Run, differentiate: Differentiate) -> tuple[Array, ...]:
        return tape_several(self.inner, self.box, operands, run, differentiate)

    def checkpoint(self, run: RunAgain) -> Sequence[Array]:
        return checkpoint(self, run)

    # --- arrays and devices

    def to_device(self, x: Array, device: Device) -> Array:
        return self.cast(x, self, device)

    def cast(self, x: Array, target: Backend, device: Device) -> Array:
        depth, target_depth = _depth(self), _depth(target)
        if depth > target_depth:  # the value leaves this tape; the tapes below may go on
            return _move(self.inner, self.value(x), target, device)
        assert isinstance(target, Autodiff)
        inner_device = device.on(target.inner)
        if depth < target_depth:
            return _move(self, x, target.inner, inner_device)
        if type(x) is not self.box:
            return _move(self.inner, x, target.inner, inner_device)
        node = operation_node(
            self.inner,
            self.box,
            (x,),
            self.inner.device_of(x.value),
            lambda backend, origin, g, needed: (_move(target.inner, g, backend, origin),),
            target.box,
        )
        return boxed(target.box, _move(self.inner, x.value, target.inner, inner_device), node)

    def with_float(self, element: FloatElement) -> Autodiff:
        return Autodiff(self.inner.with_float(element), recompute=self.recompute)

    def barrier(self, x: Array, after: Array) -> Array:
        value = self.inner.barrier(self.value(x), self.value(after))
        return boxed(self.box, value, x.node) if type(x) is self.box else value

    def rounded(self, x: Array) -> Array:
        value = self.inner.rounded(self.value(x))
        return boxed(self.box, value, x.node) if type(x) is self.box else value

    def scan(
        self, body: Body, carry: Sequence[Array], xs: Sequence[Array], length: int, *, reverse: bool = False
    ) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        if self.traces_loops():
            return scan(self, body, carry, xs, length, reverse)
        return super().scan(body, carry, xs, length, reverse=reverse)

    def unstack(self, x: Array) -> Sequence[Array]:
        return unstack(self, x) if type(x) is self.box else self.inner.unstack(x)

    # --- operations that take a sequence of operands, or that run foreign functions

    def concat(self, arrays: Arrays, axis: int) -> Array:
        if not any(type(x) is self.box for x in arrays):
            return self.inner.concat(arrays, axis)

        def run(*values: Array) -> tuple[Array, list[Shape]]:
            return self.inner.concat(values, axis), [self.inner.shape(value) for value in values]

        def differentiate(backend: Backend, shapes: list[Shape], g: Array, needed: Sequence[bool]) -> tuple[Array, ...]:
            parts: list[Array] = []
            start = 0
            for shape in shapes:
                index = [slice(0, size, 1) for size in shape]
                index[axis] = slice(start, start + shape[axis], 1)
                parts.append(backend.index(g, tuple(index)))
                start += shape[axis]
            return tuple(parts)

        return tape(self.inner, self.box, tuple(arrays), run, differentiate)

    def on_host(self, kinds: Kinds, fn: Callable[..., Any], *arrays: Array) -> Any:
        if any(type(x) is self.box for x in arrays):
            raise AutodiffError("this operation has no derivative; cut its operands off the tape with .detach()")
        return self.inner.on_host(kinds, fn, *arrays)

    def call_native(self, fn: Callable[..., Any], *arrays: Array) -> Any:
        if not any(type(x) is self.box for x in arrays):
            return self.inner.call_native(fn, *arrays)
        structure: list[Any] = []
        is_tracked = tuple([type(x) is self.box for x in arrays])

        def flat_fn(*values: Array) -> tuple[Array, ...]:
            results: list[Array] = []
            structure[:] = [_flatten(fn(*values), results)]
            return tuple(results)

        def run(*values: Array) -> tuple[tuple[Array, ...], Any]:
            results, pull = self.inner.native_pullback(flat_fn, values, is_tracked)
            return results, (values, pull)

        def differentiate(backend: Backend, saved: Any, gs: tuple[Any, ...], needed: Needed) -> Gradients:
            values, pull = saved
            if pull is not None:
                return pull(gs)
            # Calls call_native again, so that a tape below can differentiate the gradients too.
            present = [g for g in gs if g is not None]
            native_gradients = _NativeGradients(self.inner, flat_fn, [g is not None for g in gs], needed)
            gradients = iter(backend.call_native(native_gradients, *present, *values))
            return tuple([next(gradients) if is_needed else None for is_needed in needed])

        results = tape_several(self.inner, self.box, arrays, run, differentiate)
        return _unflatten(structure[0], iter([y if self.inner.kind_of(y.value) is Float else y.value for y in results]))

    def native_vjp(
        self, fn: Callable[..., Any], arrays: Sequence[Array], gs: Sequence[Any], needed: Needed
    ) -> Gradients:
        return self.inner.native_vjp(fn, arrays, gs, needed)


def _leaf_settle_of(inner: Backend, settle: Callable[[Array], Array] | None) -> Callable[..., Any] | None:
    """The function that returns the `settle` of a leaf; None unless the arrays of the backend have a `settle_of`."""
    inner_settle_of = inner.settle_of
    if getattr(inner_settle_of, "__func__", None) is Backend.settle_of:
        return None

    def settle_of(value: Array) -> Callable[[Array], Array] | None:
        last = inner_settle_of(value)
        return partial(_apply_both, settle, last) if last is not None and settle is not None else last or settle

    return settle_of


def _apply_both(first: Callable[[Array], Array], last: Callable[[Array], Array], g: Array) -> Array:
    return last(first(g))


def _depth(backend: Backend) -> int:
    """The number of nested tapes."""
    depth = 0
    while backend.inner is not None:
        backend, depth = backend.inner, depth + backend.adds_level
    return depth


def _move(backend: Backend, x: Array, target: Backend, device: Device) -> Array:
    return backend.to_device(x, device) if target is backend else backend.cast(x, target, device)


def _autodiff(inner: Backend, recompute: bool) -> Autodiff:
    return Autodiff(inner, recompute=recompute)


class _NativeGradients:
    """A function on native arrays: the engine's own gradients of `fn` with respect to some of its arguments."""

    def __init__(self, backend: Backend, fn: Callable[..., Any], has_gradient: Sequence[bool], needed: Needed) -> None:
        self.backend, self.fn, self.has_gradient, self.needed = backend, fn, has_gradient, needed

    def __call__(self, *arrays: Array) -> tuple[Array, ...]:
        count = sum(self.has_gradient)
        remaining = iter(arrays[:count])
        gs = [next(remaining) if is_present else None for is_present in self.has_gradient]
        gradients = self.backend.native_vjp(self.fn, arrays[count:], gs, self.needed)
        return tuple([d for d, is_needed in zip(gradients, self.needed, strict=True) if is_needed])


def _flatten(value: Any, leaves: list[Array]) -> Any:
    """The containers of a result, with None in place of the arrays, which are appended to `leaves`."""
    container = container_of_class(cast("type[Any]", type(value)))
    if container is None:
        leaves.append(value)
        return None
    return container.build(value, [_flatten(part, leaves) for _, part in container.items(value)])


def _unflatten(structure: Any, leaves: Iterator[Array]) -> Any:
    container = container_of_class(cast("type[Any]", type(structure)))
    if container is None:
        return next(leaves)
    return container.build(structure, [_unflatten(part, leaves) for _, part in container.items(structure)])


def _operations() -> set[str]:
    """Every name that the contract declares or defines."""
    names = {name for cls in Backend.__mro__ for name in (*vars(cls), *vars(cls).get("__annotations__", ()))}
    return {name for name in names if not name.startswith("_")}

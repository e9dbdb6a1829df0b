"""`Autodiff(B)`: the backend B with a tape."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, cast

from phlox.autodiff.backward import backpropagate
from phlox.autodiff.build import build
from phlox.autodiff.checkpoint import Again, checkpoint
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
    """Are cheap values made again instead of kept?"""
    _made: ClassVar[dict[tuple[Backend, bool], Autodiff]] = {}

    def __new__(cls, inner: Backend, *, recompute: bool = False) -> Autodiff:
        key = (inner, recompute)
        if key in cls._made:
            return cls._made[key]
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
        own = _settling(inner, settle)
        kind = {
            "__slots__": (), "add": staticmethod(add), "settle": settle and staticmethod(settle),
            "settle_of": own and staticmethod(own),
        }  # fmt: skip
        box = cast("type[Tracked]", type("Tracked", (base,), kind))
        Tracked.some_settle |= settle is not None or own is not None
        self.box = box
        make = build_recomputing if recompute else build
        shape, detach = inner.shape, inner.detach
        self.shape = lambda x: shape(x.value if type(x) is box else x)
        for name in _operations():
            try:
                if name in RULES:
                    rule = at_full_precision(RULES[name], inner, name) if name in WIDE else RULES[name]
                    setattr(self, name, make(inner, box, name, rule))
                elif name in CONSTANT:
                    setattr(self, name, _constant(box, getattr(inner, name)))
                elif name.startswith(_FORWARDED):
                    setattr(self, name, getattr(inner, name))
            except BackendError:
                continue  # What the inner backend lacks, this one lacks too.
        self.detach = lambda x: detach(x.value if type(x) is box else x)
        wide, grow, shrink = converters(self)
        if wide is not self:
            widen(self, wide, DEFINED_IN_STEPS - RULES.keys() - CONSTANT, grow, shrink)
        return cls._made.setdefault(key, self)

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
            raise AutodiffError("nothing that this tensor was made from requires gradients; call .require_grad() on it")
        shape = self.inner.shape(x.value)
        if cotangent is None:
            if math.prod(shape) != 1:
                raise AutodiffError(
                    f"backward() of a tensor of shape {shape} needs a cotangent of that shape; "
                    "reduce the tensor to one number (.sum(), .mean()), or give one"
                )
            ones = self.inner.float_full(shape, 1.0, self.inner.device_of(x.value))
            cotangent = self.inner.replicate_like(ones, x.value)
        try:
            return backpropagate([x.node], {x.node.id: cotangent}, retain=retain)
        except Exception as error:
            found = out_of_memory(f"backward of a tensor of shape {shape}", self.inner, error)
            if found is None:
                raise
            raise found from error

    def tape_function(self, operands: tuple[Array, ...], run: Run, differentiate: Differentiate) -> tuple[Array, ...]:
        return tape_several(self.inner, self.box, operands, run, differentiate)

    def checkpoint(self, run: Again) -> Sequence[Array]:
        return checkpoint(self, run)

    # --- arrays and devices

    def to_device(self, x: Array, device: Device) -> Array:
        return self.cast(x, self, device)

    def cast(self, x: Array, target: Backend, device: Device) -> Array:
        mine, others = _depth(self), _depth(target)
        if mine > others:  # this tape ends here; those below may go on
            return _moved(self.inner, self.value(x), target, device)
        assert isinstance(target, Autodiff)
        below = device.on(target.inner)
        if mine < others:
            return _moved(self, x, target.inner, below)
        if type(x) is not self.box:
            return _moved(self.inner, x, target.inner, below)
        node = operation_node(
            self.inner,
            self.box,
            (x,),
            self.inner.device_of(x.value),
            lambda backend, origin, g, needed: (_moved(target.inner, g, backend, origin),),
            target.box,
        )
        return boxed(target.box, _moved(self.inner, x.value, target.inner, below), node)

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

    # --- operations whose operands come in a sequence, or which run foreign functions

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
        form: list[Any] = []
        followed = tuple([type(x) is self.box for x in arrays])

        def flat(*values: Array) -> tuple[Array, ...]:
            results: list[Array] = []
            form[:] = [_taken_apart(fn(*values), results)]
            return tuple(results)

        def run(*values: Array) -> tuple[tuple[Array, ...], Any]:
            results, pull = self.inner.native_pullback(flat, values, followed)
            return results, (values, pull)

        def differentiate(backend: Backend, saved: Any, gs: tuple[Any, ...], needed: Needed) -> Gradients:
            values, pull = saved
            if pull is not None:
                return pull(gs)
            # Through call_native again, so that a tape below differentiates the gradients too.
            given = [g for g in gs if g is not None]
            of = _NativeGradients(self.inner, flat, [g is not None for g in gs], needed)
            found = iter(backend.call_native(of, *given, *values))
            return tuple([next(found) if wanted else None for wanted in needed])

        results = tape_several(self.inner, self.box, arrays, run, differentiate)
        return _put_together(form[0], iter([y if self.inner.kind_of(y.value) is Float else y.value for y in results]))

    def native_vjp(
        self, fn: Callable[..., Any], arrays: Sequence[Array], gs: Sequence[Any], needed: Needed
    ) -> Gradients:
        return self.inner.native_vjp(fn, arrays, gs, needed)


def _settling(inner: Backend, settle: Callable[[Array], Array] | None) -> Callable[..., Any] | None:
    """What gives the `settle` of a leaf, for a backend with arrays whose gradients take a form of their own."""
    own = inner.settle_of
    if getattr(own, "__func__", None) is Backend.settle_of:
        return None

    def settle_of(value: Array) -> Callable[[Array], Array] | None:
        last = own(value)
        return partial(_in_turn, settle, last) if last is not None and settle is not None else last or settle

    return settle_of


def _in_turn(first: Callable[[Array], Array], last: Callable[[Array], Array], g: Array) -> Array:
    return last(first(g))


def _depth(backend: Backend) -> int:
    """The number of nested tapes."""
    depth = 0
    while backend.inner is not None:
        backend, depth = backend.inner, depth + backend.adds_level
    return depth


def _moved(backend: Backend, x: Array, target: Backend, device: Device) -> Array:
    return backend.to_device(x, device) if target is backend else backend.cast(x, target, device)


def _autodiff(inner: Backend, recompute: bool) -> Autodiff:
    return Autodiff(inner, recompute=recompute)


class _NativeGradients:
    """The engine's own gradients of a function towards some of its arguments, as a function on native arrays."""

    def __init__(self, backend: Backend, fn: Callable[..., Any], given: Sequence[bool], needed: Needed) -> None:
        self.backend, self.fn, self.given, self.needed = backend, fn, given, needed

    def __call__(self, *arrays: Array) -> tuple[Array, ...]:
        count = sum(self.given)
        left = iter(arrays[:count])
        gs = [next(left) if there else None for there in self.given]
        found = self.backend.native_vjp(self.fn, arrays[count:], gs, self.needed)
        return tuple([d for d, wanted in zip(found, self.needed, strict=True) if wanted])


def _taken_apart(value: Any, leaves: list[Array]) -> Any:
    """The containers of a result, with None in the places of the arrays, which go into `leaves`."""
    container = container_of_class(cast("type[Any]", type(value)))
    if container is None:
        leaves.append(value)
        return None
    return container.build(value, [_taken_apart(part, leaves) for _, part in container.items(value)])


def _put_together(form: Any, leaves: Iterator[Array]) -> Any:
    container = container_of_class(cast("type[Any]", type(form)))
    if container is None:
        return next(leaves)
    return container.build(form, [_put_together(part, leaves) for _, part in container.items(form)])


def _operations() -> set[str]:
    """Every name that the contract declares or defines."""
    names = {name for cls in Backend.__mro__ for name in (*vars(cls), *vars(cls).get("__annotations__", ()))}
    return {name for name in names if not name.startswith("_")}

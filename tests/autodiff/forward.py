"""Another way to differentiate, as a stranger would write it, against the public interface alone: forward mode.

A tracked value carries its derivative towards every leaf, as an array with the elements of the leaf along a first axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

import numpy as np

from phlox.backend import Backend, Decorator, Device, Float

_ids = count(1_000_000_000)


class Node:
    """What identifies a value."""

    def __init__(self) -> None:
        self.id = next(_ids)


class Dual:
    """A value, and for each leaf its shape and the derivative [elements of the leaf, *shape of the value]."""

    def __init__(self, value: Any, parts: dict[int, tuple[Any, tuple[int, ...]]], *, leaf: bool = False) -> None:
        self.value, self.parts, self.leaf, self.node = value, parts, leaf, Node()

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape


class Forward(Decorator):
    """The backend `inner`, whose values know their derivatives; composes, with itself too."""

    differentiates = True
    box: type[Dual]
    _made: dict[Backend, Forward] = {}  # noqa: RUF012

    def __new__(cls, inner: Backend) -> Forward:
        if inner in cls._made:
            return cls._made[inner]
        self = super().__new__(cls)
        self.inner, self.name = inner, f"forward({inner.name})"
        self.float_element, self.int_element = inner.float_element, inner.int_element
        self.compiles, self.batched = inner.compiles, inner.batched
        self.box = type("Dual", (Dual,), {})
        for name in CONSTANT:
            setattr(self, name, self._constant(getattr(inner, name)))
        for name, derivative in UNARY.items():
            setattr(self, name, self._unary(getattr(inner, name), derivative))
        for name, derivative in BINARY.items():
            setattr(self, name, self._binary(getattr(inner, name), derivative))
        return cls._made.setdefault(inner, self)

    def __reduce__(self) -> tuple[Any, ...]:
        return Forward, (self.inner,)

    def __repr__(self) -> str:
        return f"Forward({self.inner!r})"

    def with_autodiff(self) -> Forward:
        return Forward(self)

    # --- what a backend that differentiates says

    def shape(self, x: Any) -> tuple[int, ...]:
        return self.inner.shape(self.below(x))

    def value(self, x: Any) -> Any:
        return self.below(x)

    def detach(self, x: Any) -> Any:
        return self.below(x)

    def make_leaf(self, x: Any) -> Any:
        value = self.below(x)
        shape = self.inner.shape(value)
        size = math.prod(shape)
        ones = np.eye(size, dtype=self.inner.host_float_dtype).reshape(size, *shape)
        leaf = self.box(value, {}, leaf=True)
        leaf.parts[leaf.node.id] = self.inner.from_host(ones, Float, self.inner.device_of(value)), shape
        return leaf

    def node_of(self, x: Any) -> Any:
        return x.node if type(x) is self.box else None

    def is_leaf(self, x: Any) -> bool:
        return type(x) is self.box and x.leaf

    def requires_grad(self, x: Any) -> bool:
        return type(x) is self.box

    def backward(self, x: Any, cotangent: Any, retain: bool) -> dict[int, Any]:
        inner, found = self.inner, dict[int, Any]()
        axes = tuple(range(1, 1 + len(inner.shape(x.value))))
        for id, (part, shape) in x.parts.items():
            weighted = part if cotangent is None else inner.float_mul(part, cotangent)
            found[id] = inner.reshape(inner.float_sum(weighted, axes, False), shape)
        return found

    def to_device(self, x: Any, device: Device) -> Any:
        return self._each(self.inner.to_device, x, device.on(self.inner))

    def cast(self, x: Any, target: Backend, device: Device) -> Any:
        return self.inner.cast(self.below(x), target, device)

    # --- operations

    def _constant(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given: function(*map(self.below, given))

    def _each(self, function: Callable[..., Any], x: Any, *options: Any) -> Any:
        """What is linear, and the same for a value and for each row of a derivative."""
        if type(x) is not self.box:
            return function(x, *options)
        parts = {id: (function(part, *options), shape) for id, (part, shape) in x.parts.items()}
        return self.box(function(x.value, *options), parts)

    def _unary(self, function: Callable[[Any], Any], derivative: Callable[..., Any]) -> Callable[[Any], Any]:
        def operation(x: Any) -> Any:
            if type(x) is not self.box:
                return function(x)
            y = function(x.value)
            d = derivative(self.inner, x.value, y)
            return self.box(y, {id: (self.inner.float_mul(p, d), shape) for id, (p, shape) in x.parts.items()})

        return operation

    def _binary(self, function: Callable[[Any, Any], Any], derivative: Callable[..., Any]) -> Callable[[Any, Any], Any]:
        def operation(x: Any, y: Any) -> Any:
            if type(x) is not self.box and type(y) is not self.box:
                return function(x, y)
            a, b = self.below(x), self.below(y)
            z = function(a, b)
            dx, dy = derivative(self.inner, a, b, z)
            return self._joined(z, (self._weighted(x, dx, z), self._weighted(y, dy, z)))

        return operation

    def _joined(self, value: Any, sides: Iterable[dict[int, tuple[Any, tuple[int, ...]]]]) -> Any:
        total: dict[int, tuple[Any, tuple[int, ...]]] = {}
        for side in sides:
            for id, (part, shape) in side.items():
                total[id] = (self.inner.float_add(total[id][0], part) if id in total else part), shape
        return self.box(value, total)

    def _weighted(self, x: Any, factor: Any, like: Any) -> dict[int, tuple[Any, tuple[int, ...]]]:
        """The derivatives of an operand, times a factor, broadcast to the result."""
        if type(x) is not self.box:
            return {}
        inner, sizes = self.inner, self.inner.shape(like)
        found: dict[int, tuple[Any, tuple[int, ...]]] = {}
        for id, (part, shape) in x.parts.items():
            rows, *rest = inner.shape(part)
            raised = inner.reshape(part, (rows, *(1,) * (len(sizes) - len(rest)), *rest))
            found[id] = inner.broadcast_to(inner.float_mul(raised, factor), (rows, *sizes)), shape
        return found

    def _along(self, function: Callable[..., Any], x: Any, whole: tuple[Any, ...], row: tuple[Any, ...]) -> Any:
        """What is linear and names axes: these options for the value, those for the rows."""
        if type(x) is not self.box:
            return function(x, *whole)
        parts = {id: (function(part, *row), shape) for id, (part, shape) in x.parts.items()}
        return self.box(function(x.value, *whole), parts)

    def reshape(self, x: Any, shape: Any) -> Any:
        if type(x) is not self.box:
            return self.inner.reshape(x, shape)
        parts = {
            id: (self.inner.reshape(part, (self.inner.shape(part)[0], *shape)), of)
            for id, (part, of) in x.parts.items()
        }
        return self.box(self.inner.reshape(x.value, shape), parts)

    def broadcast_to(self, x: Any, shape: Any) -> Any:
        if type(x) is not self.box:
            return self.inner.broadcast_to(x, shape)
        value = self.inner.broadcast_to(x.value, shape)
        return self.box(value, self._weighted(x, 1.0, value))

    def permute_dims(self, x: Any, axes: Any) -> Any:
        return self._along(self.inner.permute_dims, x, (axes,), ((0, *(axis + 1 for axis in axes)),))

    def index(self, x: Any, index: Any) -> Any:
        return self._along(self.inner.index, x, (index,), ((slice(None), *index),))

    def float_sum(self, x: Any, axes: Any, keepdims: bool) -> Any:
        return self._along(self.inner.float_sum, x, (axes, keepdims), (tuple(axis + 1 for axis in axes), keepdims))

    def where(self, condition: Any, yes: Any, no: Any) -> Any:
        if type(yes) is not self.box and type(no) is not self.box:
            return self.inner.where(condition, yes, no)
        value = self.inner.where(condition, self.below(yes), self.below(no))
        ones = self.inner.bool_into_float(condition)
        sides = self._weighted(yes, ones, value), self._weighted(no, self.inner.float_sub(1.0, ones), value)
        return self._joined(value, sides)

    def float_matmul(self, x: Any, y: Any) -> Any:
        if type(x) is not self.box and type(y) is not self.box:
            return self.inner.float_matmul(x, y)
        a, b = self.below(x), self.below(y)
        left = {} if type(x) is not self.box else x.parts
        right = {} if type(y) is not self.box else y.parts
        product = self.inner.float_matmul
        return self._joined(
            product(a, b),
            (
                {id: (product(part, b), shape) for id, (part, shape) in left.items()},
                {id: (product(a, part), shape) for id, (part, shape) in right.items()},
            ),
        )


CONSTANT = [
    "float_full", "float_sign", "float_floor", "float_equal", "float_less", "float_less_equal", "float_into_int",
    "int_full", "int_arange", "int_into_float", "bool_full", "bool_and", "bool_or", "bool_not", "bool_into_float",
    "random_uniform", "random_normal", "random_bernoulli", "random_integers", "random_permutation",
]  # fmt: skip

UNARY: dict[str, Callable[[Any, Any, Any], Any]] = {
    "float_neg": lambda B, x, y: -1.0,
    "float_exp": lambda B, x, y: y,
    "float_log": lambda B, x, y: B.float_div(1.0, x),
    "float_sqrt": lambda B, x, y: B.float_div(0.5, y),
    "float_tanh": lambda B, x, y: B.float_sub(1.0, B.float_mul(y, y)),
    "float_abs": lambda B, x, y: B.float_sign(x),
}

BINARY: dict[str, Callable[[Any, Any, Any, Any], tuple[Any, Any]]] = {
    "float_add": lambda B, x, y, z: (1.0, 1.0),
    "float_sub": lambda B, x, y, z: (1.0, -1.0),
    "float_mul": lambda B, x, y, z: (y, x),
    "float_div": lambda B, x, y, z: (B.float_div(1.0, y), B.float_neg(B.float_div(z, y))),
}

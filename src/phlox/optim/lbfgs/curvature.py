"""The curvature history of L-BFGS, and all parameters as one vector.

The vector is computed with operations of its backend in few calls, because parameters are many and small, and a call
may cost more than its computation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from phlox.backend import Backend, Device, Float, Int
from phlox.optim.simple import AnyTensor
from phlox.optim.state.tree import State
from phlox.tensor import Tensor

Array: TypeAlias = Any
Host: TypeAlias = np.ndarray[Any, Any]
Shapes: TypeAlias = tuple[tuple[int, ...], ...]

_LEAST_CURVATURE = 1e-10
"""The least curvature of a pair that is added to the history, as in PyTorch."""
_LEAST_ROWS = 8


class FlatLayout:
    """Tensors of several shapes as one vector: on the device of the first, at the greatest precision, at least f32."""

    def __init__(self, tensors: Sequence[AnyTensor]) -> None:
        wide_devices = [tensor.device.on(tensor.backend.full_precision()) for tensor in tensors]
        self.device: Device = max(wide_devices, key=lambda device: device.backend.host_dtype(Float).itemsize)
        self.backend: Backend = self.device.backend
        self.shapes: Shapes = tuple([tensor.shape for tensor in tensors])
        self.devices = tuple([tensor.device for tensor in tensors])
        self._wide = tuple(wide_devices)
        self.size = sum(map(math.prod, self.shapes))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FlatLayout) and (self.shapes, self.devices) == (other.shapes, other.devices)

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def joined(self, tensors: Sequence[AnyTensor]) -> Array:
        """The vector of these tensors."""
        moved = [x if x.device == self.device else x.to_device(self.device) for x in tensors]
        return self.backend.in_one_call(_joined)(*[x.primitive for x in moved])

    def parted(self, vector: Array, *, wide: bool = False) -> list[AnyTensor]:
        """Split the vector into tensors on the devices of the first ones; with `wide`, at f32 or higher."""
        arrays = self.backend.in_one_call(_parted, self.shapes)(vector)
        parts: list[AnyTensor] = []
        for array, target in zip(arrays, self._wide if wide else self.devices, strict=True):
            tensor = Tensor.from_primitive(array, self.backend, Float)
            if target == self.device:
                parts.append(tensor)
            elif target.backend.full_precision() is self.backend and target.name == self.device.name:
                parts.append(tensor.from_full_precision(target.backend))
            else:
                parts.append(tensor.to_device(target))
        return parts

    def numbers_of(self, gradient: Array, direction: Array) -> tuple[float, float, float]:
        """The greatest magnitude (NaN if an element is), the sum of magnitudes, and the product with `direction`."""
        greatest, total, slope = self.read(self.backend.in_one_call(_numbers)(gradient, direction))
        return greatest, total, slope

    def stepped(self, start: Array, direction: Array, length: float) -> Array:
        """start + length direction."""
        return self.backend.in_one_call(_stepped)(start, direction, length)

    def read(self, array: Array) -> list[float]:
        """The values of an array."""
        return np.asarray(self.backend.to_host(array), np.float64).reshape(-1).tolist()


def _joined(B: Backend, *arrays: Array) -> Array:
    flat = [B.reshape(x, (math.prod(B.shape(x)),)) for x in arrays]
    return B.concat(tuple(flat), 0) if len(flat) > 1 else flat[0]


def _parted(B: Backend, shapes: Shapes, vector: Array) -> tuple[Array, ...]:
    if len(shapes) == 1:
        return (B.reshape(vector, shapes[0]),)
    parts: list[Array] = []
    start = 0
    for shape in shapes:
        stop = start + math.prod(shape)
        parts.append(B.reshape(B.index(vector, (slice(start, stop, 1),)), shape))
        start = stop
    return tuple(parts)


def _stepped(B: Backend, start: Array, direction: Array, length: float) -> Array:
    return B.float_add(start, B.float_mul(direction, length))


def _numbers(B: Backend, gradient: Array, direction: Array) -> Array:
    size = B.float_abs(gradient)
    greatest = B.float_max(size, (0,), True)
    return B.concat((greatest, B.float_sum(size, (0,), True), _dot(B, gradient, direction)), 0)


def _dot(B: Backend, a: Array, b: Array) -> Array:
    return B.float_sum(B.float_mul(a, b), (0,), True)


def _rows_of(B: Backend, history: Array) -> Array:
    pairs, count, size = B.shape(history)
    return B.reshape(history, (pairs * count, size))


def _learned(
    B: Backend, history: Array, row: int, direction: Array, length: float, gradient: Array, before: Array
) -> tuple[Array, Array]:
    """The history with one more step and difference, and the products of all rows with these two and the gradient."""
    step, difference = B.float_mul(direction, length), B.float_sub(gradient, before)
    size = B.shape(gradient)[0]
    new = B.concat((B.reshape(step, (1, size)), B.reshape(difference, (1, size))), 0)
    history = B.set_column(history, row, new)
    columns = B.concat((new, B.reshape(gradient, (1, size))), 0)
    return history, B.float_matmul(_rows_of(B, history), B.permute_dims(columns, (1, 0)))


def _combined(B: Backend, history: Array, factors: Array, factor: float, gradient: Array) -> tuple[Array, Array]:
    """The direction from history and gradient, its product with the gradient, and its greatest magnitude."""
    product = B.float_matmul(factors, _rows_of(B, history))
    direction = B.float_add(B.reshape(product, B.shape(gradient)), B.float_mul(gradient, factor))
    return direction, B.concat((_dot(B, direction, gradient), B.float_max(B.float_abs(direction), (0,), True)), 0)


def _downhill(B: Backend, gradient: Array) -> tuple[Array, Array]:
    direction = B.float_neg(gradient)
    return direction, B.concat((_dot(B, direction, gradient), B.float_max(B.float_abs(direction), (0,), True)), 0)


def _arranged(B: Backend, free: int, history: Array, rows: Array) -> Array:
    """The history's rows in this order, and then `free` rows of zeros."""
    return B.pad(B.take(history, rows, 1), ((0, 0), (0, free), (0, 0)), 0.0)


def _gram(B: Backend, history: Array) -> Array:
    rows = _rows_of(B, history)
    return B.float_matmul(rows, B.permute_dims(rows, (1, 0)))


class CurvatureHistory:
    """The last differences of parameters (steps) and of gradients, and with them the curvature.

    Both are rows of one array, [2, rows, size], with one row always free. The two loops of L-BFGS need only
    their products with each other and with the gradient, which are kept on the host. So an iteration has two products
    with that array: one for these scalars, and one for the direction (the compact form of Byrd, Nocedal, Schnabel 1994:
    "Representations of quasi-Newton matrices and their use in limited memory methods").
    """

    def __init__(self, most: int, layout: FlatLayout) -> None:
        self._most = most
        self.layout = layout
        self.iterations = 0
        self.length, self._scale = 0.0, 1.0
        self._gradient: Array = None
        self._direction: Array = None
        self._history: Array = None
        self._owned = False
        """Whether nothing else refers to the history, so that it may be overwritten."""
        self._order: list[int] = []
        """The rows that are in use, from the oldest pair to the newest."""
        self._steps_differences = np.zeros((0, 0))
        self._differences = np.zeros((0, 0))
        """The products of steps with differences, and of differences with each other, by row."""

    def copy(self) -> CurvatureHistory:
        """A copy that can change while this one stays unchanged."""
        twin = object.__new__(CurvatureHistory)
        vars(twin).update(vars(self))
        twin._order, twin._owned = list(self._order), False
        twin._steps_differences, twin._differences = self._steps_differences.copy(), self._differences.copy()
        return twin

    # --- as states of parameters

    @staticmethod
    def of(most: int, layout: FlatLayout, states: Sequence[State]) -> CurvatureHistory:
        """The history that these states hold."""
        history, first = CurvatureHistory(most, layout), states[0]
        history.iterations, history.length, history._scale = first["iterations"], first["length"], first["scale"]
        history._gradient = layout.joined([state["gradient"] for state in states])
        history._direction = layout.joined([state["direction"] for state in states])
        count, backend, size = len(first["curvatures"]), layout.backend, layout.size
        if not count:
            return history
        rows = [
            backend.reshape(layout.joined([state[name][k] for state in states]), (1, size))
            for name in ("steps", "differences")
            for k in range(count)
        ]
        history._history = backend.reshape(backend.concat(tuple(rows), 0), (2, count, size))
        history._order = list(range(count))
        if "products" in first:
            products = np.asarray(first["products"].numpy(), np.float64)
        else:  # records of earlier versions do not have them
            gram = np.reshape(layout.read(backend.in_one_call(_gram)(history._history)), (2 * count, 2 * count))
            products = np.stack([gram[:count, count:], gram[count:, count:]])
        history._steps_differences, history._differences = products[0].copy(), products[1].copy()
        return history

    def states(self) -> list[State]:
        """The states of all parameters, as `of` takes them."""
        layout, order = self.layout, self._order
        gradients, directions = (layout.parted(x, wide=True) for x in (self._gradient, self._direction))
        rows: list[list[list[AnyTensor]]] = [[], []]
        for kind in range(2):
            for row in order:
                index = (slice(kind, kind + 1, 1), slice(row, row + 1, 1), slice(0, layout.size, 1))
                vector = layout.backend.reshape(layout.backend.index(self._history, index), (layout.size,))
                rows[kind].append(layout.parted(vector, wide=True))
        products = np.stack([self._steps_differences[np.ix_(order, order)], self._differences[np.ix_(order, order)]])
        curvatures = [float(self._steps_differences[row, row]) for row in order]
        return [
            {
                "gradient": gradient,
                "direction": directions[number],
                "steps": [row[number] for row in rows[0]],
                "differences": [row[number] for row in rows[1]],
                "curvatures": list(curvatures),
                "products": _as_tensor(products, gradient),
                "length": self.length,
                "scale": self._scale,
                "iterations": self.iterations,
            }
            for number, gradient in enumerate(gradients)
        ]

    # --- iterations

    def next_direction(self, gradient: Array, iterations: int) -> tuple[Array, float, float]:
        """Add the last step to the history, and return the next direction from a point with this gradient.

        Also returns its product with the gradient, and its greatest magnitude. `iterations` is the most iterations left
        in this call, including this one: memory is allocated for all at once.
        """
        products = self._learn(gradient, iterations) if self.iterations else None
        self.iterations += 1
        backend = self.layout.backend
        if products is None or not self._order:
            direction, numbers = backend.in_one_call(_downhill)(gradient)
        else:
            factors, factor = self._factors(products)
            host = backend.from_host(factors.astype(backend.host_dtype(Float)), Float, self.layout.device)
            direction, numbers = backend.in_one_call(_combined)(self._history, host, factor, gradient)
        self._gradient, self._direction = gradient, direction
        slope, greatest = self.layout.read(numbers)
        return direction, slope, greatest

    def _learn(self, gradient: Array, iterations: int) -> Host:
        """The products of all pairs, [2, rows], with the gradient; adds the last step if its curvature suffices."""
        self._make_room(iterations)
        rows = len(self._differences)
        row = next(row for row in range(rows) if row not in self._order)
        learn = self.layout.backend.in_one_call(_learned, donate=(0,))
        self._history, numbers = learn(self._history, row, self._direction, self.length, gradient, self._gradient)
        products = np.reshape(self.layout.read(numbers), (2, rows, 3))
        curvature = products[0, row, 1]
        if curvature > _LEAST_CURVATURE:
            self._order.append(row)
            del self._order[: -self._most]
            self._steps_differences[:, row], self._steps_differences[row] = products[0, :, 1], products[1, :, 0]
            self._differences[:, row] = self._differences[row] = products[1, :, 1]
            self._scale = float(curvature / products[1, row, 1])  # a NumPy scalar would widen a NumPy array
        return products[:, :, 2]

    def _make_room(self, iterations: int) -> None:
        """Make the history writable, with a free row for each pair that may be added."""
        if self._owned:
            return
        backend, layout, order = self.layout.backend, self.layout, self._order
        needed = min(len(order) + iterations, self._most) + 1
        # Few different sizes, because engines that compile need a program for each.
        rows = min(max(_LEAST_ROWS, 1 << (needed - 1).bit_length()), self._most + 1)
        free = rows - len(order)
        if order:
            # From the oldest to the newest, as in states, so continuing from a record gives the same bits.
            rows_in_order = backend.from_host(np.array(order), Int, layout.device)
            self._history = backend.in_one_call(_arranged, free)(self._history, rows_in_order)
        else:
            self._history = backend.float_full((2, rows, layout.size), 0.0, layout.device)
        for name in ("_steps_differences", "_differences"):
            setattr(self, name, np.pad(getattr(self, name)[np.ix_(order, order)], (0, free)))
        self._order, self._owned = list(range(len(order))), True

    def _factors(self, products: Host) -> tuple[Host, float]:
        """The factors of every row and of the gradient in -H g: the two loops, each as a triangular system."""
        order = np.array(self._order)
        by_steps, by_differences = products[0, order], products[1, order]
        triangle = np.triu(self._steps_differences[np.ix_(order, order)])
        with np.errstate(all="ignore"):  # a direction that is not finite does not descend, and the caller checks this
            first = _solved(triangle, by_steps)
            left = by_differences - self._differences[np.ix_(order, order)] @ first
            second = _solved(triangle.T[::-1, ::-1], (np.diagonal(triangle) * first - self._scale * left)[::-1])[::-1]
        factors = np.zeros((2, len(self._differences)))
        factors[0, order], factors[1, order] = -second, self._scale * first
        return factors.reshape(1, -1), -self._scale


def _solved(triangle: Host, right: Host) -> Host:
    solve: Callable[[Host, Host], Host] = np.linalg.solve
    return solve(triangle, right)


def _as_tensor(array: Host, like: AnyTensor) -> AnyTensor:
    backend = like.backend
    host = array.astype(backend.host_dtype(Float))
    return Tensor.from_primitive(backend.from_host(host, Float, like.device), backend, Float)

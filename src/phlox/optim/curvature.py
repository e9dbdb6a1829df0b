"""What L-BFGS remembers of the curvature, and vectors whose parts are the tensors of parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, TypeAlias, cast

from phlox.backend import Device
from phlox.optim.state import State
from phlox.tensor import Tensor

AnyTensor: TypeAlias = Tensor[Any, Any, Any]
Vector: TypeAlias = list[AnyTensor]
"""One tensor for each parameter that is stepped: all of them are one vector."""

_LEAST_CURVATURE = 1e-10
"""Of a difference that is remembered, PyTorch's."""


def dot(a: Vector, b: Vector) -> float:
    """The inner product, at no less than full precision."""
    parts = [(x.to_full_precision() * y.to_full_precision()).sum() for x, y in zip(a, b, strict=True)]
    return float(_together(parts, lambda x, y: x + y).item()) if parts else 0.0


def greatest(a: Vector) -> float:
    """The greatest magnitude of an element; NaN if there is any."""
    parts = [x.abs().max().to_full_precision() for x in a if 0 not in x.shape]
    return float(_together(parts, lambda x, y: x.maximum(y)).item()) if parts else 0.0


def total(a: Vector) -> float:
    """The sum of the magnitudes of all elements."""
    return sum(float(x.to_full_precision().abs().sum().item()) for x in a)


def _together(parts: Vector, join: Callable[[AnyTensor, AnyTensor], AnyTensor]) -> AnyTensor:
    place: Device = parts[0].device
    return reduce(join, [x if x.device == place else x.to_device(place) for x in parts])


def times(a: Vector, factor: float) -> Vector:
    """The vector, `factor` times as long."""
    return [x * factor for x in a]


def plus(a: Vector, b: Vector, factor: float) -> Vector:
    """a + factor b."""
    return [x + y * factor for x, y in zip(a, b, strict=True)]


class Memory:
    """The last differences of parameters (`steps`) and of gradients, and with them the curvature."""

    def __init__(self, most: int, states: Sequence[State] = ()) -> None:
        self._most = most
        self.iterations = 0
        self.length, self._scale = 0.0, 1.0
        self._gradient: Vector = []
        self._direction: Vector = []
        self._steps: list[Vector] = []
        self._differences: list[Vector] = []
        self._curvatures: list[float] = []
        """The products of both."""
        if states:
            one = states[0]
            self.iterations, self.length, self._scale = one["iterations"], one["length"], one["scale"]
            self._curvatures = list(one["curvatures"])
            self._gradient = [state["gradient"] for state in states]
            self._direction = [state["direction"] for state in states]
            for name, pairs in (("steps", self._steps), ("differences", self._differences)):
                pairs.extend([state[name][place] for state in states] for place in range(len(one[name])))

    def states(self) -> list[State]:
        """By parameter, as `__init__` takes them."""
        return [
            {
                "gradient": self._gradient[place],
                "direction": self._direction[place],
                "steps": [step[place] for step in self._steps],
                "differences": [difference[place] for difference in self._differences],
                "curvatures": list(self._curvatures),
                "length": self.length,
                "scale": self._scale,
                "iterations": self.iterations,
            }
            for place in range(len(self._gradient))
        ]

    def next_direction(self, gradient: Vector) -> Vector:
        """Where to go from a place with this gradient, having learned from the step that led there."""
        if self.iterations:
            self._learn([new - old for new, old in zip(gradient, self._gradient, strict=True)])
        self.iterations += 1
        self._gradient, self._direction = gradient, self._downhill(gradient)
        return self._direction

    def _learn(self, difference: Vector) -> None:
        step = times(self._direction, self.length)
        curvature = dot(difference, step)
        if not curvature > _LEAST_CURVATURE:
            return
        for pairs, new in ((self._steps, step), (self._differences, difference), (self._curvatures, curvature)):
            known = cast("list[Any]", pairs)
            known.append(new)
            del known[: -self._most]
        self._scale = curvature / dot(difference, difference)

    def _downhill(self, gradient: Vector) -> Vector:
        """The two loops: -H g."""
        pairs = list(zip(self._steps, self._differences, self._curvatures, strict=True))
        direction, parts = times(gradient, -1.0), list[float]()
        for step, difference, curvature in reversed(pairs):
            parts.append(dot(step, direction) / curvature)
            direction = plus(direction, difference, -parts[-1])
        direction = times(direction, self._scale)
        for (step, difference, curvature), part in zip(pairs, reversed(parts), strict=True):
            direction = plus(direction, step, part - dot(difference, direction) / curvature)
        return direction

"""`Narrow`: lets a step compute at half precision on models that are kept at full precision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from phlox.backend import Float
from phlox.host.dtypes import FloatElement
from phlox.module import Module, Param
from phlox.tensor import Tensor
from phlox.transform.tree import map_leaves

AnyTensor = Tensor[Any, Any, Any]


@dataclass(frozen=True)
class Narrow:
    """Converts models and values to the half precision in which a step computes.

    Only the computation is rounded: the weights, to which the optimizer adds its updates, stay at full precision.
    """

    element: FloatElement

    def model(self, model: Any) -> tuple[Any, Callable[[], None]]:
        """The converted model, and a function that copies values that its calls set (states) back to `model`."""

        def narrowed(path: str, param: Param) -> Param:
            return param if param.full_precision or param.kind is not Float else param.map(self._value)

        narrow: Module = model.map(narrowed)
        pairs = [(own, own.val(), kept) for own, kept in zip(narrow.params(), model.params(), strict=True)]

        def give_back() -> None:
            for own, before, kept in pairs:
                value = own.val()
                if value is not before:
                    kept.set(value if value.backend is kept.backend else value.to_full_precision())

        return narrow, give_back

    def values(self, values: Any) -> Any:
        """A structure with its floats at this precision."""
        return map_leaves(lambda x: self._value(x) if x.kind is Float else x, values, Tensor)

    def _value(self, x: AnyTensor) -> AnyTensor:
        return x.from_full_precision(x.backend.with_float(self.element))


def wide(values: Any) -> Any:
    """A structure with its floats at full precision."""
    return map_leaves(lambda x: x.to_full_precision() if x.kind is Float else x, values, Tensor)

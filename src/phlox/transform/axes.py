"""Tensors in structures of arguments or results, each with the axis that says where the batch is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import index
from typing import Any, TypeAlias, cast

from phlox.errors import KindError, ShapeError
from phlox.module import Module, Param
from phlox.tensor import Tensor
from phlox.transform.tree import AnyTensor, map_parts, parts_of, with_parts

Axis: TypeAlias = int | None
"""None is no axis: the same for all examples."""


@dataclass(frozen=True, slots=True)
class Walk:
    """A walk over a structure along with its axes: an axis, or a list, tuple or dict of them, as far as they differ."""

    option: str
    """Which option of `vmap` the axes were given as."""
    visit: Callable[[AnyTensor, Axis, str], AnyTensor]
    """`(tensor, axis, path)`: what stands in the tensor's place."""
    settle: Callable[[Param, Param, Axis, str], None] | None = None
    """`(param, twin, axis, path)`: told of each parameter and of the one that stands in its place."""

    def over(self, value: Any, axes: Any, path: str) -> Any:
        """The same structure around what `visit` returned. Raises `ShapeError` where the axes do not fit it."""
        if isinstance(axes, (list, tuple, dict)):
            given, wanted = parts_of(value) or [], dict(parts_of(cast("Any", axes)) or [])
            if {label for label, _ in given} != wanted.keys() or parts_of(value) is None:
                raise self._misfit(cast("Any", axes), value, path)
            return with_parts(value, [self.over(one, wanted[label], path + label) for label, one in given])
        if axes is not None:
            try:
                axes = index(axes)
            except TypeError:
                raise KindError(
                    f"vmap: {self.option} for {path} must be an integer, None, or a list, tuple or dict of these, "
                    f"got {axes!r}"
                ) from None
        return self._every(value, axes, path)

    def _every(self, value: Any, axis: Axis, path: str) -> Any:
        """One axis for all that is in the value."""
        if isinstance(value, Tensor):
            return self.visit(cast("AnyTensor", value), axis, path)
        if isinstance(value, Module):
            return value.map(lambda name, param: self._param(param, axis, f"{path}, parameter `{name}`"))
        return map_parts(lambda part, below: self._every(part, axis, below), value, path)

    def _param(self, param: Param, axis: Axis, path: str) -> Param:
        twin = param.around(self.visit(param.val(), axis, path))
        if self.settle is not None:
            self.settle(param, twin, axis, path)
        return twin

    def _misfit(self, axes: Any, value: Any, path: str) -> ShapeError:
        return ShapeError(f"vmap: {self.option} is {axes!r} for {path}, which is {_described(value)}; make them alike")


def _described(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"a {type(cast('object', value)).__name__} of {len(cast('list[Any]', value))}"
    if isinstance(value, dict):
        return f"a dict with the keys {list(cast('dict[Any, Any]', value))}"
    if isinstance(value, Tensor):
        return f"a tensor of shape {value.shape}"
    return f"a {type(value).__name__}"

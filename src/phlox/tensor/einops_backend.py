"""Tensors in einops: `rearrange`, `reduce`, `repeat`, `einsum`, `pack` and `unpack` take them, on every engine.

einops supports a library through a subclass of its `AbstractBackend`. The subclass for Phlox is defined as soon as both
Phlox and einops are imported, in either order; Phlox itself does not import einops.
"""

from __future__ import annotations

import sys
from typing import Any

from phlox.backend import Float
from phlox.tensor.creation import tensor
from phlox.tensor.einsum import einsum
from phlox.tensor.functions import concat, stack
from phlox.tensor.tensor import Tensor

_MODULE = "einops._backends"


def register_with_einops() -> None:
    """Add the backend of tensors to einops: now if einops is imported already, else when it is imported."""
    if (module := sys.modules.get(_MODULE)) is not None:
        add_backend(module)
    else:
        sys.meta_path.insert(0, _OnImport())


class _OnImport:
    """A finder that handles the first import of einops: the usual loader runs, then the backend is added."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != _MODULE:
            return None
        from importlib.util import find_spec

        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is None or (loader := spec.loader) is None:
            return None
        run = loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            add_backend(module)

        loader.exec_module = exec_module
        return spec


def add_backend(module: Any) -> None:
    """Define the backend of tensors in the module of einops' backends."""

    class PhloxBackend(module.AbstractBackend):
        framework_name = "phlox"

        def is_appropriate_type(self, tensor: object) -> bool:
            return isinstance(tensor, Tensor)

        def from_numpy(self, x: Any) -> Any:
            return tensor(x)

        def to_numpy(self, x: Any) -> Any:
            return x.numpy()

        def reshape(self, x: Any, shape: Any) -> Any:
            return x.reshape(tuple(shape))

        def transpose(self, x: Any, axes: Any) -> Any:
            return x.permute_dims(tuple(axes))

        def reduce(self, x: Any, operation: str, axes: Any) -> Any:
            return getattr(x, operation)(axis=tuple(axes))

        def stack_on_zeroth_dimension(self, tensors: list[Any]) -> Any:
            return stack(tensors)

        def add_axis(self, x: Any, new_position: int) -> Any:
            return x.expand_dims(new_position)

        def tile(self, x: Any, repeats: Any) -> Any:
            return x.tile(tuple(repeats))

        def concat(self, tensors: Any, axis: int) -> Any:
            return concat(list(tensors), axis)

        def is_float_type(self, x: Any) -> bool:
            return x.kind is Float

        def einsum(self, pattern: str, *x: Any) -> Any:
            return einsum(pattern, *x)

    module.PhloxBackend = PhloxBackend  # the module keeps the class alive: einops searches the existing subclasses

"""Structures of tensors and modules taken apart: what goes from turn to turn of a loop, and what must stay alike."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np

from phlox.backend import Device, Float, Int, Kind, as_device
from phlox.backend.kind import Bool
from phlox.backend.tracing.scalar import TracedScalar
from phlox.errors import ModuleError
from phlox.module import Module, Param
from phlox.module.structure import static_key
from phlox.module.template import aux_of
from phlox.optim import Optimizer
from phlox.tensor import Tensor, tensor
from phlox.tensor.backend_promotion import is_below, on_vmap_backend
from phlox.transform.tree import AnyTensor, parts_of, with_parts

Build: TypeAlias = Callable[[Iterator[AnyTensor]], Any]
_NUMBERS: dict[type[Any], type[Kind]] = {bool: Bool, int: Int, float: Float}


class Part(NamedTuple):
    """Something in a structure: a tensor, which is a leaf, or what must be the same each time."""

    path: str
    leaf: Any
    form: Hashable
    text: str


class TreeLeaves:
    """A structure taken apart: its tensors, and how to put it together around others."""

    def __init__(self, value: Any, name: str, *, own: bool = False) -> None:
        self._name, self._own = name, own
        self._parts: list[Part] = []
        self.build: Build = self._take(value, name)
        self._leaves: list[Any] = [part.leaf for part in self._parts if part.form is None]

    def device(self) -> Device | None:
        """Where the first tensor is."""
        return next((x.device for x in self._leaves if isinstance(x, Tensor)), None)

    def on(self, device: Device | None) -> TreeLeaves:
        """This, with numbers as tensors on a device."""
        self._leaves = [
            on_vmap_backend(x if isinstance(x, Tensor) else _of_number(x, as_device(device))) for x in self._leaves
        ]
        return self

    @property
    def tensors(self) -> list[AnyTensor]:
        """The tensors, in order; numbers are among them once it is known where."""
        return self._leaves

    def paths(self) -> list[str]:
        """The path of each tensor."""
        return [part.path for part in self._parts if part.form is None]

    def meet(self, other: TreeLeaves) -> bool:
        """Bring each tensor, here and in another such structure, to the higher backend of the two; was any here moved?

        On a decorator of its backend a tensor is a constant.
        """
        moved = False
        if self._forms() == other._forms():
            for place, (mine, theirs) in enumerate(zip(self._leaves, other._leaves, strict=True)):
                if is_below(mine.backend, theirs.backend):
                    self._leaves[place], moved = mine._on(theirs.backend), True
                elif is_below(theirs.backend, mine.backend):
                    other._leaves[place] = theirs._on(mine.backend)
        return moved

    def difference(self, other: TreeLeaves) -> str | None:
        """Where another structure first differs in anything but values: the path, and what stands in the two."""
        if self._forms() == other._forms() and self._shapes() == other._shapes():
            return None
        mine, theirs = self._described(), other._described()
        for path, (key, text) in mine.items():
            if path not in theirs:
                return f"{path} ({text}) is missing"
            if theirs[path][0] != key:
                return f"{path} was {text} and is {theirs[path][1]}"
        return next((f"{path} ({text}) is new" for path, (_, text) in theirs.items() if path not in mine), None)

    def _forms(self) -> list[tuple[str, Hashable]]:
        return [(part.path, part.form) for part in self._parts]

    def _shapes(self) -> list[Any]:
        return [(x.backend, x.kind, x.shape) for x in self._leaves]

    def _described(self) -> dict[str, tuple[Hashable, str]]:
        leaves = iter(self._leaves)
        found: dict[str, tuple[Hashable, str]] = {}
        for part in self._parts:
            if part.form is None:
                x = next(leaves)
                text = f"{x.kind.__name__} of shape {x.shape} on {x.backend!r}"
                found[part.path] = (text, text)
            else:
                found[part.path] = (part.form, part.text)
        return found

    def _take(self, value: Any, path: str) -> Build:
        if isinstance(value, Tensor):
            return self._leaf(cast("AnyTensor", value), path)
        if isinstance(value, Module):
            return self._module(value, path)
        if isinstance(value, np.generic):
            value = cast("Any", value).item()
        kind = cast("type[Any]", type(value))
        if kind in _NUMBERS or kind is TracedScalar or (getattr(value, "ndim", None) == 0 and hasattr(value, "dtype")):
            return self._leaf(value, path)
        parts = parts_of(value)
        if parts is None:
            return self._static(value, path)
        labels = tuple(sorted(label for label, _ in parts)) if isinstance(value, dict) else len(parts)
        self._parts.append(Part(path, None, (kind, labels), f"a {kind.__name__} of {len(parts)}"))
        builds: dict[int, Build] = {}
        # The keys of a dict may come in another order each time.
        order = range(len(parts))
        for place in sorted(order, key=lambda place: parts[place][0]) if isinstance(value, dict) else order:
            label, part = parts[place]
            builds[place] = self._take(part, path + label)

        def build(tensors: Iterator[AnyTensor]) -> Any:
            made = {place: one(tensors) for place, one in builds.items()}
            return with_parts(value, [made[place] for place in order])

        return build

    def _leaf(self, value: Any, path: str) -> Build:
        self._parts.append(Part(path, value, None, ""))
        return next

    def _module(self, module: Module, path: str) -> Build:
        structure = module.structure()
        for name, param in structure.named():
            value = param.val()
            self._leaf(value.detach() if self._own else value, f"{path}.{name}")
        self._parts.append(Part(path, None, aux_of(structure).template, f"a {type(module).__name__}"))
        around = Param.another if self._own else Param.around
        return lambda tensors: structure.build([around(param, next(tensors)) for param in structure.params])

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
        self._parts.append(Part(path, None, form, repr(value)))
        return lambda tensors: value


def _of_number(value: Any, device: Device) -> AnyTensor:
    kind = _NUMBERS.get(cast("type[Any]", type(value)))
    if kind is not None:
        return tensor(value, device=device, kind=kind)
    if isinstance(value, TracedScalar):
        return tensor(value, device=device)
    backend = device.backend  # of which this stands for a number, an argument of a compiled function
    kind = backend.kind_of(value)
    if kind is Float:
        return Tensor.from_primitive(backend.float_full((), 0.0, device), backend, Float) + value
    return Tensor.from_primitive(backend.int_full((), 0, device), backend, Int) + value


def lengths(packed: Sequence[AnyTensor], paths: Sequence[str]) -> dict[str, int | None]:
    """The size of the first axis of each tensor, by path; None for one that has no axes."""
    return {path: x.shape[0] if x.ndim else None for path, x in zip(paths, packed, strict=True)}

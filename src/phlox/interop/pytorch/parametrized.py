"""Weights that a PyTorch module computes from other tensors: weight norm, spectral norm and pruning.

A state dict contains the tensors from which the weight is computed, named in one of two ways: as by
`torch.nn.utils.weight_norm` ("weight_g") or as by `torch.nn.utils.parametrize` ("parametrizations.weight.original0").
A Phlox module has the weight itself; it is loaded with the value that PyTorch computes in evaluation mode.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phlox.errors import RecordError
from phlox.interop.adapter import Adapter, Rule
from phlox.interop.adapter.pattern import Pattern
from phlox.record import LazyTensor, Record

_Array = NDArray[Any]
_Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Parametrized:
    """Several PyTorch tensors, from which one of our tensors is computed in float64 and rounded once."""

    kind: str
    compute: Callable[..., _Array]
    fits: Callable[..., bool]
    """Whether the shapes belong to one weight."""
    like: int
    """The index of the tensor that has the shape and the dtype of the weight."""

    def forward(self, tensors: list[LazyTensor]) -> list[LazyTensor]:
        """See `phlox.interop.adapter.layout.Layout`."""
        model = tensors[self.like]
        if not self.fits(*(tensor.shape for tensor in tensors)):
            raise RecordError(f"shapes {', '.join(str(t.shape) for t in tensors)} are not those of one {self.kind}")

        def read() -> _Array:
            with np.errstate(all="ignore"):  # PyTorch too divides by a norm of zero
                return self.compute(*(tensor.read().astype(np.float64) for tensor in tensors)).astype(model.dtype)

        return [LazyTensor.from_function(model.shape, model.dtype, read, model.path, model.recast)]

    def backward(self, tensors: list[LazyTensor]) -> list[LazyTensor]:
        """See `phlox.interop.adapter.layout.Layout`."""
        raise RecordError(f"a weight cannot be converted back into a {self.kind}; write the weight itself")


def _product_with_norm(g: _Array, v: _Array) -> _Array:
    # PyTorch keeps only the axis that `dim` names, so the shape of g determines the axes of the norm.
    over = tuple(axis for axis in range(v.ndim) if g.ndim == 0 or g.shape[axis] == 1)
    return v * (g / np.sqrt(np.square(v).sum(axis=over, keepdims=True)))


def _is_norm(g: _Shape, v: _Shape) -> bool:
    return not g or (len(g) == len(v) and all(size in (1, other) for size, other in zip(g, v, strict=True)))


def _without_spectral_norm(weight: _Array, u: _Array, v: _Array) -> _Array:
    # If two axes fit, the right one gives the largest singular value, and the other one a smaller value.
    matrices = [np.moveaxis(weight, axis, 0).reshape(len(u), -1) for axis in _axes(weight.shape, u.shape, v.shape)]
    return weight / max((u @ matrix @ v for matrix in matrices), key=abs)


def _axes(weight: _Shape, u: _Shape, v: _Shape) -> list[int]:
    """The axes of the weight that can be the rows of its matrix."""
    if len(u) != 1 or len(v) != 1:
        return []
    size = int(np.prod(weight))
    return [axis for axis, length in enumerate(weight) if length == u[0] and size == length * v[0]]


_WEIGHT_NORM = Parametrized("weight norm", _product_with_norm, _is_norm, 1)
_SPECTRAL_NORM = Parametrized("spectral norm", _without_spectral_norm, lambda *shapes: bool(_axes(*shapes)), 0)
_MASK = Parametrized("pruned weight", np.multiply, operator.eq, 0)

_NAMES: tuple[tuple[tuple[str, ...], Parametrized], ...] = (
    (("{0}{1}_g", "{0}{1}_v"), _WEIGHT_NORM),
    (("{0}parametrizations.{1}.original0", "{0}parametrizations.{1}.original1"), _WEIGHT_NORM),
    (("{0}{1}_orig", "{0}{1}_u", "{0}{1}_v"), _SPECTRAL_NORM),
    (
        ("{0}parametrizations.{1}.original", "{0}parametrizations.{1}.0._u", "{0}parametrizations.{1}.0._v"),
        _SPECTRAL_NORM,
    ),
    (("{0}{1}_orig", "{0}{1}_mask"), _MASK),
)
"""The tensors from which a weight is computed, by its module's path and its own name, and the computation."""


def with_parametrized(between: Adapter, torch_record: Record) -> Adapter:
    """The adapter for a state dict in which some of the expected tensors are parametrized."""
    torch_names = {pattern.text for rule in between.rules for pattern in rule.theirs}
    rules: list[Rule] = []
    for path in torch_names:
        if path in torch_record or path in torch_record.unreadable:
            continue
        before, dot, name = path.rpartition(".")
        for names, layout in _NAMES:
            sources = [text.format(before + dot, name) for text in names]
            if all(source in torch_record and source not in torch_names for source in sources):
                rules.append(Rule(tuple(map(Pattern, sources)), (Pattern(path),), layout))
                break
    return Adapter(rules) | between if rules else between


def remedy(torch_record: Record) -> str | None:
    """The remedy for a state dict with unsupported parametrizations; None if it has none."""
    path = next((path for path in torch_record if "parametrizations." in path), None)
    if path is None:
        return None
    module, _, after = path.rpartition("parametrizations.")
    name = after.partition(".")[0]
    return (
        f"{module}{name} is parametrized in PyTorch ({path}): before saving, convert it to a plain tensor with "
        f"torch.nn.utils.parametrize.remove_parametrizations(module, {name!r})."
    )

"""Initializers of whole weight matrices or kernels.

Their values are computed on the host in float64 and rounded once, so that they are the same on every backend.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from phlox import random
from phlox.backend import Device, Float, NumPy
from phlox.errors import ShapeError
from phlox.nn.initializer.base import Initializer
from phlox.tensor import Tensor, tensor

_HOST = NumPy(float="f64")


class OfWeights(Initializer):
    """Base of initializers that work only for weights; they compute the values as a host array."""

    of_weights: ClassVar[bool] = True

    def __call__(self, shape: tuple[int, ...], fans: tuple[int, int], device: Device) -> Tensor[Any, Any, Any]:
        return tensor(self.values(shape), device=device, kind=Float)

    def values(self, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """An array of `shape`; raises `ShapeError` for an unsupported shape."""
        raise NotImplementedError


class Orthogonal(OfWeights):
    """A matrix with orthonormal rows (or columns, if there are fewer) times `gain` (Saxe, McClelland, Ganguli 2014).

    The distribution is uniform over such matrices. A weight of higher rank is flattened: its first axis is the rows.

    >>> import phlox as px
    >>> px.nn.Linear(4, 2, initializer=Orthogonal()).weight.val().shape
    (4, 2)
    """

    gain: float = 1.0

    def values(self, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        if len(shape) < 2:
            raise ShapeError(f"Orthogonal: a weight needs at least two axes, got shape {shape}")
        rows, columns = shape[0], math.prod(shape[1:])
        tall = random.normal((max(rows, columns), min(rows, columns)), device=_HOST).numpy()
        q, r = np.linalg.qr(tall)
        q = q * np.where(np.diagonal(r) < 0.0, -1.0, 1.0)  # makes the distribution uniform
        return self.gain * (q.T if rows < columns else q).reshape(shape)


class Eye(OfWeights):
    """The identity matrix times `gain`: a dense layer returns its input. Extra rows or columns are zero.

    >>> import phlox as px
    >>> px.nn.Linear(2, 2, initializer=Eye()).weight.val().tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """

    gain: float = 1.0

    def values(self, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        if len(shape) != 2:
            raise ShapeError(f"Eye: a weight must have two axes, got shape {shape}; for a convolution use Dirac")
        return self.gain * np.eye(*shape)


class Dirac(OfWeights):
    """A weight [out, in / groups, *kernel] with which a convolution returns its input, channel by channel.

    In each group, output channels beyond the number of input channels are zero.

    >>> import phlox as px
    >>> x = px.tensor([[[1.0, 2.0, 3.0]]])
    >>> px.nn.Conv1d(1, 1, 3, padding=1, initializer=Dirac())(x).tolist()
    [[[1.0, 2.0, 3.0]]]
    """

    groups: int = 1

    def validate(self) -> None:
        if self.groups < 1:
            raise ValueError(f"groups must be at least 1, got {self.groups}")

    def values(self, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        if len(shape) < 3:
            raise ShapeError(f"Dirac: a weight must be [out, in, *kernel], got shape {shape}; for a matrix use Eye")
        out, per_group, *kernel = shape
        if out % self.groups:
            raise ShapeError(f"Dirac: {out} output channels are not divisible by {self.groups} groups")
        values = np.zeros(shape)
        centre = tuple(size // 2 for size in kernel)
        for channel in range(out):
            source = channel % (out // self.groups)
            if source < per_group:
                values[(channel, source, *centre)] = 1.0
        return values


class Sparse(OfWeights):
    """A normal matrix [inputs, outputs] in which, for each output, a share of the inputs is zero (Martens 2010).

    `sparsity` is that share, rounded up to whole inputs; `std` is the standard deviation of the others.

    >>> import phlox as px
    >>> px.nn.Linear(4, 2, initializer=Sparse(sparsity=0.5)).weight.val().shape
    (4, 2)
    """

    sparsity: float = 0.9
    std: float = 0.01

    def validate(self) -> None:
        if not 0.0 <= self.sparsity <= 1.0:
            raise ValueError(f"sparsity must be between 0 and 1, got {self.sparsity}")
        if not self.std >= 0.0:
            raise ValueError(f"std must not be negative, got {self.std}")

    def values(self, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        if len(shape) != 2:
            raise ShapeError(f"Sparse: a weight must have two axes, [inputs, outputs], got shape {shape}")
        values = random.normal(shape, 0.0, self.std, device=_HOST).numpy().copy()
        order = np.argsort(random.uniform(shape, device=_HOST).numpy(), axis=0, kind="stable")
        np.put_along_axis(values, order[: math.ceil(self.sparsity * shape[0])], 0.0, axis=0)
        return values

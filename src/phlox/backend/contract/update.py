"""Updates of optimizers that an engine may fuse."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from phlox.backend.contract.elementwise import ElementwiseOps
from phlox.backend.contract.types import Array, Shape
from phlox.backend.device import Device

Real: TypeAlias = Any
"""A Python scalar, or a traced one."""


class AdamScalars(NamedTuple):
    """The scalars of Adam's update; `correction_n` is 1 - beta_n ** time."""

    lr: Real
    beta_1: float
    beta_2: float
    epsilon: float
    weight_decay: float
    decoupled: bool
    correction_1: Real
    correction_2: Real
    time: Real = 0
    """The number of this step, for kernels that compute the corrections themselves."""


class SgdScalars(NamedTuple):
    """The scalars of gradient descent."""

    lr: Real
    momentum: float
    dampening: float
    weight_decay: float
    nesterov: bool
    maximize: bool
    first: bool
    """Is it the first step, whose velocity is the gradient?"""


class AdagradScalars(NamedTuple):
    """The scalars of Adagrad."""

    lr: Real
    lr_decay: float
    weight_decay: float
    epsilon: float
    maximize: bool
    time: Real
    """The number of this step, from one."""


class UpdateOps(ElementwiseOps):
    """The fused updates; each returns new arrays, and writes to none."""

    def adam_update(self, x: Array, g: Array, m: Array, v: Array, numbers: AdamScalars) -> tuple[Array, Array, Array]:
        """One step of Adam or AdamW: x, and the first and second moment of its gradient g."""
        lr, beta_1, beta_2, epsilon, decay, decoupled, correction_1, correction_2, _ = numbers
        if decay:
            if decoupled:
                x = self.float_mul(x, 1.0 - lr * decay)
            else:
                g = self.float_add(g, self.float_mul(x, decay))
        m = self.float_add(self.float_mul(m, beta_1), self.float_mul(g, 1.0 - beta_1))
        v = self.float_add(self.float_mul(v, beta_2), self.float_mul(self.float_square(g), 1.0 - beta_2))
        scale = self.float_add(self.float_sqrt(self.float_mul(v, 1.0 / correction_2)), epsilon)
        return self.float_sub(x, self.float_mul(self.float_div(m, scale), lr / correction_1)), m, v


class ReusedBuffer(ABC):
    """Memory that is reused for one tensor after another, once no reference to the previous tensor is left.

    The lent array is a separate object, which every view keeps alive: once it is gone, nothing can read the memory.
    """

    flat: Array
    """All of it, for its owner, in one dimension."""

    @abstractmethod
    def lend(self) -> Array:
        """An array over this memory."""

    @abstractmethod
    def has_lent(self, x: Array) -> bool:
        """Is this the array that was last lent?"""

    @abstractmethod
    def is_free(self) -> bool:
        """Is the array that was last lent gone, with all its views?"""


class Piece(NamedTuple):
    """One tensor's part in a step: flat arrays of one size."""

    old: tuple[Array, ...]
    """The tensor, its gradient, and the arrays of its state."""
    new: tuple[Array, ...]
    """The targets of the tensor and of its state's arrays, which may be the same memory."""


class MultiTensorOps:
    """Updates of many tensors at once, for engines on which that is faster; they may write to arrays.

    The defaults are for an engine without such updates.
    """

    def memory_like(self, x: Array, shape: Shape, device: Device) -> ReusedBuffer | None:
        """Memory for arrays of this shape on a device, with the dtype of x, a plain array.

        None if the engine cannot tell when the memory is free.
        """
        return None

    def new_like(self, x: Array) -> Array:
        """An uninitialized plain array of the same shape, dtype and device."""
        raise NotImplementedError

    def is_plain(self, x: Array) -> bool:
        """Is this an array with values (no tracer), parts of which can be written to in place?"""
        return False

    def are_alike(self, x: Array, y: Array) -> bool:
        """Are these plain arrays of the same shape and device?"""
        return False

    def flat(self, x: Array) -> Array:
        """A plain array in one dimension; it shares memory if its elements are in order."""
        raise NotImplementedError

    def kernel(self, name: str, numbers: NamedTuple) -> Callable[[Sequence[Piece]], object] | None:
        """The engine's fused update of many tensors for the optimizer of this name, if it has one."""
        return None

    def in_pieces(self, work: Callable[[list[Array]], list[Array]], pieces: Sequence[Piece]) -> None:
        """`work(old) -> new` for parts of these pieces that fit the cache, several small ones joined.

        `work` gets flat arrays of any size, which it does not write to; its results are copied to their targets.
        """
        raise NotImplementedError


SHORT = 1 << 15
"""Tensors of fewer elements are joined."""


def bundles(sizes: Sequence[int], longest: int) -> list[list[tuple[int, int, int]]]:
    """Bundles of (tensor, start, stop): slices of at most `longest` elements, and short tensors together."""
    result: list[list[tuple[int, int, int]]] = []
    together, filled = list[tuple[int, int, int]](), 0
    for number, size in enumerate(sizes):
        if size >= SHORT:
            step = -(-size // -(-size // longest))
            result += [[(number, start, min(start + step, size))] for start in range(0, size, step)]
        elif size:
            together.append((number, 0, size))
            filled += size
            if filled >= SHORT:
                result.append(together)
                together, filled = [], 0
    return [*result, together] if together else result


def work_on(
    bundle: Sequence[tuple[int, int, int]],
    pieces: Sequence[Piece],
    work: Callable[[list[Array]], list[Array]],
    join: Callable[[list[Array]], Array],
    apart: Callable[[Array, list[Array]], Array],
) -> None:
    """Update one bundle: `work` of its slices of the old arrays, joined; the results are copied to the new arrays.

    `apart(result, old)` is the result, copied if it shares memory with an array of `old`: those may be overwritten.
    """
    if len(bundle) == 1:
        number, start, stop = bundle[0]
        elements = slice(start, stop)
        old = [array[elements] for array in pieces[number].old]
        new = [apart(result, old) for result in work(old)]
        for target, result in zip(pieces[number].new, new, strict=True):
            target[elements] = result
        return
    chosen = [pieces[number] for number, _, _ in bundle]
    new = work([join(list(arrays)) for arrays in zip(*[piece.old for piece in chosen], strict=True)])
    start = 0
    for piece in chosen:
        elements = slice(start, start := start + len(piece.new[0]))
        for target, result in zip(piece.new, new, strict=True):
            target[:] = result[elements]

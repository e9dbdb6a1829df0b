"""Updates of optimizers on PyTorch: its fused kernels, which take all tensors of one device and type at once."""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateImportUsage=false

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from operator import is_not
from typing import Any, NamedTuple

import numpy as np
import torch

from phlox.backend.contract import Backend
from phlox.backend.contract.types import Array, Shape
from phlox.backend.contract.update import AdagradScalars, AdamScalars, Piece, ReusedBuffer, SgdScalars, bundles, work_on
from phlox.backend.contract.widening import composed
from phlox.backend.device import Device
from phlox.backend.torch import compat
from phlox.backend.torch.repeats import repeated
from phlox.backend.torch.tracer import is_traced_by_others, is_tracer, tracing

_LONG = 1 << 17
"""Elements in a part: parts of several arrays fit the cache, and each thread of PyTorch has enough work."""
Tensors = list[torch.Tensor]


class HostMemory(ReusedBuffer):
    """See `ReusedBuffer`: the lent tensor keeps a NumPy array alive, as does everything that shares its memory."""

    def __init__(self, like: torch.Tensor, shape: Shape) -> None:
        self._owner: Any = np.empty(shape, torch.empty((), dtype=like.dtype).numpy().dtype)
        self._lent_view: weakref.ref[Any] | None = None
        self._lent_tensor: weakref.ref[Any] | None = None
        self.flat = torch.from_numpy(self._owner.reshape(-1))

    def lend(self) -> Array:
        view = self._owner[...]
        lent = torch.from_numpy(view)
        self._lent_view, self._lent_tensor = weakref.ref(view), weakref.ref(lent)
        return lent

    def has_lent(self, x: Array) -> bool:
        return self._lent_tensor is not None and self._lent_tensor() is x

    def is_free(self) -> bool:
        return self._lent_view is None or self._lent_view() is None


def _adam(name: str) -> Callable[..., object]:
    def run(n: AdamScalars, xs: Tensors, gs: Tensors, ms: Tensors, vs: Tensors) -> None:
        time = torch.tensor(float(n.time), device=xs[0].device)
        compat.FUSED_UPDATES[name].value(
            xs, gs, ms, vs, [], [time] * len(xs), lr=n.lr, beta1=n.beta_1, beta2=n.beta_2,
            weight_decay=n.weight_decay, eps=n.epsilon, amsgrad=False, maximize=False,
        )  # fmt: skip

    return run


def _sgd(n: SgdScalars, xs: Tensors, gs: Tensors, velocities: Tensors | None = None) -> None:
    compat.FUSED_UPDATES["sgd"].value(
        xs, gs, velocities or [], lr=n.lr, momentum=n.momentum, dampening=n.dampening, weight_decay=n.weight_decay,
        nesterov=n.nesterov, maximize=n.maximize, is_first_step=n.first,
    )  # fmt: skip


def _adagrad(n: AdagradScalars, xs: Tensors, gs: Tensors, sums: Tensors) -> None:
    times = [torch.tensor(float(n.time), device=xs[0].device)] * len(xs)
    compat.FUSED_UPDATES["adagrad"].value(
        xs, gs, sums, times, lr=n.lr, lr_decay=n.lr_decay, weight_decay=n.weight_decay, eps=n.epsilon,
        maximize=n.maximize,
    )  # fmt: skip


_KERNELS: dict[str, Callable[..., object]] = {
    "adam": _adam("adam"), "adamw": _adam("adamw"), "sgd": _sgd, "adagrad": _adagrad,
}  # fmt: skip
"""Kernels by the optimizer's name."""


class Update(Backend):
    """See `phlox.backend.contract.update`."""

    @composed
    def adam_update(self, x: Array, g: Array, m: Array, v: Array, numbers: AdamScalars) -> tuple[Array, Array, Array]:
        if not tracing.get():
            return super().adam_update(x, g, m, v, numbers)
        new, new_m, new_v = repeated(super().adam_update, (x, g, m, v), numbers)
        return new, new_m, new_v

    def memory_like(self, x: Array, shape: Shape, device: Device) -> ReusedBuffer | None:
        return HostMemory(x, shape) if x.device.type == "cpu" and x.dtype is not torch.bfloat16 else None

    def new_like(self, x: Array) -> Array:
        return torch.empty(x.shape, dtype=x.dtype, device=x.device)

    def is_plain(self, x: Array) -> bool:
        return type(x) is torch.Tensor and x.device.type in ("cpu", "cuda") and not is_tracer(x)

    def are_alike(self, x: Array, y: Array) -> bool:
        return type(x) is type(y) is torch.Tensor and x.shape == y.shape and x.device == y.device

    def flat(self, x: Array) -> Array:
        return x if x.ndim == 1 and x.is_contiguous() else x.reshape(-1)

    def set_column(self, x: Array, column: int, entry: Array) -> Array:
        x[:, column] = entry
        return x

    def write_from(self, x: Array, values: Array, start: Array, axis: int, donated: bool) -> Array:
        if not (self.is_plain(x) and self.is_plain(start)) or is_traced_by_others():
            return super().write_from(x, values, start, axis, donated)
        out = x if donated else x.clone()
        if start.ndim and values.shape[axis] == 1:  # the indices are known without waiting for the device
            cells, new = out.movedim(axis, 1), values.movedim(axis, 1)[:, 0]
            rows, column = torch.arange(len(start), device=start.device), start.clamp(max=x.shape[axis] - 1)
            fits = (start < x.shape[axis]).view(-1, *(1,) * (new.ndim - 1))
            cells[rows, column] = torch.where(fits, new, cells[rows, column])
            return out
        if start.ndim:
            columns = start[:, None] + torch.arange(values.shape[axis], device=start.device)
            row, column = torch.nonzero(columns < x.shape[axis], as_tuple=True)
            out.movedim(axis, 1)[row, columns[row, column]] = values.movedim(axis, 1)[row, column]
            return out
        first = int(start)
        count = max(0, min(values.shape[axis], x.shape[axis] - first))
        out.narrow(axis, min(first, x.shape[axis]), count).copy_(values.narrow(axis, 0, count))
        return out

    def kernel(self, name: str, numbers: NamedTuple) -> Callable[[Sequence[Piece]], object] | None:
        run = _KERNELS.get(name)
        if run is None or self.float_element not in ("f32", "f64") or not compat.FUSED_UPDATES[name].exists:
            return None

        def update(pieces: Sequence[Piece]) -> None:
            with torch.no_grad():
                olds = [list(column) for column in zip(*[piece.old for piece in pieces], strict=True)]
                news = [list(column) for column in zip(*[piece.new for piece in pieces], strict=True)]
                for sources, targets in zip((olds[0], *olds[2:]), news, strict=True):
                    if any(map(is_not, sources, targets)):
                        for source, target in zip(sources, targets, strict=True):
                            if source is not target:
                                target.copy_(source)
                run(numbers, news[0], olds[1], *news[1:])

        return update

    def in_pieces(self, work: Callable[[list[Array]], list[Array]], pieces: Sequence[Piece]) -> None:
        sizes = [len(piece.new[0]) for piece in pieces]
        # On a GPU each part would be a launch of each operation, and its cache is not the bottleneck.
        longest = _LONG if pieces[0].new[0].device.type == "cpu" else max(sizes)
        with torch.no_grad():
            for bundle in bundles(sizes, longest):
                work_on(bundle, pieces, work, torch.cat, _unshared)


def _unshared(result: torch.Tensor, old: Tensors) -> torch.Tensor:
    memory = result.untyped_storage().data_ptr()
    return result.clone() if any(array.untyped_storage().data_ptr() == memory for array in old) else result

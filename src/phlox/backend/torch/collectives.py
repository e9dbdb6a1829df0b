"""Collectives of PyTorch tensors, by `torch.distributed`: gloo on processors, NCCL on GPUs.

In a program a collective is one operation, whose result is complete when it returns. Collectives of `torch.distributed`
that write to their arguments cannot be used: the graph would contain the call, but not the wait for it.
"""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, Literal, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, fx

from phlox.backend.contract import EngineBackend
from phlox.backend.contract.collectives import Presence, Reduction, buckets, check_presence
from phlox.backend.contract.types import Array
from phlox.backend.processes import processes
from phlox.backend.torch.tracer import is_tracer
from phlox.errors import CompileError, DistributedError

_HALVES = (torch.float16, torch.bfloat16)
_IN_PLACE = "c10d"
"""The namespace of PyTorch's operations that write to their arguments and are waited for elsewhere."""


class Collectives(EngineBackend):
    """See `phlox.backend.contract.collectives`."""

    def all_reduce(self, arrays: Sequence[Array], op: Reduction, presence: Presence | None = None) -> list[Array]:
        if processes().size == 1 or not (arrays or presence):
            return list(arrays)
        self.join_processes()
        if any(map(is_tracer, arrays)):
            names, here = presence or ((), ())
            return list(operation("all_reduce")(list(arrays), op, list(names), list(here)))
        return _reduced(arrays, op, presence)

    def all_gather(self, x: Array) -> Array:
        size = processes().size
        if size == 1:
            return x.reshape(1, *x.shape)
        self.join_processes()
        return operation("all_gather")(x, size) if is_tracer(x) else _gathered(x, size)

    def broadcast(self, x: Array, root: int) -> Array:
        if processes().size == 1:
            return x
        self.join_processes()
        return operation("broadcast")(x, root) if is_tracer(x) else _broadcast(x, root)

    def reduce_on_host(
        self, arrays: Sequence[np.ndarray[Any, Any]], op: Reduction, presence: Presence | None = None
    ) -> list[np.ndarray[Any, Any]]:
        return [x.numpy() for x in self.all_reduce([_of_host(array) for array in arrays], op, presence)]

    def gather_on_host(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return self.all_gather(_of_host(array)).numpy()

    def broadcast_on_host(self, array: np.ndarray[Any, Any], root: int) -> np.ndarray[Any, Any]:
        return self.broadcast(_of_host(array), root).numpy()


def _of_host(array: np.ndarray[Any, Any]) -> Tensor:
    # PyTorch warns of memory that it may not write to, and nothing here is written to.
    made = array if array.flags.writeable and array.flags.c_contiguous else array.copy(order="C")
    return cast(Any, torch).from_numpy(made)


# --- values


def _done(call: Callable[[], Any]) -> Any:
    """The result of a call of `torch.distributed`; its error becomes a `DistributedError`."""
    try:
        return call()
    except RuntimeError as error:
        known = processes()
        cause = str(error).strip().splitlines() or [type(error).__name__]
        raise DistributedError(
            f"process {known.rank} of {known.size}: a collective has failed, as one does where another process has "
            f"ended, hangs, or gives arrays of other shapes ({cause[0]})"
        ) from error


def _reduced(
    arrays: Sequence[Tensor], op: Reduction, presence: Presence | None, *, apart: bool = False
) -> list[Tensor]:
    """The reduced arrays; those of one bucket share memory, unless they must be `apart`, as in a program."""
    sent = list(arrays)
    if presence is not None:  # with the first bucket, so that it costs no wait of its own
        device = sent[0].device if sent else torch.device("cpu")
        sent.insert(0, torch.tensor(presence.here, dtype=torch.float32, device=device))
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for number, x in enumerate(sent):
        groups.setdefault((x.device, torch.float32 if x.dtype in _HALVES else x.dtype), []).append(number)
    pieces: list[tuple[list[int], Tensor, Any]] = []
    for (_, dtype), members in groups.items():
        for bucket in buckets([sent[number].numel() * dtype.itemsize for number in members]):
            numbers = [members[place] for place in bucket]
            flat = _packed([sent[number] for number in numbers], dtype)
            work = _done(partial(dist.all_reduce, flat, async_op=True))
            pieces.append((numbers, flat, work))
    found: list[Tensor] = [*sent]
    size = processes().size
    for numbers, flat, work in pieces:
        _done(work.wait)
        dtype = flat.dtype
        if presence is not None and numbers[0] == 0:
            check_presence(presence, flat[: len(presence.here)].tolist())
        if op == "mean":
            flat /= size
        parts = flat.split([sent[number].numel() for number in numbers])
        for number, part in zip(numbers, parts, strict=True):
            x = sent[number]
            part = part.view(x.shape)
            found[number] = part.clone() if apart and len(numbers) > 1 and x.dtype is dtype else part.to(x.dtype)
    return found if presence is None else found[1:]


def _packed(xs: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """The elements of tensors in a row, in memory that is written to."""
    if len(xs) == 1:
        return xs[0].detach().to(dtype, copy=True, memory_format=torch.contiguous_format).reshape(-1)
    rows = [x.detach().reshape(-1) for x in xs]
    return torch.cat([row if row.dtype is dtype else row.to(dtype) for row in rows])


def _gathered(x: Tensor, size: int) -> Tensor:
    found = x.new_empty((size, *x.shape))
    _done(partial(dist.all_gather, [_bytes(one) for one in found.unbind()], _bytes(x.detach().contiguous())))
    return found


def _broadcast(x: Tensor, root: int) -> Tensor:
    found = x.detach().clone(memory_format=torch.contiguous_format)
    _done(partial(dist.broadcast, _bytes(found), root))
    return found


def _bytes(x: Tensor) -> Tensor:
    """The memory of a tensor as bytes, since gloo does not support all dtypes."""
    return x.reshape(-1).view(torch.uint8)


# --- in programs


@lru_cache(3)
def operation(name: Literal["all_reduce", "all_gather", "broadcast"]) -> Callable[..., Any]:
    """A collective as an operation that PyTorch can trace, made on first use."""

    def all_reduce(xs: Sequence[Tensor], op: str, names: Sequence[str], here: Sequence[bool]) -> list[Tensor]:
        presence = Presence(tuple(names), tuple(here)) if names else None
        return _reduced(xs, cast("Reduction", op), presence, apart=True)

    def like(xs: Sequence[Tensor], *_: Any) -> list[Tensor]:
        return [x.new_empty(x.shape) for x in xs]

    def stacked(x: Tensor, size: int) -> Tensor:
        return x.new_empty((size, *x.shape))

    def same(x: Tensor, root: int) -> Tensor:
        return x.new_empty(x.shape)

    functions: dict[str, tuple[Any, Any, str]] = {
        "all_reduce": (all_reduce, like, "(Tensor[] xs, str op, str[] names, bool[] here) -> Tensor[]"),
        "all_gather": (_gathered, stacked, "(Tensor x, int size) -> Tensor"),
        "broadcast": (_broadcast, same, "(Tensor x, int root) -> Tensor"),
    }
    function, fake, schema = functions[name]
    made: Any = torch.library.custom_op(f"phlox::{name}", function, mutates_args=(), schema=schema)
    made.register_fake(fake)
    # The other processes wait for it, whether this one uses the result or not.
    return fx.has_side_effect(getattr(torch.ops.phlox, name).default)


def refuse_in_place(graph: Any) -> None:
    """`CompileError` for a collective that is in a graph without the wait for it."""
    for node in graph.graph.nodes:
        if getattr(node.target, "namespace", None) == _IN_PLACE:
            called = node.target.name().partition("::")[2].partition(".")[0].rstrip("_")
            called = re.sub("^(all)(?!_)", r"\1_", called)
            raise CompileError(
                f"a collective of torch.distributed that writes to its argument ({called}) is inside a function that "
                "is being compiled, and the program would not wait for it; use px.distributed.sum, mean, gather or "
                "broadcast, or torch.distributed._functional_collectives"
            )

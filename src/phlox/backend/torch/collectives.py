"""Collectives of PyTorch tensors, by `torch.distributed`: gloo on processors, NCCL on GPUs.

In a program a collective is one operation, whose result is complete when it returns. The collectives of
`torch.distributed` that write to their arguments cannot be used: the graph would contain the call, but no wait for it.
"""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, Literal, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, fx

from phlox.backend.contract import EngineBackend
from phlox.backend.contract.collectives import Presence, Ranks, Reduction, buckets, check_presence
from phlox.backend.contract.types import Array
from phlox.backend.processes import processes
from phlox.errors import CompileError, DistributedError

_HALVES = (torch.float16, torch.bfloat16)
_IN_PLACE = "c10d"
"""The namespace of PyTorch's collectives that write to their arguments; a separate operation waits for them."""


class Collectives(EngineBackend):
    """See `phlox.backend.contract.collectives`."""

    def all_reduce(self, arrays: Sequence[Array], op: Reduction, presence: Presence | None = None) -> list[Array]:
        if processes().size == 1 or not (arrays or presence):
            return list(arrays)
        self.join_processes()
        if self.is_tracing():
            names, owned = presence or ((), ())
            return list(operation("all_reduce")(list(arrays), op, list(names), list(owned), None))
        return _reduced(arrays, op, presence)

    def all_gather(self, x: Array) -> Array:
        size = processes().size
        if size == 1:
            return x.reshape(1, *x.shape)
        self.join_processes()
        return operation("all_gather")(x, size, None) if self.is_tracing() else _gathered(x, size)

    def broadcast(self, x: Array, root: int) -> Array:
        if processes().size == 1:
            return x
        self.join_processes()
        return operation("broadcast")(x, root, None) if self.is_tracing() else _broadcast(x, root)

    def gather_slices(self, x: Array, ranks: Ranks) -> Array:
        return self.gathering_slices(x, ranks)()

    def scatter_mean(self, x: Array, ranks: Ranks) -> Array:
        return self.scattering_mean(x, ranks)()

    def gathering_slices(self, x: Array, ranks: Ranks) -> Callable[[], Array]:
        return self._begun("gather_slices", _gathering_slices, x, ranks)

    def scattering_mean(self, x: Array, ranks: Ranks) -> Callable[[], Array]:
        return self._begun("scatter_mean", _scattering_mean, x, ranks)

    def _begun(
        self, name: Literal["gather_slices", "scatter_mean"], begin: Callable[..., Any], x: Array, ranks: Ranks
    ) -> Callable[[], Array]:
        self.join_processes()
        if not self.is_tracing():
            return begin(x, ranks)
        result = operation(name)(x, list(ranks), None)
        return lambda: result

    def gather_slices_on_host(self, array: np.ndarray[Any, Any], ranks: Ranks) -> np.ndarray[Any, Any]:
        return self.gather_slices(_of_host(array), ranks).numpy()

    def scatter_mean_on_host(self, array: np.ndarray[Any, Any], ranks: Ranks) -> np.ndarray[Any, Any]:
        return self.scatter_mean(_of_host(array), ranks).numpy()

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
    writable = array if array.flags.writeable and array.flags.c_contiguous else array.copy(order="C")
    return cast(Any, torch).from_numpy(writable)


# --- values


def _checked(call: Callable[[], Any]) -> Any:
    """The result of a call of `torch.distributed`; its error becomes a `DistributedError`."""
    try:
        return call()
    except RuntimeError as error:
        group = processes()
        cause = str(error).strip().splitlines() or [type(error).__name__]
        raise DistributedError(
            f"process {group.rank} of {group.size}: a collective has failed, as it does if another process has "
            f"ended, hangs, or passes arrays of other shapes ({cause[0]})"
        ) from error


def _reduced(
    arrays: Sequence[Tensor], op: Reduction, presence: Presence | None, *, apart: bool = False
) -> list[Tensor]:
    """The reduced arrays. Arrays of one bucket share memory, unless they must be `apart`, as in a program."""
    sent = list(arrays)
    if presence is not None:  # with the first bucket, so that it costs no wait of its own
        device = sent[0].device if sent else torch.device("cpu")
        sent.insert(0, torch.tensor(presence.owned, dtype=torch.float32, device=device))
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for number, x in enumerate(sent):
        groups.setdefault((x.device, torch.float32 if x.dtype in _HALVES else x.dtype), []).append(number)
    pieces: list[tuple[list[int], Tensor, Any]] = []
    for (_, dtype), members in groups.items():
        for bucket in buckets([sent[number].numel() * dtype.itemsize for number in members]):
            numbers = [members[index] for index in bucket]
            flat = _packed([sent[number] for number in numbers], dtype)
            work = _checked(partial(dist.all_reduce, flat, async_op=True))
            pieces.append((numbers, flat, work))
    reduced: list[Tensor] = [*sent]
    size = processes().size
    for numbers, flat, work in pieces:
        _checked(work.wait)
        dtype = flat.dtype
        if presence is not None and numbers[0] == 0:
            check_presence(presence, flat[: len(presence.owned)].tolist())
        if op == "mean":
            flat /= size
        parts = flat.split([sent[number].numel() for number in numbers])
        for number, part in zip(numbers, parts, strict=True):
            x = sent[number]
            part = part.view(x.shape)
            reduced[number] = part.clone() if apart and len(numbers) > 1 and x.dtype is dtype else part.to(x.dtype)
    return reduced if presence is None else reduced[1:]


def _packed(xs: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """The elements of tensors in a row, in memory that is written to."""
    if len(xs) == 1:
        return xs[0].detach().to(dtype, copy=True, memory_format=torch.contiguous_format).reshape(-1)
    rows = [x.detach().reshape(-1) for x in xs]
    return torch.cat([row if row.dtype is dtype else row.to(dtype) for row in rows])


def _gathered(x: Tensor, size: int) -> Tensor:
    rows = x.new_empty((size, *x.shape))
    _checked(partial(dist.all_gather, [_bytes(row) for row in rows.unbind()], _bytes(x.detach().contiguous())))
    return rows


def _broadcast(x: Tensor, root: int) -> Tensor:
    copy = x.detach().clone(memory_format=torch.contiguous_format)
    _checked(partial(dist.broadcast, _bytes(copy), root))
    return copy


# --- among some of the processes
#
# On CPUs, sending each process only the rows that it needs is several times as fast as gloo's own ring.


@lru_cache(maxsize=64)
def _group(ranks: Ranks) -> Any:
    """The group of these processes; None for all processes."""
    if len(ranks) == processes().size:
        return None
    return _checked(lambda: dist.new_group(list(ranks), use_local_synchronization=True))


def _exchanging(
    sent: Sequence[tuple[Tensor, int]], received: Sequence[tuple[Tensor, int]], group: Any
) -> Callable[[], None]:
    """Begin to send tensors to processes and to receive tensors from them; the returned function waits for the end."""
    calls = [dist.P2POp(dist.isend, _bytes(x), rank, group) for x, rank in sent]
    calls += [dist.P2POp(dist.irecv, _bytes(x), rank, group) for x, rank in received]
    works = _checked(lambda: dist.batch_isend_irecv(calls))

    def wait() -> None:
        for work in works:
            _checked(work.wait)

    return wait


def _gathering_slices(x: Tensor, ranks: Sequence[int]) -> Callable[[], Tensor]:
    ranks = tuple(ranks)
    rows = x.new_empty((len(ranks), *x.shape))
    row = x.detach().contiguous()
    if x.is_cuda:
        work = _checked(partial(dist.all_gather, list(rows.unbind()), row, _group(ranks), async_op=True))
        wait = partial(_checked, work.wait)
    else:
        others = [(index, rank) for index, rank in enumerate(ranks) if rank != processes().rank]
        wait = _exchanging(
            [(row, rank) for _, rank in others], [(rows[index], rank) for index, rank in others], _group(ranks)
        )
        rows[ranks.index(processes().rank)] = row

    def finish() -> Tensor:
        wait()
        return rows

    return finish


def _scattering_mean(x: Tensor, ranks: Sequence[int]) -> Callable[[], Tensor]:
    ranks = tuple(ranks)
    size, own_index = len(ranks), ranks.index(processes().rank)
    wide = torch.float32 if x.dtype in _HALVES else x.dtype
    parts = x.detach().contiguous()
    if x.is_cuda:
        total = torch.empty(x.shape[1:], dtype=wide, device=x.device)
        sent = list(parts.to(wide).unbind())
        work = _checked(partial(dist.reduce_scatter, total, sent, group=_group(ranks), async_op=True))

        def finish_on_gpu() -> Tensor:
            _checked(work.wait)
            sent.clear()
            return (total / size).to(x.dtype)

        return finish_on_gpu
    others = [(index, rank) for index, rank in enumerate(ranks) if index != own_index]
    received = [torch.empty(x.shape[1:], dtype=x.dtype) for _ in others]
    wait = _exchanging(
        [(parts[index], rank) for index, rank in others],
        [(row, rank) for row, (_, rank) in zip(received, others, strict=True)],
        _group(ranks),
    )

    def finish() -> Tensor:
        wait()
        # Added up in the order of the ranks, so that equal runs have equal bits.
        rows = {index: row for row, (index, _) in zip(received, others, strict=True)} | {own_index: parts[own_index]}
        total = rows[0].to(wide, copy=True)
        for index in range(1, size):
            total += rows[index]
        return (total / size).to(x.dtype)

    return finish


def _bytes(x: Tensor) -> Tensor:
    """The memory of a tensor as bytes, since gloo does not support all dtypes."""
    return x.reshape(-1).view(torch.uint8)


# --- in programs


@lru_cache(8)
def operation(
    name: Literal["all_reduce", "all_gather", "broadcast", "gather_slices", "scatter_mean"],
) -> Callable[..., Any]:
    """A collective as an operation that PyTorch can trace; it is registered at first use."""

    # `after` is a result of the collective before it: see `in_order`.
    def all_reduce(
        xs: Sequence[Tensor], op: str, names: Sequence[str], owned: Sequence[bool], after: Tensor | None
    ) -> list[Tensor]:
        presence = Presence(tuple(names), tuple(owned)) if names else None
        return _reduced(xs, cast("Reduction", op), presence, apart=True)

    def all_gather(x: Tensor, size: int, after: Tensor | None) -> Tensor:
        return _gathered(x, size)

    def broadcast(x: Tensor, root: int, after: Tensor | None) -> Tensor:
        return _broadcast(x, root)

    def gather_slices(x: Tensor, ranks: Sequence[int], after: Tensor | None) -> Tensor:
        return _gathering_slices(x, ranks)()

    def scatter_mean(x: Tensor, ranks: Sequence[int], after: Tensor | None) -> Tensor:
        return _scattering_mean(x, ranks)()

    def like(xs: Sequence[Tensor], *_: Any) -> list[Tensor]:
        return [x.new_empty(x.shape) for x in xs]

    def rows(x: Tensor, size: int, after: Tensor | None) -> Tensor:
        return x.new_empty((size, *x.shape))

    def same(x: Tensor, root: int, after: Tensor | None) -> Tensor:
        return x.new_empty(x.shape)

    def slices(x: Tensor, ranks: Sequence[int], after: Tensor | None) -> Tensor:
        return x.new_empty((len(ranks), *x.shape))

    def own_slice(x: Tensor, ranks: Sequence[int], after: Tensor | None) -> Tensor:
        return x.new_empty(x.shape[1:])

    functions: dict[str, tuple[Any, Any, str]] = {
        "all_reduce": (all_reduce, like, "(Tensor[] xs, str op, str[] names, bool[] owned, Tensor? after) -> Tensor[]"),
        "all_gather": (all_gather, rows, "(Tensor x, int size, Tensor? after) -> Tensor"),
        "broadcast": (broadcast, same, "(Tensor x, int root, Tensor? after) -> Tensor"),
        "gather_slices": (gather_slices, slices, "(Tensor x, int[] ranks, Tensor? after) -> Tensor"),
        "scatter_mean": (scatter_mean, own_slice, "(Tensor x, int[] ranks, Tensor? after) -> Tensor"),
    }
    function, fake, schema = functions[name]
    custom_op: Any = torch.library.custom_op(f"phlox::{name}", function, mutates_args=(), schema=schema)
    custom_op.register_fake(fake)
    # The other processes wait for this call, even if this process does not use the result.
    return fx.has_side_effect(getattr(torch.ops.phlox, name).default)


_NAMES = ("all_reduce", "all_gather", "broadcast", "gather_slices", "scatter_mean")


def in_order(graph: Any) -> None:
    """Let each collective of a graph depend on the one before it.

    All processes must call them in the order of the trace, but a compiler may run independent operations in any order.
    """
    before: Any = None
    for node in list(graph.graph.nodes):
        if getattr(node.target, "namespace", None) != "phlox" or node.target.name().partition("::")[2] not in _NAMES:
            continue
        if before is not None:
            node.args = (*node.args[:-1], before)
        before = node
        if isinstance(node.meta.get("val"), (list, tuple)):
            with graph.graph.inserting_after(node):
                before = graph.graph.call_function(operator.getitem, (node, 0))
            before.meta["val"] = node.meta["val"][0]


def refuse_in_place(graph: Any) -> None:
    """Raise `CompileError` for a collective that a graph contains without a wait for it."""
    for node in graph.graph.nodes:
        if getattr(node.target, "namespace", None) == _IN_PLACE:
            called = node.target.name().partition("::")[2].partition(".")[0].rstrip("_")
            called = re.sub("^(all)(?!_)", r"\1_", called)
            raise CompileError(
                f"a collective of torch.distributed that writes to its argument ({called}) is inside a function that "
                "is being compiled, and the program would not wait for its result; use px.distributed.sum, mean, "
                "gather or broadcast, or torch.distributed._functional_collectives"
            )

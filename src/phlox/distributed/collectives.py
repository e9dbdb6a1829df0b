"""Collectives of tensors, numbers and modules: means, sums, rows and copies over all processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, TypeVar, cast

import numpy as np

from phlox.backend import Backend, Float, Int, as_device
from phlox.backend.contract.backend import engine_of
from phlox.backend.parallel import no_sync as no_sync
from phlox.backend.processes import processes
from phlox.backend.sharding import Sharding
from phlox.errors import DistributedError, KindError, RangeError
from phlox.module import GradientsParams, Module, Param
from phlox.tensor import Tensor, concat
from phlox.transform.tree import map_parts, parts_of

T = TypeVar("T")
AnyTensor: TypeAlias = Tensor[Any, Any, Any]
HostArray: TypeAlias = np.ndarray[Any, Any]
Name: TypeAlias = Literal["mean", "sum", "gather", "broadcast"]


def mean(x: T) -> T:
    """Compute the mean over all processes; each process gets the result.

    Call it in all processes, in the same order. A single process gets x back, and so does a tensor on a mesh of JAX,
    which is one global array. The mean of the processes' batch means is the mean of the global batch if they have
    equally many rows.

    Args:
        x: a Float tensor, a number, an array, `GradientsParams`, a module, or a list, tuple, dict or dataclass of
            these, of the same structure and shapes in every process.

    Returns the same structure with the means as values. Gradients flow through it: they are the gradients of the sum
    of all processes' losses.

    Raises `KindError`, with the path, for a value that has no mean; `DistributedError` if another process is gone.

    >>> import phlox as px
    >>> from phlox.distributed import mean
    >>> mean({"loss": px.tensor(2.0), "accuracy": 0.5})["accuracy"]
    0.5
    """
    return _reduced("mean", x)


def sum(x: T) -> T:
    """Compute the sum over all processes; each process gets the result. As `mean`, and also for Int tensors.

    >>> from phlox.distributed import sum
    >>> sum(3)
    3
    """
    return _reduced("sum", x)


def gather(x: Any) -> Any:
    """Gather the rows of all processes in each of them: tensors and arrays are joined along the first axis, by rank.

    A tensor on a mesh of JAX is replicated, after which `.numpy()` works in every process. Numbers, and tensors without
    axes that are not on a mesh, become vectors with one element per process. Modules and gradients keep their shapes:
    they are the same in every process, or are replicated if they are on a mesh. Processes may have different numbers of
    rows, except in a compiled function.

    Args:
        x: as for `mean`, of any kind.

    Raises `DistributedError` if the shapes of processes differ in more than the number of rows.

    >>> import phlox as px
    >>> from phlox.distributed import gather
    >>> gather(px.ones((2, 3))).shape, gather(0.5)
    ((2, 3), array([0.5]))
    """
    return _mapped("gather", x, _gathered, _gathered_array)


def broadcast(x: T, root: int = 0) -> T:
    """Send the value of process `root` to every process; a single process gets x back.

    A module is returned as a new module with the values of `root`.

    Args:
        x: as for `mean`, of any kind; of the same structure and shapes in every process.
        root: the rank of the process that sends.

    Raises `RangeError` if there is no such process.

    >>> from phlox.distributed import broadcast
    >>> broadcast([1.0, 2.0])
    [1.0, 2.0]
    """
    group = processes()
    if not 0 <= root < group.size:
        raise RangeError(f"broadcast: root is the rank of a process, 0 to {group.size - 1}, not {root}")
    if group.size == 1:
        return x

    def tensor(x: AnyTensor, path: str, *, replicated: bool) -> AnyTensor:
        return x if _is_global(x) else x._with(x.backend.broadcast(x.primitive, root))  # pyright: ignore[reportPrivateUsage]

    def array(array: HostArray, path: str) -> HostArray:
        return _host_backend().broadcast_on_host(array, root)

    return _mapped("broadcast", x, tensor, array)


# --- reductions, of all values together, so that few messages are sent


@dataclass(slots=True)
class _Batch:
    """The arrays that are reduced on one backend, and the results."""

    arrays: list[Any]
    results: list[Any]


def _reduced(op: Literal["mean", "sum"], x: T) -> T:
    if processes().size == 1:
        return x
    host = _Batch([], [])
    sent: dict[Backend, _Batch] = {}

    def tensor(x: AnyTensor, path: str, *, replicated: bool) -> AnyTensor:
        if _is_global(x):
            return x
        if x.kind is not Float and not (op == "sum" and x.kind is Int):
            raise KindError(
                f"{op}{path}: a tensor of {x.kind.__name__} has no {op} over processes; convert it with .float() first"
            )
        sent.setdefault(x.backend, _Batch([], [])).arrays.append(x.primitive)
        return x

    def array(array: HostArray, path: str) -> HostArray:
        if array.dtype.kind not in "fiu":
            raise KindError(f"{op}{path}: elements of {array.dtype.name} have no {op}; convert them first")
        floats = op == "mean" or array.dtype.kind == "f"
        host.arrays.append(array.astype(np.float64 if floats else np.int64, copy=False))
        return array

    _mapped(op, x, tensor, array)
    for backend, batch in sent.items():
        batch.results = backend.all_reduce(batch.arrays, op)[::-1]
    if host.arrays:
        host.results = _host_backend().reduce_on_host(host.arrays, op)[::-1]

    def tensor_back(x: AnyTensor, path: str, *, replicated: bool) -> AnyTensor:
        return x if _is_global(x) else x._with(sent[x.backend].results.pop())  # pyright: ignore[reportPrivateUsage]

    def array_back(array: HostArray, path: str) -> HostArray:
        result = host.results.pop()
        return result.astype(array.dtype) if array.dtype.kind == "f" or op == "sum" else result

    return _mapped(op, x, tensor_back, array_back)


# --- rows


def _gathered(x: AnyTensor, path: str, *, replicated: bool) -> AnyTensor:
    if _is_global(x):
        return x.to_device(replace(x.device, sharding=Sharding(x.backend.mesh_of(x.primitive), ())))
    if replicated:
        return x
    rows = x.reshape((1,)) if x.ndim == 0 else x
    if processes().size == 1:
        return rows
    counts = _counts(rows.backend, rows.shape, path, traced=rows.backend.is_traced(rows.primitive))
    most = max(counts)
    if most > rows.shape[0]:
        rows = rows.pad(((0, most - rows.shape[0]), *[(0, 0)] * (rows.ndim - 1)))
    every = rows._with(rows.backend.all_gather(rows.primitive))  # pyright: ignore[reportPrivateUsage]
    if min(counts) == most:
        return every.reshape((-1, *rows.shape[1:]) if most else (0, *rows.shape[1:]))
    return concat([every[rank, :count] for rank, count in enumerate(counts)], 0)


def _gathered_array(array: HostArray, path: str) -> HostArray:
    if array.ndim == 0:
        array = array[None]
    if processes().size == 1:
        return array
    backend = _host_backend()
    counts = _counts(backend, array.shape, path, traced=False)
    most = max(counts)
    padded = np.pad(array, [(0, most - len(array)), *[(0, 0)] * (array.ndim - 1)])
    every = backend.gather_on_host(padded)
    return np.concatenate([every[rank, :count] for rank, count in enumerate(counts)])


_MOST_AXES = 16


def _counts(backend: Backend, shape: Sequence[int], path: str, *, traced: bool) -> list[int]:
    """The number of rows of each process. A program cannot ask for them: it takes this process's number for all."""
    group = processes()
    if traced:
        return [shape[0]] * group.size
    own = np.full(_MOST_AXES, -1, np.int64)
    own[: len(shape)] = shape
    every: list[list[int]] = backend.gather_on_host(own).tolist()
    for rank, sizes in enumerate(every):
        if sizes[1:] != every[group.rank][1:]:
            other = tuple([size for size in sizes if size >= 0])
            raise DistributedError(
                f"gather{path}: process {group.rank} has shape {tuple(shape)}, and process {rank} has {other}; all "
                "axes but the first must be alike"
            )
    return [sizes[0] for sizes in every]


# --- walking over a value


def _is_global(x: AnyTensor) -> bool:
    """Is it one global array of all processes?"""
    return x.backend.mesh_of(x.primitive) is not None


def _host_backend() -> Backend:
    """The backend that sends numbers and arrays: the engine of the default device."""
    backend = engine_of(as_device(None).backend)
    backend.join_processes()
    return backend


def _mapped(name: Name, value: T, tensor: Callable[..., AnyTensor], array: Callable[[HostArray, str], HostArray]) -> T:
    """The same containers, with `tensor(x, path, replicated=)` of tensors, `array(x, path)` of arrays and numbers."""

    def mapped(value: Any, path: str, *, replicated: bool = False) -> Any:
        where = f" of `{path.lstrip('.')}`" if path else ""
        if isinstance(value, Tensor):
            return tensor(cast("AnyTensor", value), where, replicated=replicated)
        if isinstance(value, Module):

            def twin(subpath: str, param: Param) -> Param:
                name = f"{path}.{subpath}".lstrip(".")
                return param.around(tensor(param.val(), f" of `{name}`", replicated=True))

            return value.map(twin)
        if isinstance(value, (np.ndarray, np.generic, bool, int, float)):
            host = np.asarray(cast("Any", value))
            result = array(host, where)
            if isinstance(value, np.ndarray) or name == "gather":
                return result
            return result.item() if isinstance(value, (bool, int, float)) else result[()]
        if value is None:
            return None
        if parts_of(value) is None:
            raise KindError(
                f"{name}{where}: tensors, numbers, arrays, modules, gradients, and lists, tuples, dicts and "
                f"dataclasses of these can be sent, not {type(value).__name__}; for other objects there is "
                "px.distributed.gather_objects"
            )
        inside = replicated or isinstance(value, GradientsParams)
        return map_parts(lambda part, part_path: mapped(part, part_path, replicated=inside), value, path)

    return mapped(value, "")

"""Plain data between processes, through the store: small objects, no tensors."""

from __future__ import annotations

import io
import itertools
import operator
from typing import Any, TypeVar, cast

import msgspec
import numpy as np

from phlox.backend.processes import processes, report_progress, store
from phlox.errors import DistributedError

_T = TypeVar("_T")
_TUPLE, _ARRAY, _SCALAR = 1, 2, 3
_count = itertools.count()
"""Numbers the exchanges, which all processes make in the same order."""


def broadcast_object(x: _T, root: int = 0, *, timeout: float | None = None) -> _T:
    """Send a small object from process `root` to every process; the objects of the others are ignored.

    Args:
        x: None, bools, numbers, text, bytes, NumPy arrays, and lists, tuples and dicts of these.
        root: the rank of the process that sends.
        timeout: the seconds to wait for it; None is the limit given to `initialize`.

    Every process must call it, at the same point. A single process gets x back. Raises `DistributedError` if the
    process `root` does not arrive, or is gone.

    >>> broadcast_object({"run": "a", "steps": 10})
    {'run': 'a', 'steps': 10}
    """
    group = processes()
    if not 0 <= operator.index(root) < group.size:
        raise DistributedError(f"root={root} is not the rank of a process; there are {group.size}, from 0")
    if group.size == 1:
        return x
    report_progress()
    number = next(_count)
    if group.rank == root:
        store().set(f"broadcast/{number}", encode(x), group.size)
    return decode(store().get(f"broadcast/{number}", timeout, rank=root))


def gather_objects(x: _T, *, timeout: float | None = None) -> list[_T]:
    """Gather a small object from each process, and return the list of all, by rank, in every process.

    Args:
        x: as in `broadcast_object`.
        timeout: the seconds to wait for the others; None is the limit given to `initialize`.

    Every process must call it, at the same point. A single process gets `[x]`. Raises `DistributedError`, which names
    the process, if one does not arrive or is gone.

    >>> gather_objects(3)
    [3]
    """
    group = processes()
    if group.size == 1:
        return [x]
    report_progress()
    number = next(_count)
    shared = store()
    # Process 0 joins them, so that n processes send 2 n requests, and not n each.
    shared.set(f"gather/{number}/{group.rank}", encode(x), 1)
    if group.rank == 0:
        objects = [shared.get(f"gather/{number}/{rank}", timeout, rank=rank) for rank in range(group.size)]
        shared.set(f"gather/{number}", msgspec.msgpack.encode(objects), group.size)
    objects = msgspec.msgpack.decode(shared.get(f"gather/{number}", timeout, rank=0), type=list[bytes])
    return [decode(packed) for packed in objects]


def encode(x: Any) -> bytes:
    """Plain data as bytes; tuples and NumPy arrays keep their types. Raises `DistributedError` for anything else."""
    try:
        return msgspec.msgpack.encode(_packed(x))
    except DistributedError:
        raise
    except (OverflowError, RecursionError, TypeError, ValueError) as error:
        # an integer of more than 64 bits, infinite nesting, a key of a dict, a lone surrogate
        raise DistributedError(f"{type(x).__name__} cannot be sent to other processes: {error}") from error


def decode(data: bytes) -> Any:
    """The object that `encode` made the bytes from."""
    return msgspec.msgpack.decode(data, ext_hook=_from_extension)


def _packed(x: Any) -> Any:
    if isinstance(x, tuple):
        return msgspec.msgpack.Ext(_TUPLE, encode(list(cast("tuple[Any, ...]", x))))
    if isinstance(x, (np.ndarray, np.generic)):
        is_array = isinstance(x, np.ndarray)
        file = io.BytesIO()
        try:
            np.save(file, np.asarray(cast("Any", x)), allow_pickle=False)
        except ValueError:
            raise DistributedError("an array of Python objects cannot be sent to other processes") from None
        return msgspec.msgpack.Ext(_ARRAY if is_array else _SCALAR, file.getvalue())
    if isinstance(x, list):
        return [_packed(item) for item in cast("list[Any]", x)]
    if isinstance(x, dict):
        return {key: _packed(value) for key, value in cast("dict[Any, Any]", x).items()}
    if x is None or isinstance(x, bool):
        return x
    kind: Any
    for kind in (int, float, str, bytes):
        if isinstance(x, kind):
            return kind(x)  # a subclass, such as a version, becomes its base class
    raise DistributedError(
        f"{type(x).__name__} cannot be sent to other processes: plain data can (None, bool, int, float, str, bytes, "
        "list, tuple, dict, NumPy arrays), and tensors and modules by px.distributed.broadcast and gather"
    )


def _from_extension(code: int, data: memoryview) -> Any:
    if code == _TUPLE:
        return tuple(decode(bytes(data)))
    array = np.load(io.BytesIO(bytes(data)), allow_pickle=False)
    return array if code == _ARRAY else array[()]

"""Checks that the processes have the same values."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np

from phlox import random
from phlox.backend.processes import processes
from phlox.distributed.processes.fingerprint import differences
from phlox.distributed.processes.objects import gather_objects
from phlox.errors import DistributedError, RandomnessError
from phlox.module import Module
from phlox.tensor import Tensor


def check_agreement(timeout: float | None = None, /, **values: Any) -> None:
    """Raise `DistributedError` if the processes differ in one of these values, or in their random streams.

    Args:
        timeout: the seconds to wait for the others; None is the limit given to `initialize`.
        values: the values, by the names for the error: scalars, text, arrays, tensors, modules, and lists, tuples and
            dicts of these. Arrays are compared by a digest of their bytes. Arrays in shards on one mesh are one value
            for all processes, and are skipped.

    Every process must call it, at the same point, with the same names. The error names the first difference by its
    path, with the ranks and both values. In a single process it does nothing.

    >>> check_agreement(lr=0.1, step=3)
    """
    if processes().size == 1:
        return
    own: dict[str, Any] = {}
    for name, value in values.items():
        own.update(_described(name, value))
    try:
        own["the random stream (its key and position)"] = repr(random.state())
    except RandomnessError:  # in a trace, the stream has no values
        pass
    if problems := differences(gather_objects(own, timeout=timeout)):
        raise DistributedError(f"the processes do not agree: {problems[0]}")


def _described(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The values below a path, in a form that can be compared and shown."""
    if isinstance(value, Module):
        for name, param in value.named_params():
            if param.is_initialized:
                yield from _described(f"{path}.{name}", param.val())
    elif isinstance(value, Tensor):
        tensor = cast("Tensor[Any, Any, Any]", value)
        if tensor.device.sharding is None:
            yield path, _array(tensor.detach().numpy())
    elif isinstance(value, (np.ndarray, np.generic)):
        yield path, _array(np.asarray(cast("Any", value)))
    elif isinstance(value, Mapping):
        for key, part in cast("Mapping[Any, Any]", value).items():
            yield from _described(f"{path}[{key!r}]", part)
    elif isinstance(value, (list, tuple)):
        for index, part in enumerate(cast("Sequence[Any]", value)):
            yield from _described(f"{path}[{index}]", part)
    else:
        yield path, value if isinstance(value, (bool, int, float, str, bytes, type(None))) else repr(value)


def _array(array: np.ndarray[Any, Any]) -> Any:
    if array.ndim == 0:
        return array.item() if array.dtype.kind in "biuf" else float(array)
    digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:12]
    shape = ", ".join(map(str, array.shape))
    return f"{array.dtype}[{shape}] with digest {digest}"

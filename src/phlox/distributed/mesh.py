"""`Mesh`: devices in a grid with named axes, and batches that are sharded over them."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Self, cast

import numpy as np

from phlox.backend import Backend, Device, DeviceLike
from phlox.backend.contract.backend import engine_of
from phlox.backend.device import backend_of
from phlox.backend.kind import kind_of_dtype
from phlox.backend.sharding import SEQUENCE, AxisNames, Index, Sharding
from phlox.errors import ShardingError
from phlox.host.text import html_by
from phlox.other_names import answering
from phlox.tensor import Tensor
from phlox.tensor.dispatch import ops_of
from phlox.tensor.tensor import wrap
from phlox.transform.tree import map_leaves

BATCH_AXES = ("replica", "data")
"""The mesh axes over which the rows of a batch are divided. A mesh with none of them uses its first axis."""

_open: ContextVar[tuple[AbstractContextManager[object], ...]] = ContextVar("phlox_open_meshes", default=())
"""The open scopes of meshes; each thread and task has its own."""


class Mesh:
    """A mesh: all devices of all processes in a grid with named axes, such as `Mesh(data=-1, model=2)`.

    On JAX the devices of all processes form the grid. On PyTorch and NumPy a process is one device. The rows of a
    batch are divided over the axes `replica` and `data` or, if there are none, over the first axis. A `Layout` says
    over which axes parameters are sharded: over `data` of `Mesh(replica=2, data=4)`, each of two replicas holds them in
    four slices.

    Over an axis `seq`, on JAX, the second axis of a batch is divided, if its size allows it: the positions of tokens
    [rows, n] or of features [rows, n, d] (context parallel).

    As a context (`with mesh:`) it declares that the code inside computes on this process's rows of a global batch. On
    PyTorch and NumPy random draws are then these rows of the global draw, and `GradientsParams.from_grads` averages the
    gradients over the processes. On JAX XLA's partitioner does both, and the context does nothing.

    Args:
        device: a backend or device of the engine; by default the default device.
        axes: the size of each axis; one of them may be -1, which takes the remaining devices.

    Raises:
        ShardingError: the sizes do not fit the number of devices; the message has both.

    >>> from phlox.distributed import Mesh
    >>> mesh = Mesh(data=-1, device="numpy")
    >>> mesh
    Mesh(data=1, device=NumPy().device('cpu'))
    >>> mesh.shape, mesh.part
    ({'data': 1}, (0, 1))
    """

    @answering
    def __init__(self, device: DeviceLike | None = None, **axes: int) -> None:
        self.backend: Backend = engine_of(backend_of(device))
        self.backend.join_processes()
        if axes.get(SEQUENCE, 1) != 1 and not self.backend.partitions:
            raise ShardingError(f"{self.backend!r} does not cut sequences (the axis {SEQUENCE!r}); use a mesh on JAX")
        self.shape: dict[str, int] = _sizes(axes, self.backend.mesh_devices())
        """The size of each axis, by name."""
        self.native: Any = self.backend.make_mesh(self.shape)
        """The engine's own mesh."""
        present = tuple([axis for axis in BATCH_AXES if axis in self.shape])
        self.batch_axes: tuple[str, ...] = present or tuple([axis for axis in self.shape if axis != SEQUENCE])[:1]
        """The axes over which the rows of a batch are divided."""
        self.part: tuple[int, int] = self.backend.mesh_part(self.native, self.batch_axes)
        """The index of this process's part of each batch, and the number of parts: for `Loader(part=mesh.part)`."""

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of the axes."""
        return tuple(self.shape)

    @property
    def partitions(self) -> bool:
        """Does the engine's partitioner shard arrays and communicate? Otherwise processes do so explicitly."""
        return self.backend.partitions

    @property
    def size(self) -> int:
        """The number of devices."""
        return math.prod(self.shape.values())

    @property
    def device(self) -> Device:
        """All devices of the mesh as one device; tensors made on it are replicated."""
        return self.device_for(())

    @property
    def batch_axis(self) -> AxisNames:
        """The axes over which the rows of a batch are divided, as a layout names them."""
        return self.batch_axes if len(self.batch_axes) > 1 else next(iter(self.batch_axes), None)

    @property
    def cuts(self) -> int:
        """The number of parts into which the rows of a batch are divided."""
        return math.prod(self.shape[axis] for axis in self.batch_axes)

    def device_for(self, spec: tuple[AxisNames, ...]) -> Device:
        """All devices of the mesh as one device, for arrays that are sharded by `spec`."""
        return self.backend.mesh_device(Sharding(self.native, spec))

    def batch(self, *arrays: Any) -> Any:
        """Put this process's rows of a global batch on its devices, as one global batch.

        `arrays` are arrays or tensors, in any nesting. Each process gives its own rows, all equally many; the first
        axis of the result has the rows of all. (On PyTorch and NumPy it has only this process's rows.) Numbers are
        replicated. Nothing is sent or compared. One argument is returned alone, several as a tuple.

        Raises:
            ShardingError: the number of rows is not divisible by the number of this process's devices, or differs
                between arrays.

        >>> import numpy as np
        >>> from phlox.distributed import Mesh
        >>> Mesh(data=-1, device="numpy").batch(np.ones((4, 2))).shape
        (4, 2)
        """
        rows: dict[int, str] = {}

        def moved(x: Any) -> Any:
            shape = tuple(x.shape)
            if shape:
                rows.setdefault(shape[0], f"{type(x).__name__} of shape {shape}")
            if len(rows) > 1:
                first, second = list(rows.values())[:2]
                raise ShardingError(f"the arrays of a batch have different numbers of rows: {first}, {second}")
            return self._sharded(x)

        result = tuple([map_leaves(moved, array, (np.ndarray, np.generic, Tensor)) for array in arrays])
        return result[0] if len(result) == 1 else result

    def _sharded(self, x: Any) -> Any:
        tensor = cast("Tensor[Any, Any, Any] | None", x if isinstance(x, Tensor) else None)
        host: np.ndarray[Any, Any] = np.asarray(cast("Any", x)) if tensor is None else tensor.detach().numpy()
        kind = kind_of_dtype(host.dtype) if tensor is None else tensor.kind
        part, parts = self.part
        if not host.ndim or not self.backend.partitions:
            device = self.device
            replicated = self.backend.from_host(np.array(host), kind, device)
            return wrap(ops_of(self.backend, kind), replicated)
        cut = host.ndim > 1 and SEQUENCE in self.shape and host.shape[1] % self.shape[SEQUENCE] == 0
        device = self.device_for((self.batch_axis, SEQUENCE) if cut else (self.batch_axis,))
        count = self.cuts // parts
        if len(host) % count:
            axes = ", ".join(map(repr, self.batch_axes))
            raise ShardingError(
                f"a batch of {len(host)} rows cannot be cut over {count} devices (axis {axes} of "
                f"{self!r}); give a multiple of {count} rows, for instance with Loader(batch_size=..., drop_last=True)"
            )
        first = part * len(host)

        def read(index: Index) -> np.ndarray[Any, Any]:
            rows, *others = index
            return host[(slice(rows.start - first, rows.stop - first), *others)]

        shape = (len(host) * parts, *host.shape[1:])
        return wrap(ops_of(self.backend, kind), self.backend.from_shards(shape, kind, device, read))

    def __enter__(self) -> Self:
        scope = self.backend.mesh_scope(self.native, self.batch_axes)
        scope.__enter__()
        _open.set((*_open.get(), scope))
        return self

    def __exit__(self, *error: Any) -> None:
        *others, scope = _open.get()
        _open.set(tuple(others))
        scope.__exit__(*error)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}={size}" for name, size in self.shape.items())
        return f"Mesh({sizes}, device={self.backend.device()!r})"

    _repr_html_ = html_by("phlox.distributed.pages", "page_of_mesh")


def _sizes(axes: dict[str, int], devices: int) -> dict[str, int]:
    """The sizes of all axes; one may be -1."""
    mesh = f"Mesh({', '.join(f'{name}={size}' for name, size in axes.items())})"
    if not axes:
        raise ShardingError("a mesh needs at least one axis: Mesh(data=-1), Mesh(data=-1, model=2)")
    if any(size == 0 or size < -1 for size in axes.values()) or list(axes.values()).count(-1) > 1:
        raise ShardingError(f"{mesh}: sizes are positive, and one of them may be -1")
    product = math.prod(size for size in axes.values() if size != -1)
    if -1 in axes.values():
        if devices % product:
            raise ShardingError(f"{mesh}: {devices} devices do not divide by {product}")
        return {name: devices // product if size == -1 else size for name, size in axes.items()}
    if product > devices:
        raise ShardingError(f"{mesh} has {product} devices, and there are {devices}")
    return dict(axes)

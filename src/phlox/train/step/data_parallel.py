"""`DataParallel`: the processes and devices of a training, which divide the rows of each batch among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import numpy as np

from phlox import errors
from phlox.backend import Backend, Device, Float
from phlox.backend.contract.backend import engine_of
from phlox.backend.kind import kind_of_dtype
from phlox.backend.parallel import RowGroup, row_group, rows_of
from phlox.backend.processes import processes
from phlox.backend.sharding import Index
from phlox.data.loader import placed
from phlox.data.structure import is_array, mapped
from phlox.errors import DistributedError, RunError
from phlox.metrics.base import Rows
from phlox.module import Module, Param
from phlox.record import LazyTensor, Record, TensorEntry
from phlox.record.record import Entry
from phlox.tensor import Tensor
from phlox.tensor.dispatch import ops_of
from phlox.tensor.tensor import wrap
from phlox.train.step import sums
from phlox.train.step.batch import count
from phlox.train.step.metric_state import MetricState, Output
from phlox.train.step.sums import ReducedMetrics

if TYPE_CHECKING:
    from phlox.distributed import Mesh

T = TypeVar("T")
HostArray = np.ndarray[Any, Any]


class BatchShard(NamedTuple):
    """This process's part of a batch."""

    batch: Any
    rows: int
    """The number of rows of the batch in all processes together."""
    is_whole: bool = False
    """Does every process have all rows of the batch?"""
    counts: tuple[int, ...] | None = None
    """The number of rows of each process, if these differ."""


class DataParallel:
    """A mesh and the processes of the program.

    Attributes:
        partitions: are arrays global, and does the engine communicate? If not, each process computes on its rows, and
            gradients, losses and sums of metrics are added up.
        part, parts: the index of this process's part of the rows of each batch, and the number of parts.
        cuts: the number of devices over which the rows of a batch are cut.
        rank, size: the rank of this process, and the number of processes.
    """

    def __init__(self, mesh: Mesh) -> None:
        if not callable(getattr(mesh, "device_for", None)):
            raise RunError(f"mesh: give px.distributed.Mesh(data=-1), got a {type(cast('object', mesh)).__name__}")
        self.mesh = mesh
        self.part, self.parts = mesh.part
        self.cuts: int = mesh.cuts
        self.partitions: bool = mesh.backend.partitions
        self.computes_together = self.partitions
        """Does a call of the model need all processes, because each has only a part of the model?"""
        self.slices_gradients = False
        """Are gradients in slices, so that no process holds the whole gradient of its rows?"""
        process_group = processes()
        self.rank, self.size = process_group.rank, process_group.size

    @property
    def is_main(self) -> bool:
        """Is this process 0, which prints and writes for all?"""
        return self.rank == 0

    @property
    def in_shards(self) -> bool:
        """Do several processes or devices save the state together, each its shards?"""
        return self.size > 1 or (self.partitions and self.mesh.size > 1)

    @property
    def adds_up(self) -> bool:
        """Does each process measure only its own rows, so that sums must be added up over the processes?"""
        return self.size > 1 and not self.partitions

    # --- models

    def on_mesh(self, model: Module) -> Module:
        """The model on the mesh: a model on a single device is replicated; `RunError` for one on another mesh."""
        mesh = self.mesh

        def param_on_mesh(path: str, param: Param) -> Param:
            device = param.device
            if type(engine_of(param.backend)) is not type(mesh.backend):
                raise RunError(
                    f"model: `{path}` is on {param.backend!r}, and the mesh is of {mesh.backend!r}; give "
                    "model.to_device(...) or another mesh"
                )
            if not self.partitions:
                self.computes_together |= param.backend.has_slices
                self.slices_gradients |= device.sharding is not None and device.sharding.mesh.stage > 1
                return param
            if device.sharding is None:
                return param.to_device(mesh.device.on(param.backend))
            if device.sharding.mesh != mesh.native:
                raise RunError(f"model: `{path}` is on another mesh than {mesh!r}; give mesh= the one of model.shard")
            return param

        return model.map(param_on_mesh)

    def device(self, device: Device) -> Device:
        """The device for values that are the same on all devices, on the same backend."""
        return self.mesh.device.on(device.backend) if self.partitions else replace(device, sharding=None)

    def local_sums(self, accumulates: bool, scaled: bool) -> RowGroup | None:
        """The processes, if each accumulates the gradients of its own rows, and they are added up once a step.

        None with gradients in slices: whole gradients would take the memory that slices save. None with scaled
        gradients: these must be the same everywhere, since they determine the scale of the next step.
        """
        if not (accumulates and self.adds_up) or scaled or self.slices_gradients:
            return None
        return self.mesh.native.rows(self.mesh.batch_axes)

    def align(self, models: Sequence[Module]) -> None:
        """Set running statistics, which each process computes from its own rows, to their mean over the processes.

        They are means over steps, so this may be done at any time. Values that all processes share stay unchanged.
        """
        if not self.adds_up:
            return
        params = [param for model in models for param in model.params() if not param.trainable and param.is_initialized]
        params = [
            param
            for param in params
            if (x := param.val()).kind is Float and not x.backend.is_slice(x.backend.strip(x.primitive))
        ]
        if not params:
            return
        hosts: list[HostArray] = [param.val().numpy() for param in params]
        all_values = self.gathered(np.concatenate([np.asarray(host, np.float64).reshape(-1) for host in hosts]))
        mean = all_values[0].copy()
        differs = (all_values != all_values[0]).any(0)
        mean[differs] = all_values[:, differs].mean(0)
        start = 0
        for param, host in zip(params, hosts, strict=True):
            new = mean[start : start + host.size].reshape(host.shape)
            start += host.size
            if not np.array_equal(new, host, equal_nan=True):
                value = param.val()
                param.set(wrap(ops_of(value.backend, value.kind), value.backend.from_host(
                    new.astype(host.dtype), value.kind, value.device)))  # fmt: skip

    # --- batches

    def scope(self) -> AbstractContextManager[object]:
        """A scope in which the code computes on this process's rows."""
        return self.mesh

    def rows_scope(self, shard: BatchShard) -> AbstractContextManager[object]:
        """A scope inside of `scope` for one batch, whose rows may be divided in another way."""
        if self.partitions:
            return nullcontext()
        if shard.is_whole:
            return rows_of(None)
        group = row_group()
        return nullcontext() if shard.counts is None or group is None else rows_of(
            RowGroup(group.rank, group.size, shard.counts)
        )  # fmt: skip

    def batch_on_devices(self, batch: Any, shard: BatchShard, device: Device, *, stacked: bool = False) -> Any:
        """A batch (or several, stacked) as tensors; if the engine partitions, as one global batch of all processes."""
        if not self.partitions:
            return placed(batch, device)
        axis, backend = int(stacked), device.backend

        def leaf_on_devices(leaf: Any) -> Any:
            return self._global(leaf, backend, shard.is_whole, axis)

        return mapped(leaf_on_devices, batch)

    def _global(self, leaf: Any, backend: Backend, is_whole: bool, axis: int) -> Any:
        if isinstance(leaf, Tensor):
            leaf = cast("Tensor[Any, Any, Any]", leaf).detach().numpy()
        if not is_array(leaf) or leaf.dtype.kind not in "fiub":
            return leaf
        host: HostArray = leaf
        cut = host.ndim > axis and not is_whole
        spec = (*[None] * axis, self.mesh.batch_axis) if cut else ()
        own = host.shape[axis] if cut else 0
        first, shape = self.part * own, list(host.shape)
        if cut:
            shape[axis] = own * self.parts

        def read(index: Index) -> HostArray:
            if not cut:
                return host[index]
            rows = index[axis]
            return host[(*index[:axis], slice(rows.start - first, rows.stop - first), *index[axis + 1 :])]

        kind = kind_of_dtype(host.dtype)
        device = self.mesh.device_for(spec).on(backend)
        return wrap(ops_of(backend, kind), backend.from_shards(tuple(shape), kind, device, read))

    def is_counted(self, shard: BatchShard) -> bool:
        """Do this process's results for a batch count? Not if another process has the same rows."""
        return self.partitions or not shard.is_whole or self.part == 0

    def measured_rows(self, shard: BatchShard) -> int:
        """The number of rows over which this process measures a mean."""
        return shard.rows if self.partitions or shard.is_whole else count(shard.batch)

    def readable(self, output: Output) -> Output:
        """The outputs of a step, with the rows that metrics keep replicated, so that each process can read them."""
        if not self.partitions or self.size == 1 or not output.rows:
            return output
        rows = {
            name: {part: Rows(tuple([self.replicate(chunk) for chunk in kept.chunks])) for part, kept in state.items()}
            for name, state in output.rows.items()
        }
        return output._replace(rows=rows)

    def in_order(self, parts: Sequence[HostArray]) -> HostArray:
        """The rows of all processes, batch by batch, from the parts of the batches that each process has."""
        lengths, batches = self.gathered_rows(np.array([len(part) for part in parts], np.int64))
        all_rows, _ = self.gathered_rows(np.concatenate(parts))
        ends, starts = np.cumsum(lengths), np.cumsum(batches) - batches
        pieces = [
            all_rows[ends[first + number] - lengths[first + number] : ends[first + number]]
            for number in range(max(batches))
            for first, count in zip(starts, batches, strict=True)
            if number < count
        ]
        return np.concatenate(pieces)

    # --- metrics and records

    def reduced_metrics(self, metric_state: MetricState, *, means: bool) -> ReducedMetrics | None:
        """The measurements of all processes; None if each process has measured all rows."""
        return sums.reduce_metrics(self, metric_state, means=means) if self.adds_up else None

    def record_parts(self, metric_state: MetricState) -> dict[str, Any]:
        """The parts of the record of the measurements of all processes; see `MetricState.parts`."""
        return sums.record_parts(self, metric_state) if self.adds_up else metric_state.parts()

    def load_share(self, metric_state: MetricState, record: Record | None) -> None:
        """Keep this process's share of the loaded measurements of all."""
        if self.adds_up:
            sums.load_share(self, metric_state, record)

    def carry_record(self, parts: Sequence[Tensor[Any, Any, Any]]) -> Record:
        """The carry: global arrays as they are, other arrays of all processes stacked."""
        arrays = [part.numpy() for part in self.replicate(tuple(parts))] if self.partitions else [
            self.gathered(part.numpy()) for part in parts
        ]  # fmt: skip
        return Record({f"part{number:04}": array for number, array in enumerate(arrays)})

    def own_carry(self, arrays: list[HostArray]) -> list[HostArray]:
        """This process's part of a saved carry; `RunError` if a different set of processes saved it."""
        if not self.adds_up:
            return arrays
        if any(array.ndim == 0 or len(array) != self.size for array in arrays):
            raise RunError(
                f"the carry was saved by another number of processes than {self.size}; resume with the same number, "
                "or from the end of an epoch"
            )
        return [array[self.rank] for array in arrays]

    def whole(self, record: Record) -> Record:
        """The record with its sharded tensors assembled in the memory of each process. Call it in all processes."""
        if self.size == 1 or not self.computes_together:
            return record
        entries: dict[str, Entry] = {}
        for path in record:
            entry = record[path]
            if isinstance(entry, TensorEntry) and entry.tensor.shards is not None:
                tensor = LazyTensor.from_array(self._assembled(entry.tensor), path)
                entry = TensorEntry(tensor, entry.id, entry.state)
            entries[path] = entry
        return Record(entries, record.metadata, aliases=record.aliases)

    def _assembled(self, tensor: LazyTensor) -> HostArray:
        assert tensor.shards is not None
        own = np.zeros(tensor.shape, tensor.dtype)
        for shard in tensor.shards():
            own[shard.index] = shard.read()
        # Every element is in the shards of one process only; the other processes have zero bytes there.
        all_bytes = self.gathered(np.ascontiguousarray(own).reshape(-1).view(np.uint8))
        return np.bitwise_or.reduce(all_bytes, axis=0).view(tensor.dtype).reshape(tensor.shape)

    # --- communication between processes

    def by_main(self, function: Callable[[], T]) -> T:
        """Call a function in process 0; in all processes return its result (plain data) or raise its error."""
        if self.size == 1:
            return function()
        from phlox.distributed import broadcast_object

        message: dict[str, Any] = {}
        failed: Exception | None = None
        if self.is_main:
            try:
                message = {"value": function()}
            except Exception as error:
                failed, message = error, {"error": str(error), "class": type(error).__name__}
        message = broadcast_object(message)
        if failed is not None:
            raise failed
        if "error" in message:
            kind = getattr(errors, message["class"], None)
            if not (isinstance(kind, type) and issubclass(kind, errors.PhloxError)):
                raise DistributedError(f"process 0: {message['class']}: {message['error']}")
            raise kind(f"process 0: {message['error']}")
        return message["value"]

    def check_same(self, values: Mapping[str, Any]) -> None:
        """Raise `RunError` if one of these plain values, by name, is not the same in all processes."""
        if self.size == 1:
            return
        from phlox.distributed import gather_objects

        all_values: list[dict[str, Any]] = gather_objects(dict(values))
        for rank, other_values in enumerate(all_values):
            for name, value in all_values[0].items():
                if other_values[name] != value:
                    raise RunError(f"{name}: {value!r} in process 0, and {other_values[name]!r} in process {rank}")

    def gathered(self, array: HostArray) -> HostArray:
        """The arrays of all processes, [processes, ...]; all must have the same shape."""
        self.mesh.backend.join_processes()
        host = np.ascontiguousarray(array)
        if host.dtype.kind == "V":  # bfloat16, which is no built-in dtype of NumPy
            return self.gathered(host.view(np.uint16)).view(host.dtype)
        return self.mesh.backend.gather_on_host(host)

    def gathered_rows(self, array: HostArray) -> tuple[HostArray, list[int]]:
        """The rows of all processes, one process after the other, and the number of rows of each process."""
        counts: list[int] = self.gathered(np.array([len(array)], np.int64)).reshape(-1).tolist()
        padded = np.zeros((max(counts), *array.shape[1:]), array.dtype)
        padded[: len(array)] = array
        all_padded = self.gathered(padded)
        return np.concatenate([rows[:count] for rows, count in zip(all_padded, counts, strict=True)]), counts

    def replicate(self, value: Any) -> Any:
        """Replicate the tensors of a structure on the mesh, so that each process can read them."""
        replicated = self.mesh.device

        def replicate_leaf(x: Any) -> Any:
            if not isinstance(x, Tensor):
                return x
            tensor = cast("Tensor[Any, Any, Any]", x)
            sharding = tensor.device.sharding
            if sharding is None or sharding.is_replicated:
                return tensor
            return tensor.to_device(replace(replicated, backend=tensor.backend))

        return mapped(replicate_leaf, value)

    def note_rank(self, error: BaseException) -> None:
        """Add a note to an error that says in which process it was raised."""
        if self.size > 1 and not any(note.startswith("in process ") for note in getattr(error, "__notes__", [])):
            error.add_note(f"in process {self.rank} of {self.size}")

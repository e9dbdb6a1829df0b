"""`Team`: the processes and devices that a learner trains with, as it sees them."""

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
from phlox.train.step.meter import Meter, Output
from phlox.train.step.sums import Together

if TYPE_CHECKING:
    from phlox.distributed import Mesh

T = TypeVar("T")
HostArray = np.ndarray[Any, Any]


class Portion(NamedTuple):
    """This process's part of a batch."""

    batch: Any
    rows: int
    """How many rows the batch has, of all processes together."""
    is_whole: bool = False
    """Are these all of its rows, and has every process the same?"""
    counts: tuple[int, ...] | None = None
    """The number of rows of each process, if these differ."""


class Team:
    """A mesh and the processes of the program.

    Attributes:
        partitions: are arrays global, and is the communication the engine's? Where not, each process computes on its
            rows, and gradients, losses and sums of metrics are added up.
        part, parts: which part of the rows of each batch this process has, of how many.
        cuts: over how many devices the rows of a batch are cut.
        rank, size: of this process, and how many there are.
    """

    def __init__(self, mesh: Mesh) -> None:
        if not callable(getattr(mesh, "device_for", None)):
            raise RunError(f"mesh: give px.distributed.Mesh(data=-1), got a {type(cast('object', mesh)).__name__}")
        self.mesh = mesh
        self.part, self.parts = mesh.part
        self.cuts: int = mesh.cuts
        self.partitions: bool = mesh.backend.partitions
        self.computes_together = self.partitions
        """Does a call of the model need all processes, since each has only a part of it?"""
        self.slices_gradients = False
        """Are gradients in slices, so that a process does not hold those of its rows as a whole?"""
        known = processes()
        self.rank, self.size = known.rank, known.size

    @property
    def is_main(self) -> bool:
        """Is this process 0, the one that prints and writes for all?"""
        return self.rank == 0

    @property
    def in_shards(self) -> bool:
        """Is the state saved by several processes or devices together?"""
        return self.size > 1 or (self.partitions and self.mesh.size > 1)

    @property
    def adds_up(self) -> bool:
        """Does each process measure its own rows, so that sums are added up over the processes?"""
        return self.size > 1 and not self.partitions

    # --- models

    def taken(self, model: Module) -> Module:
        """A model on the mesh: one on a single device is replicated; `RunError` if it is elsewhere."""
        mesh = self.mesh

        def placed(path: str, param: Param) -> Param:
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

        return model.map(placed)

    def device(self, device: Device) -> Device:
        """The device for values that are the same on all devices, on the same backend."""
        return self.mesh.device.on(device.backend) if self.partitions else replace(device, sharding=None)

    def local_sums(self, accumulates: bool, scaled: bool) -> RowGroup | None:
        """The processes, if each is to keep the gradients of its rows until those of all batches are added up.

        Where gradients are in slices they do not, which would take the memory that slices are there to save. Scaled
        gradients must be the same everywhere, since the scale of the next step is found by them.
        """
        if not (accumulates and self.adds_up) or scaled or self.slices_gradients:
            return None
        return self.mesh.native.rows(self.mesh.batch_axes)

    def align(self, modules: Sequence[Module]) -> None:
        """Make running statistics, which each process has of its own rows, the mean over the processes.

        They are means over steps, and so it does not matter when that is done. What is the same everywhere stays so.
        """
        if not self.adds_up:
            return
        params = [param for one in modules for param in one.params() if not param.trainable and param.is_initialized]
        params = [
            param
            for param in params
            if (x := param.val()).kind is Float and not x.backend.is_slice(x.backend.strip(x.primitive))
        ]
        if not params:
            return
        hosts: list[HostArray] = [param.val().numpy() for param in params]
        every = self.gathered(np.concatenate([np.asarray(host, np.float64).reshape(-1) for host in hosts]))
        mean = every[0].copy()
        differs = (every != every[0]).any(0)
        mean[differs] = every[:, differs].mean(0)
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
        """In which the code computes on this process's rows."""
        return self.mesh

    def rows_scope(self, portion: Portion) -> AbstractContextManager[object]:
        """As `scope`, inside of it, for a portion that differs from the others."""
        if self.partitions:
            return nullcontext()
        if portion.is_whole:
            return rows_of(None)
        group = row_group()
        return nullcontext() if portion.counts is None or group is None else rows_of(
            RowGroup(group.rank, group.size, portion.counts)
        )  # fmt: skip

    def placed(self, batch: Any, portion: Portion, device: Device, *, stacked: bool = False) -> Any:
        """A batch (or several, stacked) as tensors; if the engine partitions, as one batch of all processes."""
        if not self.partitions:
            return placed(batch, device)
        axis, backend = int(stacked), device.backend

        def moved(leaf: Any) -> Any:
            return self._global(leaf, backend, portion.is_whole, axis)

        return mapped(moved, batch)

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

    def counts(self, portion: Portion) -> bool:
        """Do this process's results for a portion count? Not if another process has the same rows."""
        return self.partitions or not portion.is_whole or self.part == 0

    def measured_rows(self, portion: Portion) -> int:
        """Of how many rows is a mean that this process measures of a portion?"""
        return portion.rows if self.partitions or portion.is_whole else count(portion.batch)

    def readable(self, output: Output) -> Output:
        """The outputs of a step, in a form in which each process can read the rows that metrics keep."""
        if not self.partitions or self.size == 1 or not output.rows:
            return output
        rows = {
            name: {part: Rows(tuple([self.everywhere(chunk) for chunk in kept.chunks])) for part, kept in state.items()}
            for name, state in output.rows.items()
        }
        return output._replace(rows=rows)

    def in_order(self, parts: Sequence[HostArray]) -> HostArray:
        """The rows of all processes, batch by batch, of the parts that each has of them."""
        lengths, batches = self.gathered_rows(np.array([len(part) for part in parts], np.int64))
        every, _ = self.gathered_rows(np.concatenate(parts))
        ends, starts = np.cumsum(lengths), np.cumsum(batches) - batches
        pieces = [
            every[ends[first + number] - lengths[first + number] : ends[first + number]]
            for number in range(max(batches))
            for first, count in zip(starts, batches, strict=True)
            if number < count
        ]
        return np.concatenate(pieces)

    # --- metrics and records

    def merged(self, meter: Meter, *, means: bool) -> Together | None:
        """The measurements of a meter in all processes; None if each process has measured all rows."""
        return sums.together(self, meter, means=means) if self.adds_up else None

    def parts_of(self, meter: Meter) -> dict[str, Any]:
        """As `Meter.parts`, to be saved."""
        return sums.saved(self, meter) if self.adds_up else meter.parts()

    def take_share(self, meter: Meter, record: Record | None) -> None:
        """Take this process's part of the measurements of all."""
        if self.adds_up:
            sums.take_share(self, meter, record)

    def carry_record(self, parts: Sequence[Tensor[Any, Any, Any]]) -> Record:
        """The carry: global arrays as they are, other arrays of all processes stacked."""
        arrays = [one.numpy() for one in self.everywhere(tuple(parts))] if self.partitions else [
            self.gathered(one.numpy()) for one in parts
        ]  # fmt: skip
        return Record({f"part{number:04}": array for number, array in enumerate(arrays)})

    def own_carry(self, arrays: list[HostArray]) -> list[HostArray]:
        """This process's part of a saved carry; `RunError` if a different set of processes saved it."""
        if not self.adds_up:
            return arrays
        if any(array.ndim == 0 or len(array) != self.size for array in arrays):
            raise RunError(
                f"the carry was saved by another number of processes than {self.size}; go on with as many as before, "
                "or from the end of an epoch"
            )
        return [array[self.rank] for array in arrays]

    def whole(self, record: Record) -> Record:
        """The record with tensors in shards of several processes put together in the memory of each. All call it."""
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
        # Every element is in one process's shards, and nothing in those of the others.
        every = self.gathered(np.ascontiguousarray(own).reshape(-1).view(np.uint8))
        return np.bitwise_or.reduce(every, axis=0).view(tensor.dtype).reshape(tensor.shape)

    # --- what processes tell each other

    def by_main(self, what: Callable[[], T]) -> T:
        """Call a function in process 0, and return its result, plain data, or raise its error in all processes."""
        if self.size == 1:
            return what()
        from phlox.distributed import broadcast_object

        told: dict[str, Any] = {}
        failed: Exception | None = None
        if self.is_main:
            try:
                told = {"value": what()}
            except Exception as error:
                failed, told = error, {"error": str(error), "class": type(error).__name__}
        told = broadcast_object(told)
        if failed is not None:
            raise failed
        if "error" in told:
            kind = getattr(errors, told["class"], None)
            if not (isinstance(kind, type) and issubclass(kind, errors.PhloxError)):
                raise DistributedError(f"process 0: {told['class']}: {told['error']}")
            raise kind(f"process 0: {told['error']}")
        return told["value"]

    def check_same(self, values: Mapping[str, Any]) -> None:
        """Raise `RunError` if one of these plain values, by name, is not the same in all processes."""
        if self.size == 1:
            return
        from phlox.distributed import gather_objects

        every: list[dict[str, Any]] = gather_objects(dict(values))
        for rank, each in enumerate(every):
            for what, one in every[0].items():
                if each[what] != one:
                    raise RunError(f"{what}: {one!r} in process 0, and {each[what]!r} in process {rank}")

    def gathered(self, array: HostArray) -> HostArray:
        """The arrays of all processes, [processes, ...]; they have one shape."""
        self.mesh.backend.join_processes()
        host = np.ascontiguousarray(array)
        if host.dtype.kind == "V":  # bfloat16, which is no dtype of NumPy's own
            return self.gathered(host.view(np.uint16)).view(host.dtype)
        return self.mesh.backend.gather_on_host(host)

    def gathered_rows(self, array: HostArray) -> tuple[HostArray, list[int]]:
        """The rows of all processes, one process after the other, and how many each has."""
        counts: list[int] = self.gathered(np.array([len(array)], np.int64)).reshape(-1).tolist()
        padded = np.zeros((max(counts), *array.shape[1:]), array.dtype)
        padded[: len(array)] = array
        every = self.gathered(padded)
        return np.concatenate([one[:count] for one, count in zip(every, counts, strict=True)]), counts

    def everywhere(self, value: Any) -> Any:
        """Tensors of a structure of tensors, replicated on the mesh, so that each process can read them."""
        replicated = self.mesh.device

        def moved(x: Any) -> Any:
            if not isinstance(x, Tensor):
                return x
            tensor = cast("Tensor[Any, Any, Any]", x)
            sharding = tensor.device.sharding
            if sharding is None or sharding.is_replicated:
                return tensor
            return tensor.to_device(replace(replicated, backend=tensor.backend))

        return mapped(moved, value)

    def note_rank(self, error: BaseException) -> None:
        """Let an error say in which process it was raised."""
        if self.size > 1 and not any(note.startswith("in process ") for note in getattr(error, "__notes__", [])):
            error.add_note(f"in process {self.rank} of {self.size}")

"""Multi-tensor steps: many parameters updated at once, in memory that the optimizer owns.

A parameter that can be updated with others keeps a `Slot`: the arrays of its state, which the next step overwrites.
`MultiTensorStep` is one step: parameters are added, planned (which may fail), laid out in memory, and run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from phlox.backend import Device, Float
from phlox.backend.contract.update import Piece, ReusedBuffer
from phlox.backend.kind import KINDS
from phlox.module import Param, ParamId
from phlox.module.donated import Donated
from phlox.optim.simple import AnyTensor, SimpleOptimizer
from phlox.optim.state.tree import Mastered, Skeleton, State, flatten, paths, unflatten, unmastered
from phlox.tensor import Tensor
from phlox.tensor.dispatch import ops_of

LEAST, MANY = 1 << 16, 6
"""Elements, and tensors: with fewer of both, one tensor at a time is faster, and new memory costs almost nothing."""
_TRIAL_SIZE = 8
"""The number of elements for a trial of the step, before anything is written."""

Scalars: TypeAlias = tuple[Any, ...]
Run: TypeAlias = Callable[[Sequence[Piece]], object]


class UpdateJob(NamedTuple):
    """A parameter to update."""

    path: str
    param: Param
    value: AnyTensor
    """The value without a tape."""
    work: AnyTensor
    """The tensor to update: the value, or its master."""
    grad: AnyTensor
    """The gradient, on the device of `work`, like the state."""
    state: State
    begins: bool
    """Whether this is the state before the first step."""


# --- the data of a parameter that is kept between steps


class GroupKey(NamedTuple):
    """The key of parameters that can be updated together, without the scalars in their states."""

    number: int
    """The number of its optimizer in the adaptor."""
    device: Device
    skeleton: Skeleton


class Slot:
    """What is kept between steps for a parameter that is updated with others."""

    __slots__ = (
        "arrays", "begins", "flats", "group", "home", "inner", "key", "mastered", "memory", "outer", "own", "shape",
    )  # fmt: skip

    def __init__(self, key: GroupKey, job: UpdateJob, arrays: list[Any], scalars: Scalars, before: Slot | None) -> None:
        outer, backend = job.param.backend, key.device.backend
        self.key = key
        self.group: tuple[GroupKey, Scalars] = key, scalars
        """Slots of equal groups are updated together."""
        self.outer, self.inner = ops_of(outer, Float), ops_of(backend, Float)
        self.shape = job.work.shape
        self.home = job.value.device.on(outer)
        self.mastered = job.work is not job.value
        """Whether the first array is the master, and not a part of the state."""
        self.begins = job.begins
        """Whether there is no state yet that an interrupt could lose."""
        # The optimizer may refer to its first state elsewhere. Copied now, it is freed before the next one is created.
        self.arrays = [_copied(backend, array) for array in arrays] if job.begins else arrays
        self.flats = [backend.flat(array) for array in self.arrays]
        keeps_arrays = before is not None and before.own and len(before.arrays) == len(arrays)
        self.own = job.begins or (keeps_arrays and all(a is b for a, b in zip(before.arrays, arrays, strict=True)))  # pyright: ignore[reportOptionalMemberAccess]
        """Whether nothing else refers to the arrays."""
        self.memory: ReusedBuffer | None = None if before is None or self.mastered else before.memory
        """The memory of the parameter, if a step created it and may overwrite it."""

    def takes(self, value: AnyTensor, grad: AnyTensor) -> bool:
        """Do this value and gradient have the backend and shape of the last step's?"""
        outer, inner = self.outer, self.inner
        if self.mastered or value._ops is not outer or grad._ops is not inner:  # pyright: ignore[reportPrivateUsage]
            return False
        x = outer.backend.strip(value.primitive)
        return x.shape == self.shape and inner.backend.are_alike(x, grad.primitive)

    def state(self) -> State:
        """The state as the optimizer of one tensor has it, with the master copy if there is one."""
        tensors = [Tensor.from_primitive(array, self.inner.backend, Float) for array in self.arrays]
        state = _put_together(self.key.skeleton, tensors[self.mastered :], self.group[1])
        return Mastered(tensors[0], state) if self.mastered else state


def _slot_for(number: int, job: UpdateJob, before: Slot | None) -> Slot | None:
    """The slot of a parameter; None if it must be updated alone: backends or shapes differ, or tensors are traced."""
    work, device = job.work, job.work.device
    backend = device.backend
    skeleton, tensors, scalars = _take_apart(unmastered(job.state))
    if not all(isinstance(scalar, (int, float)) for scalar in scalars):
        return None
    if backend.adds_level or not all(
        x.backend is backend and x.shape == work.shape and backend.is_plain(x.primitive)
        for x in (work, job.grad, *tensors)
    ):
        return None
    if before is not None and (before.shape != work.shape or before.key.device != device):
        before = None
    old_arrays = before.arrays if before is not None and before.mastered else [work.primitive]
    masters = old_arrays[:1] if work is not job.value else []
    arrays = [*masters, *[x.primitive for x in tensors]]
    return Slot(GroupKey(number, device, skeleton), job, arrays, scalars, before)


def _copied(backend: Any, array: Any) -> Any:
    copy = backend.new_like(array)
    backend.flat(copy)[:] = backend.flat(array)
    return copy


def _take_apart(state: State) -> tuple[Skeleton, list[AnyTensor], Scalars]:
    """The skeleton of a state, its tensors, and its scalars."""
    leaves: list[Any] = []
    skeleton = flatten(state, leaves)
    return (
        skeleton,
        [x for x in leaves if isinstance(x, Tensor)],
        tuple([x for x in leaves if not isinstance(x, Tensor)]),
    )


def _put_together(skeleton: Any, tensors: Sequence[AnyTensor], scalars: Scalars) -> State:
    """The inverse of `_take_apart`."""
    return unflatten(skeleton, _in_order(skeleton, iter(tensors), iter(scalars)))


def _in_order(skeleton: Any, tensors: Iterator[Any], scalars: Iterator[Any]) -> Iterator[Any]:
    for _, kind in paths(skeleton):
        yield next(tensors if kind in KINDS else scalars)


# --- one step


class Entry(NamedTuple):
    """A parameter of a step, and its slot."""

    path: str
    param: Param
    slot: Slot
    grad: AnyTensor
    work: Any = None
    """The array to update, if it is not the parameter's."""


class _Group(NamedTuple):
    """Entries that are updated by one call."""

    entries: list[Entry]
    run: Run
    after: tuple[GroupKey, Scalars]
    arrays: list[list[Any]]
    """For each entry, the arrays of its new state."""
    flats: list[list[Any]]
    """The same arrays, flat."""


class _Target(NamedTuple):
    """The memory for a parameter's new value."""

    old: Any
    """The old values, flat."""
    new: Any
    """The new values, flat; possibly the same memory."""
    array: Any
    """The array of the new value, unless `memory` lends it."""
    memory: ReusedBuffer | None


class MultiTensorStep:
    """One step of the parameters that can be updated together: added, planned, laid out, run.

    Args:
        optimizers: the optimizers of one tensor, by number.
        rates: the learning rate of each.
        slots: the slots of parameters from earlier steps.
        job_of: returns the job for a path, a parameter and its gradient.
        masters: whether parameters of half precision have an f32 copy that is updated in their place.
    """

    def __init__(
        self,
        optimizers: Sequence[SimpleOptimizer],
        rates: Sequence[Any],
        slots: Mapping[ParamId, Slot],
        job_of: Callable[[str, Param, AnyTensor], UpdateJob],
        *,
        masters: bool,
    ) -> None:
        self._optimizers, self._rates, self._slots, self._job_of, self._masters = (
            optimizers, rates, slots, job_of, masters,
        )  # fmt: skip
        self._is_joint = [rule.elementwise or type(rule).kernel is not SimpleOptimizer.kernel for rule in optimizers]
        self._seen: set[ParamId] = set()
        self._waiting: dict[tuple[GroupKey, Scalars], list[Entry]] = {}
        self._groups: list[_Group] = []
        self._targets: list[list[_Target]] = []

    def add(self, path: str, param: Param, grad: AnyTensor, number: int) -> bool:
        """Add a parameter of the optimizer with this number; False if it must be updated by itself."""
        id, backend = param.id, param.backend
        is_half = backend.full_precision() is not backend
        if not self._is_joint[number] or id in self._seen or (is_half and not self._masters):
            return False
        slot = self._slots.get(id)
        if slot is not None and slot.key.number == number and slot.takes(param.val(), grad):
            entry = Entry(path, param, slot, grad)
        else:
            job = self._job_of(path, param, grad)
            slot = _slot_for(number, job, slot)
            if slot is None:
                return False
            entry = Entry(path, param, slot, job.grad, job.work.primitive if slot.mastered else None)
        self._seen.add(id)
        self._waiting.setdefault(slot.group, []).append(entry)
        return True

    def plan(self) -> list[Entry]:
        """Plan the update of each group, which may fail; returns the parameters that must be updated one by one."""
        alone: list[Entry] = []
        for (key, scalars), entries in self._waiting.items():
            plan = _plan_group(self._optimizers[key.number], self._rates[key.number], key, scalars, entries[0])
            if plan is None:
                alone += entries
                continue
            run, after = plan
            backend = key.device.backend
            slots = [entry.slot for entry in entries]
            arrays = [slot.arrays if slot.own else [*map(backend.new_like, slot.arrays)] for slot in slots]
            flats = [
                slot.flats if slot.own else [*map(backend.flat, new)] for slot, new in zip(slots, arrays, strict=True)
            ]
            self._groups.append(_Group(entries, run, (key, after), arrays, flats))
        return alone

    def lay_out(self, recipient: str | None) -> None:
        """Find memory for the new values: the memory of the old values if they are donated to `recipient`.

        Nothing is written yet, so after an error nothing has changed.
        """
        undo: list[Callable[[], object]] = []  # of donations
        try:
            for group in self._groups:
                self._targets.append(
                    [
                        _master_target(entry, arrays[0], flats[0])
                        if entry.slot.mastered
                        else _new_target(entry)
                        if recipient is None
                        else _donated_target(entry, recipient, undo)
                        for entry, arrays, flats in zip(group.entries, group.arrays, group.flats, strict=True)
                    ]
                )
            if recipient is not None:
                for entry in (e for group in self._groups for e in group.entries if e.slot.mastered):
                    undo.append(partial(entry.param.restore, entry.param.val()))
                    _donate(entry, recipient)
        except BaseException:
            for restore in undo:
                restore()
            raise

    def writes_over(self, recipient: str | None) -> bool:
        """Would an interrupt of `run` lose data?"""
        slots = [entry.slot for entry in self.entries]
        return bool(slots) and (recipient is not None or any(slot.own and not slot.begins for slot in slots))

    def run(self) -> dict[str, Param]:
        """Update all entries; returns the new parameters by path. The slots hold the new states."""
        new: dict[str, Param] = {}
        for group, targets in zip(self._groups, self._targets, strict=True):
            flat = group.entries[0].slot.inner.backend.flat
            mastered = group.entries[0].slot.mastered
            pieces: list[Piece] = []
            for entry, flats, target in zip(group.entries, group.flats, targets, strict=True):
                before, grad = entry.slot.flats, flat(entry.grad.primitive)
                if mastered:
                    before, flats = before[1:], flats[1:]
                pieces.append(Piece((target.old, grad, *before), (target.new, *flats)))
            group.run(pieces)
            for entry, arrays, flats, target in zip(group.entries, group.arrays, group.flats, targets, strict=True):
                path, param, slot = entry[:3]
                slot.arrays, slot.flats, slot.own, slot.group = arrays, flats, True, group.after
                slot.begins = False
                slot.memory = memory = target.memory
                array = target.array if memory is None else memory.lend()
                outer = slot.outer
                if mastered:
                    half: Any = outer.backend.without_tape() if outer.backend.differentiates else outer.backend
                    array = Tensor.from_primitive(array, slot.inner.backend, Float).from_full_precision(half).primitive
                new[path] = Param.revive(outer, array, param.trained, param.trainable, param.id, param.full_precision)
        return new

    @property
    def entries(self) -> list[Entry]:
        """All parameters that are updated together."""
        return [entry for group in self._groups for entry in group.entries]


def _plan_group(
    optimizer: SimpleOptimizer, lr: Any, key: GroupKey, scalars: Scalars, first: Entry
) -> tuple[Run, Scalars] | None:
    """The function that updates a whole group, and the scalars in its states afterwards; None if there is none."""
    backend, ops = key.device.backend, first.slot.inner
    arrays = first.slot.flats[first.slot.mastered :]

    def state_of(arrays: Sequence[Any]) -> State:
        tensors = [Tensor.from_primitive(array, backend, Float) for array in arrays]
        return _put_together(key.skeleton, tensors, scalars)

    kernel = optimizer.kernel(lr, state_of(arrays), backend)
    run = None if kernel is None else backend.kernel(kernel.name, kernel.numbers)
    if kernel is not None and run is not None:
        return run, kernel.after
    if not optimizer.elementwise:
        return None

    def step(arrays: Sequence[Any]) -> tuple[AnyTensor, Skeleton, list[AnyTensor], Scalars]:
        x, grad = (Tensor.from_primitive(array, backend, Float) for array in arrays[:2])
        tensor, after = optimizer.step(lr, x, grad, state_of(arrays[2:]))
        return tensor, *_take_apart(after)

    trial = [array[:_TRIAL_SIZE] for array in (_work_of(first, backend), backend.flat(first.grad.primitive), *arrays)]
    tensor, skeleton, tensors, after = step(trial)
    if skeleton != key.skeleton or any(x._ops is not ops or x.shape != trial[0].shape for x in (tensor, *tensors)):  # pyright: ignore[reportPrivateUsage]
        return None

    def work(arrays: list[Any]) -> list[Any]:
        tensor, _, tensors, _ = step(arrays)
        return [tensor.primitive, *[x.primitive for x in tensors]]

    return lambda pieces: backend.in_pieces(work, pieces), after


def _work_of(entry: Entry, backend: Any) -> Any:
    param = entry.param
    return backend.flat(param.backend.strip(param.val().primitive) if entry.work is None else entry.work)


# --- where new values go


def _donate(entry: Entry, recipient: str) -> None:
    """Donate the parameter's value: using it is an error from now on."""
    slot = entry.slot
    entry.param.donate_as(Donated(slot.outer, slot.shape, slot.home, entry.path, recipient))


def _restore_lent(entry: Entry, memory: ReusedBuffer) -> None:
    """Restore a donated value from the memory that lent it."""
    entry.param.restore(Tensor.from_primitive(memory.lend(), entry.slot.outer.backend, Float))
    entry.slot.memory = None  # others may still refer to the array that was lent before


def _master_target(entry: Entry, array: Any, flat: Any) -> _Target:
    return _Target(entry.slot.inner.backend.flat(entry.work), flat, array, None)


def _new_target(entry: Entry) -> _Target:
    slot = entry.slot
    x = slot.outer.backend.strip(entry.param.val().primitive)
    backend = slot.inner.backend
    array = backend.new_like(x)
    return _Target(backend.flat(x), backend.flat(array), array, None)


def _donated_target(entry: Entry, recipient: str, undo: list[Callable[[], object]]) -> _Target:
    """The memory of the old value, if this optimizer lent it and nothing else refers to it; otherwise other memory."""
    slot = entry.slot
    memory, backend = slot.memory, slot.inner.backend
    value = entry.param.val()
    x = slot.outer.backend.strip(value.primitive)
    _donate(entry, recipient)
    if memory is not None and memory.has_lent(x):
        del value, x  # these references would keep the memory from being free
        undo.append(partial(_restore_lent, entry, memory))
        old = memory.flat
        if memory.is_free():
            return _Target(old, old, None, memory)
        memory = backend.memory_like(old, slot.shape, slot.home)
        assert memory is not None  # because `old` is such memory
    else:
        undo.append(partial(entry.param.restore, value))
        old = backend.flat(x)
        if memory is None or not memory.is_free():
            memory = backend.memory_like(old, slot.shape, slot.home)
        if memory is None:
            array = backend.new_like(x)
            return _Target(old, backend.flat(array), array, None)
    return _Target(old, memory.flat, None, memory)

"""`Batch`: the parameters of one step that are stepped together, and how their memory goes from hand to hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from phlox.backend import Float
from phlox.backend.contract.update import Piece, ReusedBuffer
from phlox.module import Param
from phlox.module.donated import Donated
from phlox.optim.simple import SimpleOptimizer
from phlox.optim.step.multi_tensor import Entry, Form, Numbers, Run, planned
from phlox.tensor import Tensor


class _Group(NamedTuple):
    """Entries that are stepped by one call."""

    entries: list[Entry]
    run: Run
    after: tuple[Form, Numbers]
    arrays: list[list[Any]]
    """Where the state of each goes,"""
    flats: list[list[Any]]
    """and the same in one dimension."""


class _Target(NamedTuple):
    """Where a parameter's new value goes."""

    old: Any
    """What is stepped, flat,"""
    new: Any
    """and what it becomes, flat: the same memory, perhaps."""
    array: Any
    """Of the new value, unless it is lent by"""
    memory: ReusedBuffer | None


class Batch:
    """Parameters of one step that are stepped together: added, planned, laid out, run."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[Form, Numbers], list[Entry]] = {}
        self._groups: list[_Group] = []
        self._targets: list[list[_Target]] = []

    def __bool__(self) -> bool:
        return bool(self._groups)

    def add(self, entry: Entry) -> None:
        """Add a parameter."""
        self._waiting.setdefault(entry.slot.group, []).append(entry)

    def plan(self, optimizers: Sequence[SimpleOptimizer], rates: Sequence[Any]) -> list[Entry]:
        """Find out how each group is stepped, which may fail; gives those that must go one by one."""
        alone: list[Entry] = []
        for (form, numbers), entries in self._waiting.items():
            found = planned(optimizers[form.number], rates[form.number], form, numbers, entries[0])
            if found is None:
                alone += entries
                continue
            run, after = found
            backend = form.place.backend
            slots = [entry.slot for entry in entries]
            arrays = [slot.arrays if slot.own else [*map(backend.new_like, slot.arrays)] for slot in slots]
            flats = [
                slot.flats if slot.own else [*map(backend.flat, mine)] for slot, mine in zip(slots, arrays, strict=True)
            ]
            self._groups.append(_Group(entries, run, (form, after), arrays, flats))
        return alone

    def lay_out(self, taker: str | None) -> None:
        """Find memory for the new values: that of the old ones where `taker` says who uses them up.

        If it fails nothing has changed. Nothing has been written to yet.
        """
        given: list[tuple[Entry, Tensor[Any, Any, Any] | None, ReusedBuffer | None]] = []
        try:
            for group in self._groups:
                self._targets.append(
                    [
                        _for_master(entry, arrays[0], flats[0])
                        if entry.slot.mastered
                        else _new(entry)
                        if taker is None
                        else _taken(entry, taker, given)
                        for entry, arrays, flats in zip(group.entries, group.arrays, group.flats, strict=True)
                    ]
                )
            if taker is not None:
                for entry in (one for group in self._groups for one in group.entries if one.slot.mastered):
                    given.append((entry, entry.param.val(), None))
                    donate(entry, taker)
        except BaseException:
            for entry, value, memory in given:
                if value is None:
                    assert memory is not None
                    value = Tensor.from_primitive(memory.lend(), entry.slot.outer.backend, Float)
                    entry.slot.memory = None  # others may still look at what was lent before
                entry.param.restore(value)
            raise

    def writes_over(self, taker: str | None) -> bool:
        """Would there be something lost, were `run` cut short?"""
        slots = [entry.slot for entry in self.entries]
        return bool(slots) and (taker is not None or any(slot.own and not slot.begins for slot in slots))

    def run(self) -> dict[str, Param]:
        """Step all: the new parameters by path. The slots hold the new states."""
        made: dict[str, Param] = {}
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
                    below: Any = outer.backend.without_tape() if outer.backend.differentiates else outer.backend
                    array = Tensor.from_primitive(array, slot.inner.backend, Float).from_full_precision(below).primitive
                made[path] = Param.revive(outer, array, param.trained, param.trainable, param.id, param.full_precision)
        return made

    @property
    def entries(self) -> list[Entry]:
        """All that are stepped together."""
        return [entry for group in self._groups for entry in group.entries]


def donate(entry: Entry, taker: str) -> None:
    """Use up the parameter's value."""
    slot = entry.slot
    entry.param.donate_as(Donated(slot.outer, slot.shape, slot.home, entry.path, taker))


def _for_master(entry: Entry, array: Any, flat: Any) -> _Target:
    return _Target(entry.slot.inner.backend.flat(entry.work), flat, array, None)


def _new(entry: Entry) -> _Target:
    slot = entry.slot
    x = slot.outer.backend.strip(entry.param.val().primitive)
    backend = slot.inner.backend
    array = backend.new_like(x)
    return _Target(backend.flat(x), backend.flat(array), array, None)


def _taken(
    entry: Entry, taker: str, given: list[tuple[Entry, Tensor[Any, Any, Any] | None, ReusedBuffer | None]]
) -> _Target:
    """The memory of the old value, if it came from here and nobody looks at it any more; otherwise other memory."""
    param, slot = entry.param, entry.slot
    memory, backend = slot.memory, slot.inner.backend
    value = param.val()
    x = slot.outer.backend.strip(value.primitive)
    param.donate_as(Donated(slot.outer, slot.shape, slot.home, entry.path, taker))
    if memory is not None and memory.has_lent(x):
        del value, x  # or they would be looking
        given.append((entry, None, memory))
        old = memory.flat
        if memory.is_free():
            return _Target(old, old, None, memory)
        memory = backend.memory_like(old, slot.shape)
    else:
        given.append((entry, value, None))
        old = backend.flat(x)
        if memory is None or not memory.is_free():
            memory = backend.memory_like(old, slot.shape)
    if memory is not None:
        return _Target(old, memory.flat, None, memory)
    array = backend.reshape(backend.new_like(old), slot.shape)
    return _Target(old, backend.flat(array), array, None)

"""Many parameters stepped at once, in memory that is the optimizer's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from phlox.backend import Device, Float
from phlox.backend.contract.update import Piece, ReusedBuffer
from phlox.backend.kind import KINDS
from phlox.module import Param
from phlox.optim.simple import SimpleOptimizer
from phlox.optim.state.tree import Mastered, Skeleton, State, flatten, paths, unflatten, unmastered
from phlox.tensor import Tensor
from phlox.tensor.dispatch import ops_of

LEAST = 1 << 16
"""Elements: fewer are stepped faster one tensor at a time, and new memory for them costs next to nothing."""
_TRIED = 8
"""Elements that a step is tried on before anything is written to."""

Numbers = tuple[Any, ...]
AnyTensor = Tensor[Any, Any, Any]


class Job(NamedTuple):
    """A parameter to be stepped."""

    path: str
    param: Param
    value: AnyTensor
    """As it is without a tape,"""
    work: AnyTensor
    """and what is stepped: it, or its master."""
    grad: AnyTensor
    state: State
    place: Device
    """Where the work, the gradient and the state are."""
    begins: bool
    """Is the state the one before the first step?"""


class Form(NamedTuple):
    """What parameters have in common that are stepped together, beside the numbers in their states."""

    number: int
    """Of the optimizer among those of the adaptor."""
    place: Device
    skeleton: Skeleton


class Slot:
    """What is kept of a parameter that is stepped with others, from step to step."""

    __slots__ = (
        "arrays", "begins", "flats", "form", "group", "home", "inner", "mastered", "memory", "outer", "own", "shape",
    )  # fmt: skip

    def __init__(self, form: Form, job: Job, arrays: list[Any], numbers: Numbers, before: Slot | None) -> None:
        outer, backend = job.param.backend, form.place.backend
        self.form = form
        self.group: tuple[Form, Numbers] = form, numbers
        """Those of equal groups are stepped together."""
        self.outer, self.inner = ops_of(outer, Float), ops_of(backend, Float)
        self.shape = job.work.shape
        self.home = job.value.device.on(outer)
        self.mastered = job.work is not job.value
        """Is the first of the arrays the master, and not a part of the state?"""
        self.begins = job.begins
        """Is there no state to lose yet?"""
        # What an optimizer begins with it may hold elsewhere, too. Copied at once, it goes before the next one is made.
        self.arrays = [_copied(backend, array) for array in arrays] if job.begins else arrays
        self.flats = [backend.flat(array) for array in self.arrays]
        known = before is not None and before.own and len(before.arrays) == len(arrays)
        self.own = job.begins or (known and all(a is b for a, b in zip(before.arrays, arrays, strict=True)))  # pyright: ignore[reportOptionalMemberAccess]
        """Has nobody else the arrays?"""
        self.memory: ReusedBuffer | None = None if before is None or self.mastered else before.memory
        """Of the parameter, if it was made by a step that may write over it."""

    def takes(self, value: AnyTensor, grad: AnyTensor) -> bool:
        """Are this value and gradient of the form that the ones before had?"""
        outer, inner = self.outer, self.inner
        if self.mastered or value._ops is not outer or grad._ops is not inner:  # pyright: ignore[reportPrivateUsage]
            return False
        x = outer.backend.strip(value.primitive)
        return x.shape == self.shape and inner.backend.are_alike(x, grad.primitive)

    def state(self) -> State:
        """As the optimizer of one tensor knows it, or with the master."""
        tensors = [Tensor.from_primitive(array, self.inner.backend, Float) for array in self.arrays]
        state = put_together(self.form.skeleton, tensors[self.mastered :], self.group[1])
        return Mastered(tensors[0], state) if self.mastered else state


def _copied(backend: Any, array: Any) -> Any:
    mine = backend.new_like(array)
    backend.flat(mine)[:] = backend.flat(array)
    return mine


def take_apart(state: State) -> tuple[Skeleton, list[AnyTensor], Numbers]:
    """The skeleton of a state, its tensors, and its numbers."""
    leaves: list[Any] = []
    skeleton = flatten(state, leaves)
    return (
        skeleton,
        [x for x in leaves if isinstance(x, Tensor)],
        tuple([x for x in leaves if not isinstance(x, Tensor)]),
    )


def put_together(skeleton: Any, tensors: Sequence[AnyTensor], numbers: Numbers) -> State:
    """The inverse of `take_apart`."""
    return unflatten(skeleton, _in_order(skeleton, iter(tensors), iter(numbers)))


def _in_order(skeleton: Any, tensors: Iterator[Any], numbers: Iterator[Any]) -> Iterator[Any]:
    for _, kind in paths(skeleton):
        yield next(tensors if kind in KINDS else numbers)


def joins(optimizer: SimpleOptimizer) -> bool:
    """Can this optimizer step several tensors at once?"""
    return optimizer.elementwise or type(optimizer).kernel is not SimpleOptimizer.kernel


def slot_of(number: int, job: Job, before: Slot | None) -> Slot | None:
    """How it is stepped with others, if it can be: all of one plain backend and shape, and no tracers."""
    backend, work = job.place.backend, job.work
    skeleton, tensors, numbers = take_apart(unmastered(job.state))
    if not all(isinstance(number, (int, float)) for number in numbers):
        return None
    if backend.inner is not None or not all(
        x.backend is backend and x.shape == work.shape and backend.is_plain(x.primitive)
        for x in (work, job.grad, *tensors)
    ):
        return None
    if before is not None and (before.shape != work.shape or before.form.place != job.place):
        before = None
    known = before.arrays if before is not None and before.mastered else [work.primitive]
    masters = known[:1] if work is not job.value else []
    arrays = [*masters, *[x.primitive for x in tensors]]
    return Slot(Form(number, job.place, skeleton), job, arrays, numbers, before)


class Entry(NamedTuple):
    """A parameter of a step, and its slot."""

    path: str
    param: Param
    slot: Slot
    grad: AnyTensor
    work: Any = None
    """The array to be stepped where it is not the parameter's."""


Run = Callable[[Sequence[Piece]], object]


def planned(
    optimizer: SimpleOptimizer, lr: Any, form: Form, numbers: Numbers, first: Entry
) -> tuple[Run, Numbers] | None:
    """What steps all of a group, and the numbers in their states afterwards; None if they must go one by one."""
    backend, ops = form.place.backend, first.slot.inner
    arrays = first.slot.flats[first.slot.mastered :]

    def state_of(arrays: Sequence[Any]) -> State:
        tensors = [Tensor.from_primitive(array, backend, Float) for array in arrays]
        return put_together(form.skeleton, tensors, numbers)

    kernel = optimizer.kernel(lr, state_of(arrays), backend)
    run = None if kernel is None else backend.kernel(kernel.name, kernel.numbers)
    if kernel is not None and run is not None:
        return run, kernel.after
    if not optimizer.elementwise:
        return None

    def step(arrays: Sequence[Any]) -> tuple[AnyTensor, Skeleton, list[AnyTensor], Numbers]:
        x, grad = (Tensor.from_primitive(array, backend, Float) for array in arrays[:2])
        tensor, after = optimizer.step(lr, x, grad, state_of(arrays[2:]))
        return tensor, *take_apart(after)

    tried = [array[:_TRIED] for array in (_work_of(first, backend), backend.flat(first.grad.primitive), *arrays)]
    tensor, skeleton, tensors, after = step(tried)
    if skeleton != form.skeleton or any(x._ops is not ops or x.shape != tried[0].shape for x in (tensor, *tensors)):  # pyright: ignore[reportPrivateUsage]
        return None

    def work(arrays: list[Any]) -> list[Any]:
        tensor, _, tensors, _ = step(arrays)
        return [tensor.primitive, *[x.primitive for x in tensors]]

    return lambda pieces: backend.in_pieces(work, pieces), after


def _work_of(entry: Entry, backend: Any) -> Any:
    param = entry.param
    return backend.flat(param.backend.strip(param.val().primitive) if entry.work is None else entry.work)

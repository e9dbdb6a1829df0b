"""Many parameters stepped at once, in memory that is the optimizer's own."""

from __future__ import annotations

from typing import Any, NamedTuple

from phlox.backend import Device
from phlox.module import Param
from phlox.optim.simple import SimpleOptimizer, Stepped
from phlox.optim.state import State, flatten
from phlox.tensor import Tensor

LEAST = 1 << 16
"""Elements: fewer are stepped faster one tensor at a time, and new memory for them costs next to nothing."""


class Job(NamedTuple):
    """A parameter to be stepped with others."""

    path: str
    param: Param
    value: Tensor[Any, Any, Any]
    """As it is without a tape,"""
    work: Tensor[Any, Any, Any]
    """and what is stepped: it, or its master."""
    grad: Tensor[Any, Any, Any]
    state: State
    place: Device
    """Where the work, the gradient and the state are."""
    own: bool
    """Whether the tensors of the state are nobody else's."""


def steps_together(optimizer: SimpleOptimizer) -> bool:
    """Does this optimizer have a way to step several tensors at once?"""
    return type(optimizer).step_all is not SimpleOptimizer.step_all


def fits(job: Job) -> bool:
    """Can it be stepped with others: all of one plain backend and shape, and no placeholders? One device they are."""
    leaves: list[Any] = [job.grad]
    flatten(job.state, leaves)
    work = job.work
    backend, shape = work.backend, work.shape
    return backend.inner is None and not any(
        isinstance(leaf, Tensor)
        and (leaf.backend is not backend or leaf.shape != shape or backend.is_traced(leaf.primitive))
        for leaf in [work, *leaves]
    )


def start(optimizer: SimpleOptimizer, lr: Any, jobs: list[Job]) -> Stepped | None:
    """What the step of these jobs will come to, as `SimpleOptimizer.step_all` gives it, if it is worth its while."""
    if sum(job.work.size for job in jobs) < LEAST:
        return None
    return optimizer.step_all(
        lr,
        [job.work for job in jobs],
        [job.grad for job in jobs],
        [job.state for job in jobs],
        [job.own for job in jobs],
    )

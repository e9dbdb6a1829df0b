"""`checkpoint`: less memory for more time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from phlox import random
from phlox.backend import Backend, Float
from phlox.backend.levels import levels, resumed
from phlox.backend.parallel import row_group, rows_of
from phlox.batching import joined
from phlox.errors import AutodiffError
from phlox.module.param import Param, noting_changes, with_old_values
from phlox.other_names import answering
from phlox.tensor.backend_promotion import is_below
from phlox.transform.tree import AnyTensor, map_tensors, tensors_of

P = ParamSpec("P")
R = TypeVar("R")


@answering
def checkpoint(fn: Callable[P, R]) -> Callable[P, R]:
    """Return `fn` without saved values for the backward pass: `backward` calls it again to recompute them.

    Use it for blocks of a network whose intermediate values do not fit into memory; only their inputs are saved. The
    arguments can be anything. The result is tensors, modules or gradients, or lists, tuples and dicts of them. The
    function must compute the same when it is called again. Random draws, also dropout masks, are then the same, and
    running statistics are set only once.

    Gradients flow to the arguments, and to parameters and tensors that the function takes from outside. On an eager
    backend they equal those of `fn` to the last bit. It works under `phlox.compile`, in `phlox.scan`, and inside
    another `checkpoint`.

    Chen, Xu, Zhang, Guestrin 2016: "Training deep nets with sublinear memory cost".

    >>> import phlox as px
    >>> block = px.checkpoint(lambda x: (x.exp() + 1.0).log())
    >>> px.grad(lambda x: block(x).sum())(px.tensor([0.0])).tolist()
    [0.5]
    """

    @wraps(fn)
    def checkpointed(*args: P.args, **kwargs: P.kwargs) -> R:
        arguments = (args, kwargs)
        backend = _highest([x.backend for x in tensors_of(arguments) if x.backend.differentiates])
        if backend is None:
            return fn(*args, **kwargs)
        outer_levels = levels()
        stream, group = random.current(), row_group()
        start = stream.position
        results: list[Any] = []
        changes: dict[Param, AnyTensor] = {}

        def compute(after: Any) -> Sequence[Any]:
            if after is None:
                with noting_changes() as changed:
                    results.append(fn(*args, **kwargs))
                changes.update(changed)
                return [x.primitive for x in _floats(results[0], backend)]
            inputs: Any = map_tensors(lambda x: _after_barrier(x, backend, after), arguments)
            function: Callable[..., R] = fn
            # A module from outside may have changed since: it has its old values here, and changes to it are undone.
            with (
                rows_of(group), random.stream(stream.replay(start)), with_old_values(changes), resumed(outer_levels)
            ):  # fmt: skip
                return [x.primitive for x in _floats(function(*inputs[0], **inputs[1]), backend)]

        arrays = iter(backend.checkpoint(compute))

        def checkpointed_tensor(x: AnyTensor) -> AnyTensor:
            return x._with(next(arrays)) if x.kind is Float and x.backend is backend else x  # pyright: ignore[reportPrivateUsage]

        return map_tensors(checkpointed_tensor, results.pop())

    return checkpointed


def _highest(backends: list[Backend]) -> Backend | None:
    """The lowest backend that holds tensors of all these backends and the enclosing differentiated functions."""
    if not backends:
        return None
    backend = backends[0]
    for other in (*backends[1:], *(level.backend for level in levels())):
        backend = joined(backend, other) or backend
    return backend


def _floats(result: Any, backend: Backend) -> list[AnyTensor]:
    tensors = tensors_of(result)
    for x in tensors:
        if x.backend is not backend and not is_below(x.backend, backend):
            raise AutodiffError(
                f"checkpoint: the function was given tensors on {backend!r} and returned one on {x.backend!r}; "
                "results must be on the backend of the arguments"
            )
    return [x for x in tensors if x.kind is Float and x.backend is backend]


def _after_barrier(x: AnyTensor, backend: Backend, after: Any) -> AnyTensor:
    if x.backend is not backend:
        if not (x.backend.differentiates and is_below(x.backend, backend)):
            return x
        x = x._on(backend)  # pyright: ignore[reportPrivateUsage]
    return x._with(backend.barrier(x.primitive, after))  # pyright: ignore[reportPrivateUsage]

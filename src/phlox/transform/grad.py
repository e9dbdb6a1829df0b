"""Gradients of functions: the tape in functional dress."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, cast

from phlox.autodiff import Autodiff
from phlox.backend import Backend, Float
from phlox.batching import Batched
from phlox.errors import AutodiffError
from phlox.module import GradientsParams, Module, Param
from phlox.tensor import Tensor
from phlox.tensor.meeting import inside
from phlox.transform.containers import AnyTensor, map_tensors


def value_and_grad(fn: Callable[..., Any]) -> Callable[..., tuple[Any, Any]]:
    """A function that returns `fn`'s value together with its gradient towards the first argument.

    The first argument is a module on a device with a tape (the gradient is then a `GradientsParams`) or a Float tensor
    (the gradient is a tensor on the inner backend; a tensor without a tape is given one). `fn` returns one number as a
    tensor, or a tuple whose first entry is that; the rest is passed on. Raises `AutodiffError` for anything else.

    Inside `phlox.vmap` the gradient is that of one example; modules without a tape are given one there.

    >>> import phlox as px
    >>> value, gradient = value_and_grad(lambda x: x.square().sum())(px.tensor([1.0, 2.0]))
    >>> value.item(), gradient.tolist()
    (5.0, [2.0, 4.0])
    """

    @wraps(fn, updated=())
    def evaluate(target: Any, *arguments: Any, **options: Any) -> tuple[Any, Any]:
        if isinstance(target, Tensor):
            given = inside(cast("AnyTensor", target))
            if isinstance(given.backend, Batched):
                return _tensor_of_a_batch(lambda leaf: fn(leaf, *arguments, **options), given)
            # One that another tape follows must not lose it: the gradient's own derivative may be asked for.
            follows = given.backend.differentiates and not given.is_require_grad()
            leaf = (given if follows else Tensor.from_inner(given)).require_grad()
            value = fn(leaf, *arguments, **options)
            return value, leaf.grad(_loss(value).backward())
        if not isinstance(target, Module):
            raise AutodiffError(
                f"value_and_grad: the first argument must be a module or a tensor, got {type(target).__name__}"
            )
        taped, twins = with_tape_inside(target)
        value = fn(taped, *arguments, **options)
        gradients = GradientsParams.from_grads(_loss(value).backward(), taped)
        if taped is target:
            return value, gradients
        for param, twin, before in twins:
            if twin.val() is not before:  # set, as running statistics are
                param.set(_down(twin.val()))
        # Off the tape below too, for which the one above stood.
        return map_tensors(_down, value), map_tensors(Tensor.inner, gradients)

    return evaluate


def _loss(value: Any) -> Tensor[Any, Any, Any]:
    if isinstance(value, tuple) and value:
        value = cast("tuple[Any, ...]", value)[0]
    if not isinstance(value, Tensor):
        got = type(cast("object", value)).__name__
        raise AutodiffError(f"value_and_grad: the function must return a tensor, got {got}")
    found = cast("Tensor[Any, Any, Any]", value)
    if not found.backend.differentiates:
        raise AutodiffError(
            f"value_and_grad: the result is on {found.backend!r}, which records no tape; "
            "move the module there: model.train()"
        )
    return found


def grad(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function that returns the gradient of `fn` towards its first argument; see `value_and_grad`."""
    both = value_and_grad(fn)

    @wraps(fn, updated=())
    def evaluate(target: Any, *arguments: Any, **options: Any) -> Any:
        return both(target, *arguments, **options)[1]

    return evaluate


# --- inside a batch: a tape of the example's own, above the batch


def above(x: AnyTensor) -> AnyTensor:
    """A tensor of a batch as a constant on a tape above the batch.

    There is a tape below too, so that what is on one outside can be met.
    """
    base = _with_tape_below(x.backend)
    return Tensor.from_inner(x if base is x.backend else x._on(base))  # pyright: ignore[reportPrivateUsage]


def _with_tape_below(backend: Backend) -> Backend:
    if backend.differentiates:
        return backend
    return Batched(_with_tape_below(backend.inner)) if isinstance(backend, Batched) else Autodiff(backend)


def _down(x: AnyTensor) -> AnyTensor:
    """Off the tape that `above` has put a tensor on."""
    backend = x.backend
    return x.inner() if isinstance(backend, Autodiff) and isinstance(backend.inner, Batched) else x


def _tensor_of_a_batch(fn: Callable[[AnyTensor], Any], given: AnyTensor) -> tuple[Any, AnyTensor | None]:
    leaf = above(given).require_grad()
    value = fn(leaf)
    gradient = leaf.grad(_loss(value).backward())
    if gradient is not None and not given.is_require_grad():
        gradient = gradient.inner()  # as outside of a batch, where the tape that ends is the tensor's own
    return map_tensors(_down, value), gradient


def with_tape_inside(module: Module) -> tuple[Module, list[tuple[Param, Param, AnyTensor]]]:
    """Inside `phlox.vmap`, the module with a tape above the batch in place of its own; elsewhere, the module itself.

    And the parameters, with what stands in the place of each, and its value.
    """
    twins: list[tuple[Param, Param, AnyTensor]] = []
    if not any(isinstance(inside(param.val()).backend, Batched) for param in module.params()):
        return module, twins

    def taped(path: str, param: Param) -> Param:
        value = inside(param.val())
        if not isinstance(value.backend, Batched):
            return param
        if value.backend.differentiates:
            value = value.inner()._on(value.backend)
        leaf = above(value)
        twin = param.around(leaf.require_grad() if param.trained and value.kind is Float else leaf)
        twins.append((param, twin, twin.val()))
        return twin

    return module.map(taped), twins

"""`custom_gradient`: a function with its own derivative."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any, TypeAlias, cast

from phlox.backend import Backend, Float
from phlox.backend.levels import Level, depth, has_history, levels, resumed
from phlox.batching import Batched, Frame, entered, innermost
from phlox.errors import AutodiffError, ShapeError
from phlox.tensor import Tensor
from phlox.tensor.backend_promotion import is_below, promote
from phlox.transform.tree import AnyTensor

Backward: TypeAlias = Callable[..., Any]
"""`(g, ...)`: one gradient for each result; returns the gradient, or a tuple of them, towards the Float arguments."""


class custom_gradient:
    """Decorate a function of tensors that defines its own derivative.

    The function returns a pair: its result, and a backward function. The result is one Float tensor or a tuple of them.
    The backward function takes the gradient of each result. It returns the gradient with respect to each Float tensor
    among the arguments, in order: None means zero, and a single gradient needs no tuple. Tensors to differentiate must
    be arguments, not variables from outside. Other arguments are passed unchanged.

    Both functions run on the inner backend, without a tape. With two tapes, both are themselves differentiated, which
    gives second derivatives. On a backend without a tape, the backward function is ignored.

    Raises `AutodiffError` if the function does not return a pair or the number of gradients is wrong, `ShapeError` if a
    gradient has the wrong shape.

    >>> import phlox as px
    >>> @px.custom_gradient
    ... def bounded(x):
    ...     return x, lambda g: g.clip(-1.0, 1.0)
    >>> px.grad(lambda x: (bounded(x) * 7.0).sum())(px.tensor([1.0, 2.0])).tolist()
    [1.0, 1.0]
    """

    def __init__(self, fn: Callable[..., tuple[Any, Backward]]) -> None:
        self.fn = fn
        update_wrapper(self, fn)

    @property
    def name(self) -> str:
        """The name of the function in error messages."""
        return getattr(self.fn, "__qualname__", repr(self.fn))

    def __get__(self, instance: Any, owner: type[Any] | None = None) -> Any:
        if instance is None:
            return self
        return custom_gradient(self.fn.__get__(instance, owner))

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        tensors = [cast("AnyTensor", x) for x in arguments if isinstance(x, Tensor)]
        if not any(has_history(x.backend, x.primitive) for x in tensors):
            return self._call(arguments, options)[0]
        common = promote(self.name, tensors)
        while not any(x.is_require_grad() for x in common):  # tapes above that track none of them
            common = [x.inner() for x in common]
        promoted = iter(common)
        arguments = tuple(next(promoted) if isinstance(x, Tensor) else x for x in arguments)
        backend: Backend = common[0].backend
        view = _View.of(self.name, backend)
        inside = view.inside
        positions = [i for i, x in enumerate(arguments) if isinstance(x, Tensor) and x.kind is Float]
        inner_arguments: list[Any] = [x.inner() if isinstance(x, Tensor) else x for x in arguments]
        operands = [inner_arguments[i] for i in positions]
        is_single: list[bool] = []
        outputs: list[AnyTensor] = []

        def run(*values: Any) -> tuple[tuple[Any, ...], Any]:
            with resumed(view.outer_levels):
                result, backward = self._call(inner_arguments, options)
            is_single.append(not isinstance(result, tuple))
            returned = cast("tuple[AnyTensor, ...]", result if isinstance(result, tuple) else (result,))
            outputs.extend(x._on(inside) if is_below(x.backend, inside) else x for x in returned)  # pyright: ignore[reportPrivateUsage]
            for x in outputs:
                if x.backend is not inside or x.kind is not Float:
                    raise AutodiffError(
                        f"{self.name}: its results must be Float tensors made of its arguments, which are on "
                        f"{inside!r} inside; got {x.kind.__name__} on {x.backend!r}"
                    )
            return tuple(view.unbox(x.primitive) for x in outputs), (backward, tuple(outputs))

        def differentiate(inner: Any, saved: Any, gs: tuple[Any, ...], needed: Any) -> tuple[Any, ...]:
            backward, results = saved
            with view.reenter(), resumed(view.outer_levels):
                pairs = zip(results, gs, strict=True)
                filled = [x * 0.0 if g is None else x._with(view.box_like(g, x.primitive)) for x, g in pairs]
                gradients = self._gradients(backward(*filled), operands)
            with_operands = zip(gradients, operands, strict=True)
            return tuple(None if g is None else view.gradient_for(g, x.primitive, results) for g, x in with_operands)

        operand_arrays = tuple(view.unbox(arguments[i].primitive) for i in positions)
        results = view.tape.tape_function(operand_arrays, run, differentiate)
        pairs = zip(results, outputs, strict=True)
        wrapped = tuple(Tensor.from_primitive(view.box_like(y, x.primitive), backend, Float) for y, x in pairs)
        return wrapped[0] if is_single[0] else wrapped

    def _call(self, arguments: Any, options: dict[str, Any]) -> tuple[Any, Backward]:
        pair: Any = self.fn(*arguments, **options)
        parts = cast("tuple[Any, ...]", pair) if isinstance(pair, tuple) else ()
        if len(parts) != 2 or not callable(parts[1]):
            raise AutodiffError(
                f"{self.name}: a function with a custom gradient returns a pair, its result and a function from the "
                "gradient of the result to the gradients of the arguments"
            )
        return parts[0], parts[1]

    def _gradients(self, returned: Any, operands: list[AnyTensor]) -> tuple[Any, ...]:
        gradients = cast("tuple[AnyTensor | None, ...]", returned if isinstance(returned, tuple) else (returned,))
        if len(gradients) != len(operands):
            raise AutodiffError(
                f"{self.name}: its backward function returned {len(gradients)} gradients for {len(operands)} Float "
                "arguments; return one for each, or None"
            )
        for position, (gradient, x) in enumerate(zip(gradients, operands, strict=True)):
            if gradient is not None and gradient.shape != x.shape:
                raise ShapeError(
                    f"{self.name}: the gradient towards Float argument {position} has shape {gradient.shape}, "
                    f"but the argument has shape {x.shape}"
                )
        return tuple(None if gradient is None else gradient.primitive for gradient in gradients)


@dataclass(frozen=True)
class _View:
    """The backends of a function and of the tape below it; inside `phlox.vmap`, the tape sees all examples."""

    tape: Backend
    """The backend of the tape that tracks the arguments."""
    inside: Backend
    """The backend without its tape, on which the function computes."""
    batch: Batched | None
    """The backend, if it is a batch above the tape."""
    frame: Frame | None
    outer_levels: tuple[Level, ...]
    """The enclosing differentiated functions, except those whose tapes record this call as one step."""

    @classmethod
    def of(cls, name: str, backend: Backend) -> _View:
        inside, batch = backend.without_tape(), backend if isinstance(backend, Batched) else None
        tape = backend if batch is None else batch.inner
        if not tape.differentiates or isinstance(tape, Batched):
            raise AutodiffError(
                f"{name}: a custom gradient cannot reach through one phlox.vmap in another to a tape outside; "
                "take the gradient inside: vmap(grad(fn))"
            )
        assert inside is not None
        outer_levels = tuple([level for level in levels() if depth(level.backend) <= depth(inside)])
        return cls(tape, inside, batch, innermost(), outer_levels)

    def reenter(self) -> AbstractContextManager[object]:
        """A scope inside the batch again, for the backward pass, which runs outside of it."""
        return nullcontext() if self.batch is None or self.frame is None else entered(self.frame)

    def unbox(self, x: Any) -> Any:
        """The array of all examples in a boxed array; any other array unchanged."""
        return x if self.batch is None or type(x) is not self.batch.box else x.value

    def box_like(self, x: Any, like: Any) -> Any:
        """The array of all examples in a box, if `like` is boxed; otherwise unchanged."""
        return x if self.batch is None or type(like) is not self.batch.box else self.batch.boxed(x)

    def gradient_for(self, gradient: Any, operand: Any, results: tuple[AnyTensor, ...]) -> Any:
        """The gradient towards an operand; if all examples share the operand, the sum of their gradients."""
        batch = self.batch
        if batch is None or self.frame is None:
            return gradient
        if type(operand) is batch.box:
            return batch.spread(gradient, self.frame.size)
        if all(type(x.primitive) is not batch.box for x in results):
            return gradient
        assert self.tape.inner is not None
        return self.tape.inner.float_sum(batch.spread(gradient, self.frame.size), (0,), False)

"""`custom_gradient`: a function with a derivative of one's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import Any, TypeAlias, cast

from phlox.autodiff import Autodiff
from phlox.autodiff.record import record_several
from phlox.backend import Float
from phlox.errors import AutodiffError, BackendError, ShapeError
from phlox.tensor import Tensor
from phlox.transform.structure import AnyTensor

Backward: TypeAlias = Callable[..., Any]
"""`(g, ...)`: for one gradient a result, the gradient (or the tuple of gradients) towards the Float arguments."""


class custom_gradient:
    """A function of tensors whose derivative is what its author says.

    The function returns its result, one Float tensor or a tuple of them, together with a function that takes the
    gradient of each result and returns the gradient towards each Float tensor among the arguments, in order (None for
    zero; where there is one, no tuple is needed). Both compute on the inner backend, where nothing is recorded; with
    two tapes both are themselves differentiated, and so give second derivatives. On a backend without a tape the
    function is called as it is, and its second result ignored. Arguments other than tensors are passed on; tensors to
    differentiate must be arguments, not taken from outside.

    Raises `AutodiffError` where the function does not return such a pair, or the gradients are not as many as the Float
    arguments, and `ShapeError` for a gradient of the wrong shape.

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
        """What error messages call the function."""
        return getattr(self.fn, "__qualname__", repr(self.fn))

    def __get__(self, instance: Any, owner: type[Any] | None = None) -> Any:
        if instance is None:
            return self
        return custom_gradient(self.fn.__get__(instance, owner))

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        tensors = [cast("AnyTensor", x) for x in arguments if isinstance(x, Tensor)]
        tracked = [x for x in tensors if x.is_require_grad()]
        if not tracked:
            return self._call(arguments, options)[0]
        backend = tracked[0].backend
        assert isinstance(backend, Autodiff)
        for x in tensors:
            if x.backend is not backend:
                raise BackendError(
                    f"{self.name}: the arguments are on different backends, {backend!r} and {x.backend!r}; "
                    "move one of them with .to_device(...)"
                )
        places = [i for i, x in enumerate(arguments) if isinstance(x, Tensor) and x.kind is Float]
        given: list[Any] = [x.inner() if isinstance(x, Tensor) else x for x in arguments]
        alone: list[bool] = []

        def run(*values: Any) -> tuple[tuple[Any, ...], Any]:
            result, backward = self._call(given, options)
            alone.append(not isinstance(result, tuple))
            results = cast("tuple[AnyTensor, ...]", result if isinstance(result, tuple) else (result,))
            for x in results:
                if x.backend is not backend.inner or x.kind is not Float:
                    raise AutodiffError(
                        f"{self.name}: its results must be Float tensors made of its arguments, which are on "
                        f"{backend.inner!r} inside; got {x.kind.__name__} on {x.backend!r}"
                    )
            return tuple(x.primitive for x in results), (backward, results)

        def differentiate(inner: Any, saved: Any, gs: tuple[Any, ...], needed: Any) -> tuple[Any, ...]:
            backward, results = saved
            filled = [x * 0.0 if g is None else x._with(g) for x, g in zip(results, gs, strict=True)]
            return self._gradients(backward(*filled), [given[i] for i in places])

        operands = tuple(arguments[i].primitive for i in places)
        results = record_several(backend.inner, backend.box, operands, run, differentiate)
        wrapped = tuple(Tensor.from_primitive(x, backend, Float) for x in results)
        return wrapped[0] if alone[0] else wrapped

    def _call(self, arguments: Any, options: dict[str, Any]) -> tuple[Any, Backward]:
        pair: Any = self.fn(*arguments, **options)
        parts = cast("tuple[Any, ...]", pair) if isinstance(pair, tuple) else ()
        if len(parts) != 2 or not callable(parts[1]):
            raise AutodiffError(
                f"{self.name}: a function with a custom gradient returns a pair, its result and a function from the "
                "gradient of the result to those of the arguments"
            )
        return parts[0], parts[1]

    def _gradients(self, found: Any, operands: list[AnyTensor]) -> tuple[Any, ...]:
        given = cast("tuple[AnyTensor | None, ...]", found if isinstance(found, tuple) else (found,))
        if len(given) != len(operands):
            raise AutodiffError(
                f"{self.name}: its backward function returned {len(given)} gradients for {len(operands)} Float "
                "arguments; return one for each, or None"
            )
        for place, (gradient, x) in enumerate(zip(given, operands, strict=True)):
            if gradient is not None and gradient.shape != x.shape:
                raise ShapeError(
                    f"{self.name}: the gradient towards Float argument {place} has shape {gradient.shape}, "
                    f"but the argument has shape {x.shape}"
                )
        return tuple(None if gradient is None else gradient.primitive for gradient in given)

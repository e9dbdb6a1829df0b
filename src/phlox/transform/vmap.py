"""`vmap`: a function of one example, vectorised over a batch."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from operator import index
from typing import Any, TypeAlias, cast, get_args

from phlox.backend import Backend
from phlox.batching import Batched, Frame, Randomness, entered, innermost, joined
from phlox.errors import AutodiffError, BackendError, KindError, RangeError, ShapeError, UnsupportedError
from phlox.module import Module, Param
from phlox.other_names import answering
from phlox.tensor import Tensor
from phlox.transform.tree import AnyTensor, map_parts, parts_of, with_parts

_Axis: TypeAlias = int | None
"""None is no axis: the same for all examples."""


@answering
def vmap(
    fn: Callable[..., Any], in_axes: Any = 0, out_axes: Any = 0, *, randomness: Randomness = "different"
) -> Callable[..., Any]:
    """Vectorise `fn`, a function of one example, into a function of a batch of examples.

    The result equals the stacked results of a loop. But every operation runs once, on the whole batch; only
    foreign functions (`phlox.lift`) run once per example. It works on every backend, on tapes, under `phlox.compile`
    and inside another `vmap`; `vmap(grad(loss))` gives the gradient of each example. If `fn` sets batched parameters
    (running statistics), they have the new values after the call.

    Args:
        fn: a function of tensors, modules, `GradientsParams`, and lists, tuples and dicts of these; anything else is
            passed unchanged. It sees one example, without the batch axis.
        in_axes: the batch axis of the arguments: an integer, None for an argument that all examples share, or a tuple
            with one entry per positional argument. An entry can be a list, tuple or dict like its argument. For a
            module it is an axis of every parameter (see `phlox.stack_modules`). Keyword arguments have batch axis 0.
        out_axes: the batch axis of the results, in the same form. A result that does not depend on the example is
            repeated, or, with None, returned once.
        randomness: whether random draws are "different" for every example, or the "same". Either way a draw is one draw
            of the ambient stream for all examples, bit-identical on every backend.

    Raises `ShapeError` if batch sizes differ, if an axis does not exist, or if axes do not fit the structure;
    `UnsupportedError` if `fn` reads the value of a batched tensor; `ModuleError` if it sets a batched value into a
    parameter that all examples share.

    >>> import phlox as px
    >>> x, w = px.tensor([[1.0, 2.0], [3.0, 4.0]]), px.tensor([1.0, 10.0])
    >>> px.vmap(lambda x, w: (x * w).sum(), in_axes=(0, None))(x, w).tolist()
    [21.0, 43.0]
    """
    if not callable(fn):
        raise KindError(f"vmap: takes a function, got {type(fn).__name__}")
    if randomness not in get_args(Randomness):
        raise RangeError(f"vmap: randomness is 'different' or 'same', got {randomness!r}")

    names = _Names.of(fn)

    @wraps(fn, updated=())
    def batched(*args: Any, **kwargs: Any) -> Any:
        call = _Call(names, args, kwargs, in_axes)
        with entered(Frame(call.backend, call.size, randomness)):
            result = fn(*call.args, **call.kwargs)
        call.write_back()
        return _AxisWalk("out_axes", call.unbatch).over(result, out_axes, "the result")

    return batched


@dataclass(frozen=True, slots=True)
class _Names:
    """The names of a function and its positional arguments in messages."""

    function: str
    positional: tuple[str, ...]

    @classmethod
    def of(cls, fn: Callable[..., Any]) -> _Names:
        try:
            parameters = inspect.signature(fn).parameters.values()
        except (TypeError, ValueError):  # the function is not written in Python
            parameters = ()
        named = tuple([p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)])
        return cls(getattr(fn, "__qualname__", None) or type(fn).__name__, named)

    def argument(self, position: int) -> str:
        return f"argument `{self.positional[position]}`" if position < len(self.positional) else f"argument {position}"


class _Call:
    """One call: its arguments as one example sees them, and the way of its results out of the batch."""

    def __init__(self, names: _Names, args: tuple[Any, ...], kwargs: dict[str, Any], in_axes: Any) -> None:
        axes: list[Any] = [in_axes] * len(args)
        if isinstance(in_axes, (list, tuple)):
            axes = list(cast("list[Any]", in_axes))
            if len(axes) != len(args):
                raise ShapeError(
                    f"vmap: in_axes is {in_axes!r} and {names.function} was called with {len(args)} positional "
                    "arguments; give one entry an argument, or one axis for all"
                )
        paths = [*map(names.argument, range(len(args))), *(f"argument `{key}`" for key in kwargs)]
        arguments = list(zip((*args, *kwargs.values()), (*axes, *(0 for _ in kwargs)), paths, strict=True))

        frame = innermost()
        self.base: Backend | None = None if frame is None else frame.backend
        self.first: tuple[int, str] | None = None
        measure = _AxisWalk("in_axes", self._measure)
        for value, axis, path in arguments:
            measure.over(value, axis, path)
        if self.first is None or self.base is None:
            raise ShapeError(
                f"vmap: no argument of {names.function} has a batch: at least one must be, or hold, a tensor or a "
                "module whose entry in in_axes is an axis"
            )
        self.size = self.first[0]
        self.backend = Batched(self.base)
        self._params: list[tuple[Param, Param, AnyTensor, _Axis, str]] = []
        enter = _AxisWalk("in_axes", self._enter, self._remember)
        lifted = [enter.over(value, axis, path) for value, axis, path in arguments]
        self.args = tuple(lifted[: len(args)])
        self.kwargs = dict(zip(kwargs, lifted[len(args) :], strict=True))

    # --- into the batch

    def _measure(self, x: AnyTensor, axis: _Axis, path: str) -> AnyTensor:
        """Find the size of the batch, and the backend that combines all arguments."""
        if axis is not None:
            if not -x.ndim <= axis < x.ndim:
                raise ShapeError(f"vmap: {path} of shape {x.shape} has no axis {axis} to be the batch; see in_axes")
            size = x.shape[axis]
            if self.first is None:
                self.first = size, path
            elif self.first[0] != size:
                raise ShapeError(
                    f"vmap: the batch is of size {self.first[0]} in {self.first[1]} and of size {size} in {path} "
                    f"(axis {axis} of shape {x.shape}); give None in in_axes for what all examples share"
                )
        base = x.backend if self.base is None else joined(self.base, x.backend)
        if base is not None:
            self.base = base
        elif axis is not None:
            raise BackendError(
                f"vmap: {path} is on {x.backend!r}, and earlier arguments are on {self.base!r}; "
                "move one of them with .to_device(...)"
            )
        return x

    def _enter(self, x: AnyTensor, axis: _Axis, path: str) -> AnyTensor:
        """The tensor as one example sees it."""
        backend = self.backend
        if axis is None:
            meets = joined(x.backend, backend) is backend
            return x._on(backend) if meets else x  # pyright: ignore[reportPrivateUsage]
        return Tensor.from_primitive(backend.boxed(backend.moved(x.primitive, axis % x.ndim, 0)), backend, x.kind)

    def _remember(self, param: Param, twin: Param, axis: _Axis, path: str) -> None:
        self._params.append((param, twin, twin.val(), axis, path))

    # --- out of the batch

    def unbatch(self, x: AnyTensor, axis: _Axis, path: str) -> AnyTensor:
        """A result with the values of all examples."""
        level = self.backend.batched
        backend: Backend = x.backend
        value, is_batched = x.primitive, False
        if backend.batched > level:
            raise UnsupportedError(
                f"vmap: {path}, of shape {x.shape}, is one example inside another vmap that has ended"
            )
        if backend.batched == level:
            if not isinstance(backend, Batched):
                raise AutodiffError(
                    f"vmap: {path}, of shape {x.shape}, has a tape inside the batch, which ends with the call; "
                    "return it with .inner()"
                )
            is_batched = type(value) is backend.box
            value = value.value if is_batched else value
            backend = backend.inner
        if axis is None:
            if is_batched:
                raise ShapeError(
                    f"vmap: {path}, of shape {x.shape}, differs from example to example, but out_axes says None, which "
                    "means that all share it; give it an axis"
                )
            return Tensor.from_primitive(value, backend, x.kind)
        rank = x.ndim
        if not -rank - 1 <= axis <= rank:
            raise ShapeError(f"vmap: {path} of shape {x.shape} can have no axis {axis} for the batch; see out_axes")
        if not is_batched:
            value = backend.broadcast_to(value, (self.size, *x.shape))
        position = axis % (rank + 1)
        if position:
            value = backend.permute_dims(value, (*range(1, position + 1), 0, *range(position + 1, rank + 1)))
        return Tensor.from_primitive(value, backend, x.kind)

    def write_back(self) -> None:
        """Copy values that were set into parameters (running statistics) to the parameters of the arguments."""
        for param, twin, before, axis, path in self._params:
            if twin.val() is not before:
                param.set(self.unbatch(twin.val(), axis, path))


# --- trees of arguments or results, with the axis of the batch


@dataclass(frozen=True, slots=True)
class _AxisWalk:
    """A walk over a structure and its axes: one axis, or a list, tuple or dict of axes for its parts."""

    option: str
    """The option of `vmap` that gave the axes."""
    visit: Callable[[AnyTensor, _Axis, str], AnyTensor]
    """`(tensor, axis, path)` returns the replacement of the tensor."""
    on_param: Callable[[Param, Param, _Axis, str], None] | None = None
    """`(param, twin, axis, path)`: called for each parameter and the parameter that replaces it."""

    def over(self, value: Any, axes: Any, path: str) -> Any:
        """The same structure around the results of `visit`. Raises `ShapeError` if the axes do not fit it."""
        if isinstance(axes, (list, tuple, dict)):
            parts, axes_by_label = parts_of(value) or [], dict(parts_of(cast("Any", axes)) or [])
            if {label for label, _ in parts} != axes_by_label.keys() or parts_of(value) is None:
                raise self._misfit(cast("Any", axes), value, path)
            return with_parts(value, [self.over(part, axes_by_label[label], path + label) for label, part in parts])
        if axes is not None:
            try:
                axes = index(axes)
            except TypeError:
                raise KindError(
                    f"vmap: {self.option} for {path} must be an integer, None, or a list, tuple or dict of these, "
                    f"got {axes!r}"
                ) from None
        return self._with_one_axis(value, axes, path)

    def _with_one_axis(self, value: Any, axis: _Axis, path: str) -> Any:
        """The same structure, with one axis for every tensor in it."""
        if isinstance(value, Tensor):
            return self.visit(cast("AnyTensor", value), axis, path)
        if isinstance(value, Module):
            return value.map(lambda name, param: self._param(param, axis, f"{path}, parameter `{name}`"))
        return map_parts(lambda part, below: self._with_one_axis(part, axis, below), value, path)

    def _param(self, param: Param, axis: _Axis, path: str) -> Param:
        twin = param.around(self.visit(param.val(), axis, path))
        if self.on_param is not None:
            self.on_param(param, twin, axis, path)
        return twin

    def _misfit(self, axes: Any, value: Any, path: str) -> ShapeError:
        return ShapeError(f"vmap: {self.option} is {axes!r} for {path}, which is {_described(value)}; make them alike")


def _described(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"a {type(cast('object', value)).__name__} of {len(cast('list[Any]', value))}"
    if isinstance(value, dict):
        return f"a dict with the keys {list(cast('dict[Any, Any]', value))}"
    if isinstance(value, Tensor):
        return f"a tensor of shape {value.shape}"
    return f"a {type(value).__name__}"

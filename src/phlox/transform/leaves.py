"""The leaves of a differentiated function: the Float tensors and trained parameters in its arguments.

Differentiated functions nest. Each has its own tape level above those of the functions around it. So the history of an
inner gradient stays on the tapes below, where the outer gradient uses it. If history would be lost, an error is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import index
from typing import Any, cast

from phlox.backend import Backend, Float
from phlox.backend.levels import Level, depth, levels
from phlox.backend.parallel import row_group
from phlox.batching import Batched, joined
from phlox.errors import AutodiffError, KindError, ShapeError
from phlox.module import GradientsParams, Module, Param, ParamId
from phlox.module.gradients import of_rows
from phlox.tensor import Gradients, Tensor, zeros_like
from phlox.tensor.backend_promotion import on_vmap_backend
from phlox.transform.tree import AnyTensor, leaves_of, map_parts, map_tensors


@dataclass(slots=True)
class _Entry:
    """A tensor or a trained parameter, and the leaf that replaces it."""

    original: AnyTensor
    leaf: AnyTensor
    least: int
    """The least number of tapes of its gradient: the original's tapes, except a tape that ends with this gradient."""
    below_tape: bool = False
    """Is the gradient always on the backend below its own tape?"""


class Leaves:
    """The leaves of one differentiated function.

    Args:
        name: the name of the transformation, for messages.
        inputs: tensors and modules, or lists, tuples, dicts and dataclasses of them.
        above: the number of levels to add above the levels of the inputs and of the functions around this one.
        at: the level, if it is known already.
        ends: whether the gradient of a tensor on a tape that does not track it is on the backend below that tape, like
            the gradient of a parameter.

    If no function is differentiated around this one, the gradient of a module whose parameters are leaves of a tape has
    no history, as with `backward()`. If all arguments are such modules, their parameters are the leaves.

    Raises `KindError` for an Int or Bool tensor, `AutodiffError` if there is nothing to differentiate.
    """

    def __init__(self, name: str, inputs: Any, *, above: int = 1, at: int | None = None, ends: bool = False) -> None:
        self.name, self._below_tape, self._averages = name, ends, False
        self.inputs = inputs
        self._tensors: list[_Entry] = []
        self._params: dict[Param, _Entry] = {}
        self._twins: dict[Param, tuple[Param, AnyTensor]] = {}
        outer = levels()
        modules = _modules(inputs)
        self.has_modules = bool(modules)
        tensors: list[AnyTensor] = [tensor for _, tensor in leaves_of(inputs, Tensor)]
        if not modules and not tensors:
            got = type(inputs).__name__
            raise AutodiffError(f"{name}: the argument must be a module or a tensor, or hold some; got {got}")
        self._only_modules = not tensors
        self._in_place = self._only_modules and above == 1 and at is None and not outer and all(map(_has_tape, modules))
        params = [param for module in modules for param in module.params()]
        if self._in_place:
            self.depth = max((depth(param.backend) for param in params if param.trained), default=1)
        else:
            if modules and not outer and not any(_is_batched(param) for param in params):
                self._check_modes(params)
            bases = [self._base(x) for x in (*tensors, *(param.val() for param in params))]
            # At least one tape lies below, because the function may use a module whose parameters are leaves there.
            self.depth = max(1, *map(depth, bases)) + above if at is None else at
        self.backend: Backend | None = None
        self.structure = self._replace(inputs, "")
        if self.backend is None:
            raise AutodiffError(f"{name}: the module has no parameter that is trained; see Module.freeze and unfreeze")

    # --- from the inputs to the leaves

    def _check_modes(self, params: list[Param]) -> None:
        """A module without a tape is in evaluation mode; a tape would put it into training mode without a request."""
        if not any(param.backend.differentiates for param in params):
            engine = params[0].backend if params else "no device"
            raise AutodiffError(
                f"{self.name}: the module is on {engine!r}, which records no tape; move the module there: model.train()"
            )

    def _base(self, x: AnyTensor) -> Backend:
        """The lowest backend that combines a tensor with the batch and the derivatives around this code."""
        backend: Backend = on_vmap_backend(x).backend
        for level in levels():
            backend = joined(backend, level.backend) or backend
        return backend

    def _lift(self, x: AnyTensor) -> AnyTensor:
        """A tensor as a constant on this level; it keeps its history on the tapes below."""
        base = self._base(x)
        if not depth(base):  # a tape below too, for tensors from outside that are on one
            base = _with_tape_below(base)
        while depth(base) < self.depth:
            base = base.with_autodiff()
        return x._on(base) if x.backend is not base else x  # pyright: ignore[reportPrivateUsage]

    def _make_leaf(self, x: AnyTensor) -> AnyTensor:
        leaf = self._lift(x).require_grad()
        if self.backend is None:
            self.backend = leaf.backend
        return leaf

    def _replace(self, value: Any, path: str) -> Any:
        if isinstance(value, Tensor):
            return self._replace_tensor(cast("AnyTensor", value), path)
        if isinstance(value, Module):
            if not self._in_place:
                return value.map(lambda _, param: self._twin(param))
            if self.backend is None:
                trained = next((param for param in value.params() if param.trained), None)
                self.backend = None if trained is None else trained.backend
            return value
        return map_parts(self._replace, value, path)

    def _replace_tensor(self, x: AnyTensor, path: str) -> AnyTensor:
        if x.kind is not Float:
            raise KindError(
                f"{self.name}: {path and f'{path}: '}{x.kind.__name__} tensors have no derivatives; "
                "convert with .float() first"
            )
        least = depth(x.backend) - (self._below_tape and x.backend.differentiates and not x.is_require_grad())
        self._tensors.append(_Entry(x, self._make_leaf(x), least))
        return self._tensors[-1].leaf

    def _twin(self, param: Param) -> Param:
        """The parameter around a leaf of this level."""
        if param not in self._twins:
            value = param.val()
            # Its own tape ends with the gradient, unless a differentiated function around this one needs the history.
            below_tape = not levels() and _is_own_leaf(value)
            original = value.detach() if below_tape and self._only_modules else value
            leaf = self._lift(original)
            if param.trained and value.kind is Float:
                leaf = self._make_leaf(original)
                least = depth(value.backend) - value.backend.differentiates
                self._params[param] = _Entry(original, leaf, least, below_tape)
            twin = param.around(leaf)
            self._twins[param] = twin, twin.val()
        return self._twins[param][0]

    @property
    def level(self) -> Level:
        """The level to enter while the function runs."""
        assert self.backend is not None
        return Level(self.backend, self._node_ids)

    def _node_ids(self) -> set[int]:
        return {_node_id(entry.leaf) for entry in self.entries()}

    # --- from the results to the gradients

    def root(self, y: AnyTensor) -> AnyTensor | None:
        """A result on this level; None if it depends on no leaf.

        Raises `AutodiffError` if it depends on a tape above, which was started inside the function.
        """
        while depth(y.backend) > self.depth:
            if y.is_require_grad():
                raise AutodiffError(
                    f"{self.name}: the result depends on a leaf of {y.backend!r}, above the tape of this derivative "
                    f"({self.backend!r}), and its history would be lost; use phlox.grad for the "
                    "inner derivative, or .detach()"
                )
            y = y.inner()
        return y if depth(y.backend) == self.depth and y.is_require_grad() else None

    def backward(self, root: AnyTensor, *, retain: bool = False) -> Gradients:
        """The gradients of a result on this level."""
        gradients = root.backward(retain_graph=retain)
        if not self._in_place and not gradients.found.keys() <= self._node_ids():
            raise AutodiffError(
                f"{self.name}: the result also depends on leaves on {root.backend!r} that are not its arguments, and "
                "the gradient would lose that history; give the arguments of the inner function on "
                f"{root.backend.with_autodiff()!r}, or .detach() the others"
            )
        return gradients

    def gradient(self, entry: _Entry, gradients: Gradients | None) -> AnyTensor | None:
        """The gradient of a leaf, without the tapes that do not track it."""
        gradient = None if gradients is None else entry.leaf.grad(gradients)
        if gradient is not None and entry.below_tape:
            while depth(gradient.backend) > entry.least:
                gradient = gradient.detach().inner()
        return None if gradient is None else strip_tapes(gradient, entry.least)

    def zeros(self, entry: _Entry) -> AnyTensor:
        """The gradient if the result does not depend on the leaf."""
        return strip_tapes(zeros_like(entry.original), entry.least)

    def _with_gradients(
        self, value: Any, entries: Iterator[_Entry], grad_of: Callable[[_Entry], AnyTensor | None], zeros: bool
    ) -> Any:
        # A method, because a recursive inner function would keep its variables until the next garbage collection.
        if isinstance(value, Tensor):
            entry = next(entries)
            gradient = grad_of(entry)
            return self.zeros(entry) if gradient is None else gradient
        if isinstance(value, Module):
            by_id: dict[ParamId, AnyTensor] = {}
            for param in value.params():
                entry = self._params.get(param)
                gradient = None if entry is None else grad_of(entry)
                if entry is not None and (gradient is not None or zeros):
                    by_id[param.id] = self.zeros(entry) if gradient is None else gradient
            return of_rows(by_id, value) if self._averages else GradientsParams(by_id)
        return map_parts(lambda part, _: self._with_gradients(part, entries, grad_of, zeros), value, "")

    def collect(self, gradients: Gradients | None, *, zeros: bool = False, averages: bool = False) -> Any:
        """The gradients in the structure of the arguments, with `GradientsParams` for each module.

        A missing gradient of a tensor is zeros. A missing gradient of a parameter is left out, unless `zeros`. With
        `averages`, gradients of modules are the mean over the processes that compute on the rows of one batch.
        """
        self.entries()
        self._averages = averages and row_group() is not None
        grad_of = partial(self.gradient, gradients=gradients)
        return self._with_gradients(self.inputs, iter(self._tensors), grad_of, zeros)

    def entries(self) -> list[_Entry]:
        """All leaves. Call it after the function, because the function may create deferred parameters."""
        if self._in_place:
            for module in _modules(self.inputs):
                for param in module.params():
                    if param.trained and param.is_initialized and param.backend.differentiates:
                        value = param.val()
                        self._params[param] = _Entry(value, value, depth(value.backend) - 1)
        return [*self._tensors, *self._params.values()]

    def down(self, value: Any) -> Any:
        """A result without this level, and without the tapes below that neither track it nor hold an input."""
        if self._in_place:
            return value
        least = max(depth(entry.original.backend) for entry in self.entries())

        def strip(x: AnyTensor) -> AnyTensor:
            while depth(x.backend) >= self.depth:
                if depth(x.backend) > self.depth and x.is_require_grad():
                    self.root(x)
                x = x.inner()
            return strip_tapes(x, least)

        return map_tensors(strip, value)

    def write_back(self) -> None:
        """Copy values that were set into parameters (running statistics) to the parameters of the arguments."""
        for param, (twin, before) in self._twins.items():
            if twin.val() is not before:
                param.set(self.down(twin.val()))


def strip_tapes(x: AnyTensor, least: int) -> AnyTensor:
    """A tensor without the tapes that do not track it, except the lowest `least`."""
    while depth(x.backend) > least and not x.is_require_grad():
        x = x.inner()
    return x


def select_arguments(
    name: str, argnums: int | Sequence[int], arguments: tuple[Any, ...]
) -> tuple[Any, Callable[[Any], list[Any]]]:
    """The arguments to differentiate, and a function that replaces them.

    Raises `AutodiffError` if there is no positional argument with such an index.
    """
    is_tuple = isinstance(argnums, (tuple, list))
    numbers: list[int] = []
    for number in cast("Sequence[Any]", argnums) if is_tuple else cast("tuple[Any]", (argnums,)):
        try:
            position = index(number)
        except TypeError:
            raise KindError(
                f"{name}: argnums is the index of a positional argument or a tuple of indices, got {argnums!r}"
            ) from None
        if not -len(arguments) <= position < len(arguments):
            raise AutodiffError(
                f"{name}: argnums is {argnums!r}, and the function was called with {len(arguments)} positional "
                "arguments; pass the arguments of the derivative by position"
            )
        numbers.append(position % len(arguments))

    def replace(others: Any) -> list[Any]:
        replaced = list(arguments)
        for number, other in zip(numbers, others if is_tuple else (others,), strict=True):
            replaced[number] = other
        return replaced

    return tuple([arguments[number] for number in numbers]) if is_tuple else arguments[numbers[0]], replace


def loss_of(name: str, value: Any) -> AnyTensor:
    """The loss in a result: the result itself, or the first entry of a tuple."""
    if isinstance(value, tuple) and value:
        value = cast("tuple[Any, ...]", value)[0]
    if not isinstance(value, Tensor):
        got = type(cast("object", value)).__name__
        raise AutodiffError(f"{name}: the function must return a tensor, got {got}")
    return cast("AnyTensor", value)


def one_number(name: str, y: AnyTensor) -> AnyTensor:
    """The tensor, checked to have one element."""
    if y.kind is not Float:
        raise KindError(f"{name}: the function must return a Float tensor, got {y.kind.__name__}")
    if y.size != 1:
        raise ShapeError(f"{name}: the function must return one number, got shape {y.shape}; reduce it with .sum()")
    return y


def _with_tape_below(backend: Backend) -> Backend:
    if isinstance(backend, Batched):
        return Batched(_with_tape_below(backend.inner))
    return backend if backend.differentiates else backend.with_autodiff()


def _node_id(x: AnyTensor) -> int:
    return x.backend.node_of(x.primitive).id


def _is_own_leaf(x: AnyTensor) -> bool:
    return x.backend.is_leaf(x.primitive)


def _is_batched(param: Param) -> bool:
    return param.is_initialized and isinstance(on_vmap_backend(param.val()).backend, Batched)


def _has_tape(module: Module) -> bool:
    """Are its parameters leaves of a tape, and not batched?"""
    trained = [param for param in module.params() if param.trained]
    if not any(param.backend.differentiates for param in trained):
        return False
    initialized = [param for param in module.params() if param.is_initialized]
    if any(_is_batched(param) for param in initialized):
        return False
    return all(_is_own_leaf(param.val()) for param in initialized if param.trained and param.backend.differentiates)


def _modules(value: Any) -> list[Module]:
    return [module for _, module in leaves_of(value, (Tensor, Module)) if isinstance(module, Module)]

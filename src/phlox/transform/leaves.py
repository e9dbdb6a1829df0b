"""The leaves of a differentiated function: the Float tensors and trained parameters in its arguments.

Differentiated functions nest. Each has its own tape level above those around it, so the history of an inner gradient
stays on the tapes below, where the outer gradient finds it. If history would still be lost, an error is raised.
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
class _Place:
    """A tensor or a trained parameter, and the leaf in its place."""

    given: AnyTensor
    leaf: AnyTensor
    least: int
    """The least number of tapes of its gradient: those of the given tensor, except one that ends with this gradient."""
    ends: bool = False
    """Is the gradient always on the backend below its own tape?"""


class Leaves:
    """The leaves of one differentiated function.

    Args:
        name: the name of the transformation, for messages.
        given: tensors and modules, or lists, tuples, dicts and dataclasses of them.
        above: the number of levels above those of the arguments and around the function.
        at: the level, if it is known already.
        ends: whether the gradient of a tensor on a tape that does not track it is on the backend below that tape (as
            the gradient of a parameter always is).

    If no function is differentiated around this one, the gradient of a module whose parameters are leaves of a tape has
    no history, as with `backward()`. If all arguments are such modules, their parameters are the leaves.

    Raises `KindError` for an Int or Bool tensor, `AutodiffError` if there is nothing to differentiate.
    """

    def __init__(self, name: str, given: Any, *, above: int = 1, at: int | None = None, ends: bool = False) -> None:
        self.name, self._ends, self._averages = name, ends, False
        self.given = given
        self._tensors: list[_Place] = []
        self._params: dict[Param, _Place] = {}
        self._twins: dict[Param, tuple[Param, AnyTensor]] = {}
        around = levels()
        modules = _modules(given)
        self.has_modules = bool(modules)
        tensors: list[AnyTensor] = [tensor for _, tensor in leaves_of(given, Tensor)]
        if not modules and not tensors:
            got = type(given).__name__
            raise AutodiffError(f"{name}: the argument must be a module or a tensor, or hold some; got {got}")
        self._alone = not tensors
        self._own = self._alone and above == 1 and at is None and not around and all(map(_is_on_tape, modules))
        params = [param for module in modules for param in module.params()]
        if self._own:
            self.depth = max((depth(param.backend) for param in params if param.trained), default=1)
        else:
            if modules and not around and not any(_is_batched(param) for param in params):
                self._check_modes(params)
            bases = [self._base(x) for x in (*tensors, *(param.val() for param in params))]
            # One tape at least lies below: a module whose parameters are leaves there may be met.
            self.depth = max(1, *map(depth, bases)) + above if at is None else at
        self.backend: Backend | None = None
        self.structure = self._replaced(given, "")
        if self.backend is None:
            raise AutodiffError(f"{name}: the module has no parameter that is trained; see Module.freeze and unfreeze")

    # --- the way in

    def _check_modes(self, params: list[Param]) -> None:
        """A module without a tape is in use: taken on one it would be in training, which must be asked for."""
        if not any(param.backend.differentiates for param in params):
            place = params[0].backend if params else "no device"
            raise AutodiffError(
                f"{self.name}: the module is on {place!r}, which records no tape; move the module there: model.train()"
            )

    def _base(self, x: AnyTensor) -> Backend:
        """The least backend where a tensor meets the batch and the functions that the running code is inside of."""
        backend: Backend = on_vmap_backend(x).backend
        for level in levels():
            backend = joined(backend, level.backend) or backend
        return backend

    def _lifted(self, x: AnyTensor) -> AnyTensor:
        """A tensor as a constant on this level; its history on tapes below stays."""
        base = self._base(x)
        if not depth(base):  # a tape below too, so that what is on one outside can be met
            base = _with_tape_below(base)
        while depth(base) < self.depth:
            base = base.with_autodiff()
        return x._on(base) if x.backend is not base else x  # pyright: ignore[reportPrivateUsage]

    def _leaf(self, x: AnyTensor) -> AnyTensor:
        leaf = self._lifted(x).require_grad()
        if self.backend is None:
            self.backend = leaf.backend
        return leaf

    def _replaced(self, value: Any, path: str) -> Any:
        if isinstance(value, Tensor):
            return self._of_tensor(cast("AnyTensor", value), path)
        if isinstance(value, Module):
            if not self._own:
                return value.map(lambda _, param: self._twin(param))
            if self.backend is None:
                trained = next((param for param in value.params() if param.trained), None)
                self.backend = None if trained is None else trained.backend
            return value
        return map_parts(self._replaced, value, path)

    def _of_tensor(self, x: AnyTensor, path: str) -> AnyTensor:
        if x.kind is not Float:
            raise KindError(
                f"{self.name}: {path and f'{path}: '}{x.kind.__name__} tensors have no derivatives; "
                "convert with .float() first"
            )
        least = depth(x.backend) - (self._ends and x.backend.differentiates and not x.is_require_grad())
        self._tensors.append(_Place(x, self._leaf(x), least))
        return self._tensors[-1].leaf

    def _twin(self, param: Param) -> Param:
        """The parameter around a leaf of this level."""
        if param not in self._twins:
            value = param.val()
            # Its own tape ends with the gradient, unless a differentiated function around this one asks for more.
            ends = not levels() and _is_own_leaf(value)
            given = value.detach() if ends and self._alone else value
            leaf = self._lifted(given)
            if param.trained and value.kind is Float:
                leaf = self._leaf(given)
                least = depth(value.backend) - value.backend.differentiates
                self._params[param] = _Place(given, leaf, least, ends)
            twin = param.around(leaf)
            self._twins[param] = twin, twin.val()
        return self._twins[param][0]

    @property
    def level(self) -> Level:
        """The level to enter while the function runs."""
        assert self.backend is not None
        return Level(self.backend, self._numbers)

    def _numbers(self) -> set[int]:
        return {_number(place.leaf) for place in self.places()}

    # --- the way out

    def root(self, y: AnyTensor) -> AnyTensor | None:
        """A result on this level; None if it depends on no leaf.

        Raises `AutodiffError` if it depends on a tape above, which was started inside the function.
        """
        while depth(y.backend) > self.depth:
            if y.is_require_grad():
                raise AutodiffError(
                    f"{self.name}: the result depends on a leaf of {y.backend!r}, above the tape of what is "
                    f"differentiated here ({self.backend!r}), and its history would be lost; use phlox.grad for the "
                    "inner derivative, or .detach()"
                )
            y = y.inner()
        return y if depth(y.backend) == self.depth and y.is_require_grad() else None

    def backward(self, root: AnyTensor, *, retain: bool = False) -> Gradients:
        """The gradients of a result on this level."""
        gradients = root.backward(retain_graph=retain)
        if not self._own and not gradients.found.keys() <= self._numbers():
            raise AutodiffError(
                f"{self.name}: the result also depends on leaves on {root.backend!r} that are not its arguments, and "
                "the gradient would lose that history; give the arguments of the inner function on "
                f"{root.backend.with_autodiff()!r}, or .detach() the others"
            )
        return gradients

    def gradient(self, place: _Place, gradients: Gradients | None) -> AnyTensor | None:
        """The gradient of a leaf, without the tapes that do not track it."""
        found = None if gradients is None else place.leaf.grad(gradients)
        if found is not None and place.ends:
            while depth(found.backend) > place.least:
                found = found.detach().inner()
        return None if found is None else settled(found, place.least)

    def zeros(self, place: _Place) -> AnyTensor:
        """The gradient if the result does not depend on the leaf."""
        return settled(zeros_like(place.given), place.least)

    def _with_gradients(
        self, value: Any, places: Iterator[_Place], of: Callable[[_Place], AnyTensor | None], zeros: bool
    ) -> Any:
        # A method: a function that calls itself would keep all that it knows until the next garbage collection.
        if isinstance(value, Tensor):
            place = next(places)
            gradient = of(place)
            return self.zeros(place) if gradient is None else gradient
        if isinstance(value, Module):
            found: dict[ParamId, AnyTensor] = {}
            for param in value.params():
                place = self._params.get(param)
                gradient = None if place is None else of(place)
                if place is not None and (gradient is not None or zeros):
                    found[param.id] = self.zeros(place) if gradient is None else gradient
            return of_rows(found, value) if self._averages else GradientsParams(found)
        return map_parts(lambda part, _: self._with_gradients(part, places, of, zeros), value, "")

    def found(self, gradients: Gradients | None, *, zeros: bool = False, averages: bool = False) -> Any:
        """The gradients in the structure of the arguments, with `GradientsParams` for each module.

        A missing gradient of a tensor is zeros. A missing gradient of a parameter is left out, unless `zeros`. With
        `averages`, gradients of modules are the mean over the processes that compute on the rows of one batch.
        """
        self.places()
        self._averages = averages and row_group() is not None
        of = partial(self.gradient, gradients=gradients)
        return self._with_gradients(self.given, iter(self._tensors), of, zeros)

    def places(self) -> list[_Place]:
        """All leaves. Call it after the function, which may create the values of deferred parameters."""
        if self._own:
            for module in _modules(self.given):
                for param in module.params():
                    if param.trained and param.is_initialized and param.backend.differentiates:
                        value = param.val()
                        self._params[param] = _Place(value, value, depth(value.backend) - 1)
        return [*self._tensors, *self._params.values()]

    def down(self, value: Any) -> Any:
        """A result without this level, and without the tapes below that neither track it nor hold an argument."""
        if self._own:
            return value
        least = max(depth(place.given.backend) for place in self.places())

        def off(x: AnyTensor) -> AnyTensor:
            while depth(x.backend) >= self.depth:
                if depth(x.backend) > self.depth and x.is_require_grad():
                    self.root(x)
                x = x.inner()
            return settled(x, least)

        return map_tensors(off, value)

    def write_back(self) -> None:
        """Copy values that were set into parameters (running statistics) to the parameters of the arguments."""
        for param, (twin, before) in self._twins.items():
            if twin.val() is not before:
                param.set(self.down(twin.val()))


def settled(x: AnyTensor, least: int) -> AnyTensor:
    """A tensor without the tapes that do not track it, except the lowest `least`."""
    while depth(x.backend) > least and not x.is_require_grad():
        x = x.inner()
    return x


def chosen(
    name: str, argnums: int | Sequence[int], arguments: tuple[Any, ...]
) -> tuple[Any, Callable[[Any], list[Any]]]:
    """The arguments to differentiate, and a function that replaces them.

    Raises `AutodiffError` if there is no positional argument of a number.
    """
    several = isinstance(argnums, (tuple, list))
    numbers: list[int] = []
    for number in cast("Sequence[Any]", argnums) if several else cast("tuple[Any]", (argnums,)):
        try:
            place = index(number)
        except TypeError:
            raise KindError(
                f"{name}: argnums is the number of a positional argument or a tuple of such, got {argnums!r}"
            ) from None
        if not -len(arguments) <= place < len(arguments):
            raise AutodiffError(
                f"{name}: argnums is {argnums!r}, and the function was called with {len(arguments)} positional "
                "arguments; what is differentiated towards is passed by position"
            )
        numbers.append(place % len(arguments))

    def put(others: Any) -> list[Any]:
        made = list(arguments)
        for number, other in zip(numbers, others if several else (others,), strict=True):
            made[number] = other
        return made

    return tuple([arguments[number] for number in numbers]) if several else arguments[numbers[0]], put


def loss_of(name: str, value: Any) -> AnyTensor:
    """The loss in a result, which is a scalar or a tuple that begins with it."""
    if isinstance(value, tuple) and value:
        value = cast("tuple[Any, ...]", value)[0]
    if not isinstance(value, Tensor):
        got = type(cast("object", value)).__name__
        raise AutodiffError(f"{name}: the function must return a tensor, got {got}")
    return cast("AnyTensor", value)


def one_number(name: str, y: AnyTensor) -> AnyTensor:
    """The tensor, if it has one element."""
    if y.kind is not Float:
        raise KindError(f"{name}: the function must return a Float tensor, got {y.kind.__name__}")
    if y.size != 1:
        raise ShapeError(f"{name}: the function must return one number, got shape {y.shape}; reduce it with .sum()")
    return y


def _with_tape_below(backend: Backend) -> Backend:
    if isinstance(backend, Batched):
        return Batched(_with_tape_below(backend.inner))
    return backend if backend.differentiates else backend.with_autodiff()


def _number(x: AnyTensor) -> int:
    return x.backend.node_of(x.primitive).id


def _is_own_leaf(x: AnyTensor) -> bool:
    return x.backend.is_leaf(x.primitive)


def _is_batched(param: Param) -> bool:
    return param.is_initialized and isinstance(on_vmap_backend(param.val()).backend, Batched)


def _is_on_tape(module: Module) -> bool:
    """Are its parameters leaves of a tape, and of no batch?"""
    trained = [param for param in module.params() if param.trained]
    if not any(param.backend.differentiates for param in trained):
        return False
    made = [param for param in module.params() if param.is_initialized]
    if any(_is_batched(param) for param in made):
        return False
    return all(_is_own_leaf(param.val()) for param in made if param.trained and param.backend.differentiates)


def _modules(given: Any) -> list[Module]:
    return [module for _, module in leaves_of(given, (Tensor, Module)) if isinstance(module, Module)]

"""Observing the calls of a model's modules: their arguments and results.

Summaries, layer-by-layer comparisons and exports use it. Inside `observed(model, on_call)` the classes of the model's
modules have another `__call__`, which reads in a context variable whether its thread or task is observing. Outside they
have their own `__call__`, so it costs nothing when nothing is observed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from threading import RLock
from typing import Any, TypeVar, cast

from phlox.backend.pytree import container_of_class
from phlox.host.signal_guard import scope
from phlox.module.fields import Fields, fields_of
from phlox.module.module import Module
from phlox.module.statics import Static
from phlox.module.structure import Container, Part, build

M = TypeVar("M", bound=Module)


@dataclass(slots=True, eq=False)
class Call:
    """One call of a module that is observed."""

    path: str
    """The path of the module in the model: `layers.0`; the model itself is the empty string."""
    module: Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    within: Call | None
    """The call that this one is part of."""
    outputs: Any = None
    """The result; None until the call returns."""
    notes: dict[str, Any] = field(default_factory=dict[str, Any])
    """Data that the observer passes from `on_enter` to `on_call`."""


class _Observation:
    """One scope of `observed`."""

    def __init__(self, model: Module, on_call: Callable[[Call], object], on_enter: Callable[[Call], object] | None):
        self.on_call = on_call
        self.on_enter = on_enter
        self.current: Call | None = None
        self.paths: dict[int, str] = {}
        self.modules: list[Module] = []  # kept alive, because they are looked up by identity
        self.alike: dict[Any, str] = {}
        for path, module in named_modules(model):
            self.paths[id(module)] = path
            self.modules.append(module)
            self.alike.setdefault(_identity_key(module), path)

    def path_of(self, module: Module) -> str | None:
        """The path of a module; a view (`valid`, `freeze`, a mode) has its module's path; None for other modules."""
        path = self.paths.get(id(module))
        if path is None and (key := _identity_key(module))[1]:
            path = self.alike.get(key)
        return path


_observations: ContextVar[tuple[_Observation, ...]] = ContextVar("phlox_observed_calls", default=())
_patching = RLock()
_patched: dict[type[Any], list[Any]] = {}
"""The patched classes, with the number of scopes that need the patch, and the class's own `__call__`."""


def named_modules(model: Module) -> Iterator[tuple[str, Module]]:
    """Every module in a model with its path, the model first, in the order of declaration; shared modules come once.

    >>> from phlox import nn
    >>> [path for path, module in named_modules(nn.Sequential([nn.Linear(2, 3), nn.Relu()]))]
    ['', 'layers.0', 'layers.1']
    """
    yield from _walk(model, "", set())


def _walk(value: Any, path: str, seen: set[int]) -> Iterator[tuple[str, Module]]:
    if id(value) in seen:
        return
    if isinstance(value, Module):
        seen.add(id(value))
        yield path, value
        items: Any = fields_of(value).items()
    elif isinstance(value, (list, tuple, dict)):
        seen.add(id(cast("object", value)))
        container = container_of_class(cast("type[Any]", type(value)))  # pyright: ignore[reportUnknownArgumentType]
        items = () if container is None else container.items(value)
    else:
        return
    for key, part in list(items):
        yield from _walk(part, f"{path}.{key}" if path else str(key), seen)


def _identity_key(module: Module) -> tuple[type[Any], tuple[str, ...]]:
    return type(module), tuple([param.id for param in module.params()])


@contextmanager
def observed(
    model: Module, on_call: Callable[[Call], object], *, on_enter: Callable[[Call], object] | None = None
) -> Generator[None]:
    """Within this scope (and thread or task), call `on_call(call)` after each call of a module of `model`.

    The calls are those of the form `layer(x)`: of the model itself, of its modules in fields, lists, tuples and dicts,
    and of views of them. Calls of other methods, and of modules outside the model, are not observed. If a call raises
    an exception, `on_call` is not called for it.

    Args:
        model: the model; modules added to it within the scope are not observed.
        on_call: gets each call after it has returned, the innermost first.
        on_enter: gets the same `Call` before it starts, when `outputs` is still None.

    >>> import phlox as px
    >>> from phlox import nn
    >>> model = nn.Sequential([nn.Linear(2, 3), nn.Relu()])
    >>> with observed(model, lambda call: print(call.path or "the model", call.outputs.shape)):
    ...     y = model(px.ones((1, 2)))
    layers.0 (1, 3)
    layers.1 (1, 3)
    the model (1, 3)
    """
    observation = _Observation(model, on_call, on_enter)
    classes = {cls for module in observation.modules if (cls := _caller(type(module))) is not None}
    patched: list[type[Any]] = []
    try:
        for cls in classes:
            patched.append(cls)
            _patch(cls)
        with scope(_observations, (*_observations.get(), observation)):
            yield
    finally:
        for cls in patched:
            _restore(cls)


def _caller(cls: type[Any]) -> type[Any] | None:
    """The class that defines how objects of `cls` are called."""
    return next((base for base in cls.__mro__ if "__call__" in vars(base) and issubclass(base, Module)), None)


def _patch(cls: type[Any]) -> None:
    with _patching:
        if cls in _patched:
            _patched[cls][0] += 1
            return
        own = vars(cls)["__call__"]
        _patched[cls] = [1, own]
        cls.__call__ = _observing_call(cls, own)


def _restore(cls: type[Any]) -> None:
    with _patching:
        entry = _patched.get(cls)
        if entry is None:  # interrupted before it was patched
            return
        entry[0] -= 1
        if not entry[0]:
            cls.__call__ = entry[1]
            del _patched[cls]


def _observing_call(cls: type[Any], own: Any) -> Callable[..., Any]:
    """The `__call__` of a class, `own`, with observation."""

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = own.__get__(self, type(self))
        observations = _observations.get()
        # In `super().__call__` a subclass continues a call that is observed already.
        if not observations or _caller(cast("type[Any]", type(self))) is not cls:
            return call(*args, **kwargs)
        return _observe(observations, self, call, args, kwargs)

    return wraps(own)(__call__) if hasattr(own, "__name__") else __call__


def _observe(
    observations: tuple[_Observation, ...],
    module: Module,
    call: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    entered: list[tuple[_Observation, Call]] = []
    try:
        for observation in observations:
            path = observation.path_of(module)
            if path is not None:
                record = Call(path, module, args, kwargs, observation.current)
                observation.current = record
                entered.append((observation, record))
                if observation.on_enter is not None:
                    observation.on_enter(record)
        outputs = call(*args, **kwargs)
        for observation, record in entered:
            record.outputs = outputs
            observation.on_call(record)
        return outputs
    finally:
        for observation, record in entered:
            observation.current = record.within


class FunctionLayer(Module):
    """A function as a layer, so that its calls are observed like those of modules."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def layer_name(module: Module) -> str:
    """The class of a layer, or the function's name if the layer is a function."""
    if not isinstance(module, FunctionLayer):
        return type(module).__name__
    function: Any = module.function
    return str(getattr(function, "__name__", type(function).__name__))


def depth_of(path: str, paths: Collection[str]) -> int:
    """The number of modules that contain the module at `path`, among those at `paths`."""
    return sum(outer in paths for outer in outer_paths(path))


def outer_paths(path: str) -> list[str]:
    """The paths around a path, from the model's, which is empty, to the nearest.

    >>> outer_paths("layers.0.weight")
    ['', 'layers', 'layers.0']
    """
    parts = path.split(".") if path else []
    return [".".join(parts[:count]) for count in range(len(parts))]


def with_function_layers(model: M) -> M:
    """The model with a `FunctionLayer` in place of each function in a list, tuple or dict (those of a `Sequential`).

    The result shares its parameters with the model; without such functions it is the model itself.

    >>> import phlox as px
    >>> from phlox import nn
    >>> model = with_function_layers(nn.Sequential([nn.Linear(2, 3), px.functional.relu]))
    >>> model.layers[1].function is px.functional.relu
    True
    """
    structure = model.structure()
    numbers = iter(range(-1, -(10**9), -1))  # existing containers have numbers from zero

    def replace_functions(part: Part, in_container: bool) -> Part:
        if isinstance(part, Static) and in_container and callable(part.value) and not isinstance(part.value, type):
            return Container(FunctionLayer, ("function",), (part,), next(numbers))
        if not isinstance(part, Container):
            return part
        is_module = issubclass(part.cls, Fields)
        children = tuple([replace_functions(child, not is_module) for child in part.children])
        return Container(part.cls, part.keys, children, part.number)

    skeleton = cast("Container", replace_functions(structure.skeleton, False))
    return model if next(numbers) == -1 else build(skeleton, structure.params)

"""Calls of modules on arrays: arrays in, arrays out.

If no argument of a call is a tensor, and some are arrays (also in lists, tuples, dicts and dataclasses), its result has
arrays in place of tensors. Within the call, tensors replace the arrays: on the module's backend or, if it has no
parameters, on a backend of the arrays' engine. Code that is written for arrays gets the arrays unchanged. Such code has
a parameter with an annotation of arrays (`x: jax.Array`, jaxtyping's `Float[Array, "n d"]`), or calls functions of JAX
or PyTorch itself. The annotation `x: phlox.Tensor` means that it gets a tensor.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache, partial
from itertools import zip_longest
from types import CodeType, FunctionType, ModuleType, UnionType
from typing import Any, Union, cast, get_args, get_origin

from phlox.backend import Backend, Device
from phlox.backend.pytree import Container, container_of_class
from phlox.config import Config
from phlox.module.fields import Fields
from phlox.module.param import Param
from phlox.tensor import Tensor
from phlox.tensor.dispatch import ops_of
from phlox.tensor.engine_arrays import array_of, backend_like, is_array, is_array_type, kind_of, primitive_of
from phlox.tensor.tensor import wrap


def call_with_arrays(call: Callable[..., Any], module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`call(module, *args, **kwargs)`, where some arguments may be arrays."""
    leaves = [leaf for value in (*args, *kwargs.values()) for leaf in _leaves(value)]
    arrays = [leaf for leaf in leaves if is_array(leaf)]
    if not arrays:
        return call(module, *args, **kwargs)
    names, kept_as_arrays = _parameters(call, cast("type[Any]", type(module)))
    device = _device_for(module, arrays)

    def as_argument(name: str, value: Any) -> Any:
        return value if device is None or name in kept_as_arrays else _map(partial(_as_tensor, name, device), value)

    named = zip_longest(names[: len(args)], args, fillvalue=names[-1])  # the last name is the name of `*args`
    try:
        result = call(module, *[as_argument(*pair) for pair in named], **{k: as_argument(k, kwargs[k]) for k in kwargs})
    except AttributeError as error:
        if kept_as_arrays and is_array(getattr(error, "obj", None)):
            error.add_note(
                f"{type(module).__name__}.__call__ uses JAX or PyTorch itself, or asks for arrays, so it got arrays; "
                "annotate its parameters as phlox.Tensor to get tensors"
            )
        raise
    return result if any(isinstance(leaf, Tensor) for leaf in leaves) else _map(_as_array, result)


def _device_for(module: Any, arrays: list[Any]) -> Device | None:
    """The device for tensors of the arrays; None if their engine is unknown."""
    params: list[Param] = module.params()
    source = next((param for param in params if not param.full_precision), params[0] if params else None)
    backend = backend_like(arrays) if source is None else None
    return source.device if source is not None else None if backend is None else backend.device()


def _as_tensor(name: str, device: Device, leaf: Any) -> Any:
    kind = kind_of(leaf) if is_array(leaf) else None
    if kind is None:
        return leaf
    backend: Backend = device.backend
    return wrap(ops_of(backend, kind), primitive_of(name, leaf, kind, backend, device))


def _as_array(leaf: Any) -> Any:
    return array_of("the result", cast("Tensor[Any, Any, Any]", leaf)) if isinstance(leaf, Tensor) else leaf


# --- containers


def _container(value: Any) -> Container | None:
    """The container type of a value; None for a leaf, and for objects that have fields and can be called."""
    if isinstance(value, (Tensor, Fields, Config)) or callable(value):
        return None
    return container_of_class(cast("type[Any]", type(value)))


def _leaves(value: Any) -> Iterator[Any]:
    container = _container(value)
    if container is None:
        yield value
    else:
        for _, part in container.items(value):
            yield from _leaves(part)


def _map(fn: Callable[[Any], Any], value: Any) -> Any:
    """The value with `fn(leaf)` in place of each leaf; a container stays itself if nothing in it changes."""
    container = _container(value)
    if container is None:
        return fn(value)
    parts = [part for _, part in container.items(value)]
    mapped = [_map(fn, part) for part in parts]
    unchanged = all(new is old for new, old in zip(mapped, parts, strict=True))
    return value if unchanged else container.build(value, mapped)


# --- code that is written for arrays

_LIBRARIES = ("jax", "flax", "equinox", "torch")
"""The packages whose functions take arrays, and do not always take tensors."""


@lru_cache(maxsize=1024)
def _parameters(call: Callable[..., Any], cls: type[Any]) -> tuple[tuple[str, ...], frozenset[str]]:
    """The names of a call's parameters after `self`, and the names of those that get arrays unchanged."""
    function: Any = inspect.unwrap(call)
    names = tuple(inspect.signature(call).parameters)[1:]
    hints = {name: _resolved(hint, function.__globals__) for name, hint in function.__annotations__.items()}
    by_annotation = {name: _is_of_arrays(hints[name]) for name in names if _types(hints.get(name))}
    by_use = bool(set(names) - by_annotation.keys()) and _uses_arrays(function, cls, set())
    return names, frozenset(name for name in names if by_annotation.get(name, by_use))


def _resolved(annotation: Any, scope: dict[str, Any]) -> Any:
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, scope)  # noqa: S307 - the user's own code, evaluated as `typing.get_type_hints` does
    except Exception:  # a name that only a type checker knows
        return None


def _types(annotation: Any) -> list[type[Any]]:
    """The classes of arrays and tensors in an annotation: itself, jaxtyping's, or those of a union."""
    annotation = getattr(annotation, "array_type", annotation)
    origin = get_origin(annotation) or annotation
    if origin in (Union, UnionType):
        return [cls for part in get_args(annotation) for cls in _types(part)]
    return [origin] if isinstance(origin, type) and (is_array_type(origin) or issubclass(origin, Tensor)) else []


def _is_of_arrays(annotation: Any) -> bool:
    return any(map(is_array_type, _types(annotation)))


def _uses_arrays(function: Any, cls: type[Any], seen: set[Any]) -> bool:
    """Does a function use a name of JAX or PyTorch, or call a function or method of its own file that does?"""
    function = inspect.unwrap(function)
    if not isinstance(function, FunctionType) or function in seen:
        return False
    seen.add(function)
    scope = {**function.__globals__, **dict(_closure(function))}
    for name in _names(function.__code__):
        value = scope.get(name)
        if name.partition(".")[0] in _LIBRARIES or _package(value) in _LIBRARIES:
            return True
        for candidate in (value, inspect.getattr_static(cls, name, None)):
            if getattr(candidate, "__module__", None) == function.__module__ and _uses_arrays(candidate, cls, seen):
                return True
    return False


def _names(code: CodeType) -> set[str]:
    """The names in a function's code, and in the functions inside it."""
    inner = [_names(part) for part in code.co_consts if isinstance(part, CodeType)]
    return {*code.co_names, *code.co_freevars}.union(*inner)


def _package(value: Any) -> str:
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return str(name).partition(".")[0]


def _closure(function: FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # a variable that has no value yet
            yield name, cell.cell_contents

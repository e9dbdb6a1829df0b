"""The arguments of an export: the inputs with their names, and sizes for the open axes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from phlox.backend.kind import kind_of_dtype
from phlox.errors import ExportError, PhloxError
from phlox.module import Module
from phlox.tensor import Tensor
from phlox.transform.eval_shape import TensorSpec
from phlox.transform.tree import AnyTensor, leaves_of, map_parts

LEAVES = (TensorSpec, Tensor, np.ndarray)


@dataclass(slots=True)
class Input:
    """One input of the file."""

    name: str
    spec: TensorSpec
    example: np.ndarray[Any, Any] | None
    """Its values, if a tensor or an array was given."""


@dataclass(slots=True)
class Arguments:
    """The arguments of a call, with an `Input` for each tensor."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: list[Input]

    def filled(self, value_of: Callable[[Input], Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with `value_of(input)` for each input."""
        remaining = iter(self.inputs)

        def visit(part: Any, path: str) -> Any:
            return value_of(next(remaining)) if isinstance(part, LEAVES) else map_parts(visit, part, path)

        args = tuple([visit(part, "") for part in self.args])
        return args, {name: visit(part, "") for name, part in self.kwargs.items()}

    def open_axes(self) -> list[str]:
        """The names of the open axes, in order."""
        return list(dict.fromkeys(name for entry in self.inputs for name in entry.spec.open_axes.values()))


def read(model: Module, inputs: Any, names: Sequence[str] | None) -> Arguments:
    """The arguments of a call from the given `inputs`; `ExportError` for an invalid one."""
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    if isinstance(inputs, Mapping):
        kwargs = dict(cast("Mapping[str, Any]", inputs))
    elif isinstance(inputs, LEAVES):
        args = (cast(Any, inputs),)
    elif type(inputs) in (list, tuple):
        args = tuple(inputs)
    else:
        raise ExportError(
            "export.onnx: inputs are a list of specs, tensors or arrays, one for each argument of the model, such as "
            f"[px.TensorSpec(('batch', 8))], or a dict by the arguments' names; got {type(inputs).__name__}"
        )
    entries: list[Input] = []
    for title, part in _named_arguments(model, args, kwargs):
        entries += [_input(f"{title}{_suffix_of(path)}", leaf) for path, leaf in leaves_of(part, LEAVES)]
    if not entries:
        raise ExportError(
            "export.onnx: there is no tensor among the inputs; give a spec for each argument of the model"
        )
    if names is not None and (isinstance(names, str) or len(names) != len(entries)):
        raise ExportError(f"export.onnx: {len(entries)} inputs need as many names, got {list(names)}")
    params = {path for path, _ in model.named_params()}
    for entry, name in zip(entries, names or _unique_names([entry.name for entry in entries], params), strict=True):
        entry.name = name
    check_names("input_names", [entry.name for entry in entries], params)
    return Arguments(args, kwargs, entries)


def check_names(option: str, names: Sequence[str], params: Set[str] = frozenset()) -> None:
    """Raise `ExportError` for a name that is empty, given twice, or the path of a parameter."""
    for index, name in enumerate(names):
        if not isinstance(name, str) or not name or name in names[:index]:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ExportError(f"export.onnx: {option} must be different strings that are not empty, got {list(names)}")
        if name in params:
            raise ExportError(f"export.onnx: {option}: {name!r} is the path of a parameter; choose another")


def output_names(paths: Sequence[str], names: Sequence[str] | None) -> list[str]:
    """The names of a model's outputs; if none are given, by their paths in the result."""
    if names is None:
        return ["output"] if len(paths) == 1 else _unique_names([f"output{_suffix_of(path)}" for path in paths])
    if isinstance(names, str) or len(names) != len(paths):
        raise ExportError(f"export.onnx: {len(paths)} outputs need as many output_names, got {names!r}")
    check_names("output_names", names)
    return list(names)


def _named_arguments(model: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Each argument with the name of its parameter; `ExportError` if the model does not take them."""
    call = type(model).__call__
    try:
        signature = inspect.signature(call)
        bound = signature.bind(model, *args, **kwargs)
    except TypeError as error:
        raise ExportError(f"export.onnx: {type(model).__name__} does not take these inputs: {error}") from None
    except ValueError:
        yield from [(f"input_{index}", part) for index, part in enumerate(args)]
        return
    for index, (name, value) in enumerate(bound.arguments.items()):
        kind = signature.parameters[name].kind
        if index == 0:
            continue
        if kind is inspect.Parameter.VAR_POSITIONAL:
            yield from [(f"{name}_{index}", part) for index, part in enumerate(value)]
        elif kind is inspect.Parameter.VAR_KEYWORD:
            yield from value.items()
        else:
            yield name, value


def _suffix_of(path: str) -> str:
    """A path into a container as the end of a name."""
    parts = re.findall(r"\w+", path)
    return "".join(f"_{part}" for part in parts)


def _unique_names(names: list[str], reserved: Set[str] = frozenset()) -> list[str]:
    names_so_far: list[str] = []
    for name in names:
        count = 1
        free = name
        while free in names_so_far or free in reserved:
            count += 1
            free = f"{name}_{count}"
        names_so_far.append(free)
    return names_so_far


def _input(name: str, leaf: Any) -> Input:
    if isinstance(leaf, TensorSpec):
        return Input(name, leaf, None)
    if isinstance(leaf, np.ndarray):
        array = cast("np.ndarray[Any, Any]", leaf)
        try:
            kind = kind_of_dtype(array.dtype)
        except PhloxError as error:
            raise ExportError(f"export.onnx: input {name}: {error}") from None
        return Input(name, TensorSpec(array.shape, kind), array)
    tensor = cast("AnyTensor", leaf)
    return Input(name, TensorSpec(tensor.shape, tensor.kind), tensor.numpy())


# --- sizes for the open axes

_GUESSES = ((7, 12), (4, 6), (3, 2), (8, 16), (32, 12), (37, 30), (64, 96), (224, 256))
"""The sizes to try if none are given, since it is not known which sizes a model takes (a window, a context).

The first pair has few common divisors; the others are in the order of the work that they cause."""
_FEW = (2, 3, 5)
"""The sizes of a batch with these guesses; nearly all models take them."""


def sizes_to_try(arguments: Arguments, fixed: Mapping[str, Sequence[int]] | None) -> list[dict[str, int]]:
    """Sizes of the open axes with which the model is traced and run; different for each axis, if possible.

    Raises `ExportError` for names that no axis has, and for invalid sizes.
    """
    names = arguments.open_axes()
    fixed = {} if fixed is None else dict(fixed)
    for name, sizes in fixed.items():
        if name not in names:
            raise ExportError(
                f"export.onnx: sizes are given for {name!r}, which is no open axis; "
                f"{'they are ' + ', '.join(names) if names else 'no axis has a name'}"
            )
        if isinstance(sizes, int) or not sizes or any(isinstance(size, bool) or size < 1 for size in sizes):
            raise ExportError(f"export.onnx: sizes of {name!r} must be a list of positive integers, got {sizes!r}")
    if not names:
        return [{}]
    count = max([len(sizes) for sizes in fixed.values()], default=0)
    guesses = [guess for pair in _GUESSES for guess in pair]
    rounds = max(count, 2) if len(fixed) == len(names) else max(count, len(guesses))
    candidates = [
        {
            name: fixed[name][turn % len(fixed[name])] if name in fixed else _spread(guesses[turn % len(guesses)], axis)
            for axis, name in enumerate(names)
        }
        for turn in range(rounds)
    ]
    firsts = {name for entry in arguments.inputs for axis, name in entry.spec.open_axes.items() if axis == 0}
    batches = firsts - {name for entry in arguments.inputs for axis, name in entry.spec.open_axes.items() if axis}
    few = [
        {name: _FEW[turn % len(_FEW)] if name in batches - fixed.keys() else size for name, size in sizes.items()}
        for turn, sizes in enumerate(candidates[2:])
    ]
    every = [*candidates[:2], *few, *candidates[2:]]
    return [candidate for index, candidate in enumerate(every) if candidate not in every[:index]]


def _spread(size: int, axis: int) -> int:
    """A different size for each axis, divisible by the same power of two."""
    step = size & -size
    return size + axis * step * 2 if step > 1 else size + 4 * axis

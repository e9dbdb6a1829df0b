"""Several turns in one call: what each turn is given, what goes on from one to the next, and what comes back.

A function of modules and data is called n times, each time with its own entry of the parameters that the loop runs
over, and with the modules that the turn before returned. On a backend with a compiler `Program` makes one loop of it,
whose first and last lines are here; elsewhere `run` does the same, call by call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from phlox.errors import CompileError
from phlox.module import Module
from phlox.optim import Optimizer
from phlox.tensor import Tensor, stack
from phlox.transform.compile.outputs import no_history
from phlox.transform.compile.signature import Ids, Numbers
from phlox.transform.tree import AnyTensor, map_parts, parts_of, with_parts


class Steps(NamedTuple):
    """How often a function is called in one call, and the parameters that have an entry for each turn."""

    number: int
    over: frozenset[str]


def taken_over(value: Any, path: str, turns: int) -> Any:
    """An argument that the loop runs over, with `Numbers` for lists and arrays of them.

    Raises `CompileError` where a first axis, or a list of numbers, is not as long as there are turns, and for what has
    no entries.
    """
    if isinstance(value, Tensor):
        shape = cast("AnyTensor", value).shape
        if shape[:1] != (turns,):
            have = f"is of shape {shape}" if shape else "has no axis"
            raise CompileError(
                f"{path}: it must have an entry for each of the {turns} steps on its first axis, and {have}"
            )
        return cast("AnyTensor", value)
    if isinstance(value, (Module, Optimizer)):
        raise CompileError(
            f"{path}: a {type(value).__name__} goes on from step to step by itself; take {path} out of `over`"
        )
    if isinstance(value, (float, int, np.generic)) and not isinstance(value, bool):
        raise CompileError(
            f"{path}: it must be a list or an array of {turns} numbers, one for each step, and is the number {value}; "
            f"repeat it, [{value}] * {turns}, or take {path} out of `over`"
        )
    numbers = _numbers(value, path)
    if numbers is not None:
        if len(numbers) != turns:
            raise CompileError(f"{path}: it must have a number for each of the {turns} steps, and has {len(numbers)}")
        return Numbers(numbers)
    return map_parts(lambda part, below: taken_over(part, below, turns), value, path)


def _numbers(value: Any, path: str) -> tuple[Any, ...] | None:
    """The numbers of a list, a tuple or an array of nothing else: all real, or all whole."""
    if isinstance(value, np.ndarray):
        array = cast("np.ndarray[Any, Any]", value)
        if array.ndim != 1 or array.dtype.kind not in "fiu":
            raise CompileError(
                f"{path}: it is a NumPy array of {array.dtype} and shape {array.shape}; only numbers, on one axis, are "
                "taken from one; make it a tensor with phlox.tensor(...)"
            )
        return tuple(array.tolist())
    if not isinstance(value, (list, tuple)) or not value:
        return None
    parts = cast("list[Any]", value)
    if not all(
        isinstance(part, (float, int, np.floating, np.integer)) and not isinstance(part, bool) for part in parts
    ):
        return None
    whole = all(isinstance(part, (int, np.integer)) for part in parts)
    return tuple([int(part) if whole else float(part) for part in parts])


def entry(value: Any, turn: int) -> Any:
    """What a turn is given of an argument that the loop runs over."""
    if isinstance(value, Tensor):
        return cast("AnyTensor", value)[turn]
    if isinstance(value, Numbers):
        return value.values[turn]
    return map_parts(lambda part, path: entry(part, turn), value, "")


def modules_in(value: Any, path: str) -> list[tuple[str, Module]]:
    """The modules in an argument or result, in order, with their paths."""
    found: list[tuple[str, Module]] = []

    def visit(part: Any, path: str) -> Any:
        if isinstance(part, Module):
            found.append((path, part))
        return map_parts(visit, part, path)

    visit(value, path)
    return found


def continuations(arguments: Sequence[tuple[str, Ids]], results: Sequence[tuple[str, Ids, Any]]) -> dict[int, int]:
    """Which of the modules in a result takes the place of which argument in the next turn: (argument, result).

    One continues the other if it has the same parameters. Several arguments may have the same ones, as a network and
    the average of its weights have: they are continued in their order. A result comes with what tells whether two are
    one object. Raises `CompileError` where it cannot be told what continues what.
    """
    found: dict[int, int] = {}
    for ids in dict.fromkeys(ids for _, ids in arguments if ids):
        mine = [number for number, (_, own) in enumerate(arguments) if own == ids]
        theirs = [number for number, (_, own, _) in enumerate(results) if own == ids]
        if len({results[number][2] for number in theirs}) == 1:
            theirs = theirs[:1]
        if theirs and len(mine) != len(theirs):
            raise CompileError(
                f"{' and '.join(results[number][0] for number in theirs)} {_have(theirs)} the parameters of "
                f"{' and '.join(arguments[number][0] for number in mine)}, and which continues which in the next step "
                "cannot be told; return as many modules of these parameters as are passed in, in the same order"
            )
        found.update(zip(mine, theirs, strict=False))
    return found


def _have(several: Sequence[Any]) -> str:
    return "has" if len(several) == 1 else "have"


def run(fn: Callable[..., Any], name: str, turns: Steps, named: Sequence[tuple[str, Any]], positional: int) -> Any:
    """The turns one after the other, each an ordinary call."""
    values = dict(named)
    results: list[Any] = []
    for turn in range(turns.number):
        given = [entry(value, turn) if name in turns.over else value for name, value in values.items()]
        keywords = dict(zip(list(values)[positional:], given[positional:], strict=True))
        result = fn(*given[:positional], **keywords)
        values = _going_on(values, result)
        if results:  # of modules only the last are returned, and the others need not be kept
            results[-1] = _replaced(results[-1], lambda module: None)
        results.append(result)
    return together(results, "the result", name)


def _going_on(values: dict[str, Any], result: Any) -> dict[str, Any]:
    """The arguments of the next turn."""
    before = [pair for name, value in values.items() for pair in modules_in(value, name)]
    after = modules_in(result, "the result")
    pairs = continuations(
        [(path, _ids(module)) for path, module in before], [(path, _ids(module), id(module)) for path, module in after]
    )
    modules = iter(
        [after[pairs[number]][1] if number in pairs else module for number, (_, module) in enumerate(before)]
    )
    return {name: _replaced(value, lambda module: next(modules)) for name, value in values.items()}


def _replaced(value: Any, fn: Callable[[Module], Any]) -> Any:
    """The same containers with `fn(module)` in place of each module."""

    def visit(part: Any, path: str) -> Any:
        return fn(part) if isinstance(part, Module) else map_parts(visit, part, path)

    return visit(value, "")


def _ids(module: Module) -> Ids:
    return tuple([param.id for param in module.params()])


def together(results: list[Any], path: str, name: str) -> Any:
    """What the turns returned as one result: tensors stacked, modules as the last turn left them, constants as always.

    Raises `CompileError`, with the path, for what differs from turn to turn and cannot be stacked.
    """
    if isinstance(results[-1], Module):
        return results[-1]
    first, kind = results[0], cast("type[Any]", type(results[0]))
    _alike(results, path, lambda one: f"a {type(one).__name__}")
    if isinstance(first, Tensor):
        _alike(results, path, lambda one: f"{one.kind.__name__} {one.shape} on {one.backend!r}")
        # As out of a program: without history, or the tapes of all turns would be kept.
        whole, backend = stack([cast("AnyTensor", result).detach() for result in results]), first.backend
        if not any(backend.requires_grad(result.primitive) for result in results):
            return whole
        return whole._with(backend.poisoned(whole.primitive, no_history(name)))  # pyright: ignore[reportPrivateUsage]
    if parts_of(first) is not None:
        _alike(
            results, path, lambda one: f"{kind.__name__} of {', '.join(label for label, _ in _parts(one)) or 'nothing'}"
        )
        columns = zip(*[_parts(result) for result in results], strict=True)
        return with_parts(first, [together([part for _, part in one], f"{path}{one[0][0]}", name) for one in columns])
    _alike(results, path, repr)
    return first


def _parts(value: Any) -> list[tuple[str, Any]]:
    return parts_of(value) or []


def _alike(results: list[Any], path: str, described: Callable[[Any], str]) -> None:
    first = described(results[0])
    for turn, result in enumerate(results):
        if (other := described(result)) != first:
            raise CompileError(
                f"{path} is {first} in step 0 and {other} in step {turn}, and cannot be stacked; return tensors of one "
                "shape, and nothing else that changes from step to step"
            )

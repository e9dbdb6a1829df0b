"""Several steps in one call: the arguments of each step, the values passed from step to step, and the results.

A function of modules and data is called n times, each time with its own entry of the parameters that the loop runs
over, and with the modules that the step before returned. On a backend without a compiler, `run` calls it n times. With
a compiler, `Loop` traces one step and makes a loop of it in the program, for `Program` in `executable`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple, cast

import numpy as np

from phlox.backend import Backend
from phlox.errors import CompileError
from phlox.module import Module, ParamId
from phlox.module.template import Aux, flatten
from phlox.optim import Optimizer
from phlox.optim.state.flat import FlatState
from phlox.optim.state.tree import paths
from phlox.tensor import Tensor, stack
from phlox.transform.compile.outputs import no_history
from phlox.transform.compile.recompiles import changes_between, module_facets
from phlox.transform.compile.signature import CallArguments, Ids, StepScalars
from phlox.transform.compile.trace import Call, OutputSpec, StepArguments, cut_alike
from phlox.transform.tree import AnyTensor, leaves_of, map_leaves, map_parts, parts_of, with_parts


class Steps(NamedTuple):
    """The number of steps in one call, and the parameters with an entry for each step."""

    number: int
    over: frozenset[str]


def taken_over(value: Any, path: str, steps: int) -> Any:
    """An argument that the loop runs over, with `StepScalars` for lists and arrays of them.

    Raises `CompileError` if the length of a first axis, or of a list of numbers, is not the number of steps, or if the
    argument has no entries.
    """
    if isinstance(value, Tensor):
        shape = cast("AnyTensor", value).shape
        if shape[:1] != (steps,):
            have = f"is of shape {shape}" if shape else "has no axis"
            raise CompileError(
                f"{path}: it must have an entry for each of the {steps} steps on its first axis, and {have}"
            )
        return cast("AnyTensor", value)
    if isinstance(value, (Module, Optimizer)):
        raise CompileError(
            f"{path}: a {type(value).__name__} goes on from step to step by itself; take {path} out of `over`"
        )
    if isinstance(value, (float, int, np.generic)) and not isinstance(value, bool):
        raise CompileError(
            f"{path}: it must be a list or an array of {steps} numbers, one for each step, and is the number {value}; "
            f"repeat it, [{value}] * {steps}, or take {path} out of `over`"
        )
    scalars = _scalars_of(value, path)
    if scalars is not None:
        if len(scalars) != steps:
            raise CompileError(f"{path}: it must have a number for each of the {steps} steps, and has {len(scalars)}")
        return StepScalars(scalars)
    return map_parts(lambda part, below: taken_over(part, below, steps), value, path)


def _scalars_of(value: Any, path: str) -> tuple[Any, ...] | None:
    """The scalars of a list, a tuple or an array of nothing else: all real, or all whole."""
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


def entry(value: Any, step: int) -> Any:
    """The entry of a step in an argument that the loop runs over."""
    if isinstance(value, Tensor):
        return cast("AnyTensor", value)[step]
    if isinstance(value, StepScalars):
        return value.values[step]
    return map_parts(lambda part, path: entry(part, step), value, "")


def modules_in(value: Any, path: str) -> list[tuple[str, Module]]:
    """The modules in an argument or result, in order, with their paths."""
    return list(leaves_of(value, Module, path))


def continuations(arguments: Sequence[tuple[str, Ids]], results: Sequence[tuple[str, Ids, Any]]) -> dict[int, int]:
    """Pairs (argument, result): which module in the result replaces which argument in the next step.

    A module continues another if it has the same parameters. Several arguments can have the same ones, such as a
    network and the average of its weights: they are continued in order. Each result has a key that is equal for the
    same object. Raises `CompileError` if the pairs are ambiguous.
    """
    found: dict[int, int] = {}
    for ids in dict.fromkeys(ids for _, ids in arguments if ids):
        mine = [number for number, (_, own) in enumerate(arguments) if own == ids]
        theirs = [number for number, (_, own, _) in enumerate(results) if own == ids]
        if len({results[number][2] for number in theirs}) == 1:
            theirs = theirs[:1]
        if theirs and len(mine) != len(theirs):
            raise CompileError(
                f"{' and '.join(results[number][0] for number in theirs)} "
                f"{'has' if len(theirs) == 1 else 'have'} the parameters of "
                f"{' and '.join(arguments[number][0] for number in mine)}, and which continues which in the next step "
                "cannot be told; return as many modules of these parameters as are passed in, in the same order"
            )
        found.update(zip(mine, theirs, strict=False))
    return found


def run(fn: Callable[..., Any], name: str, plan: Steps, named: Sequence[tuple[str, Any]], positional: int) -> Any:
    """The steps one after the other, each an ordinary call."""
    values = dict(named)
    results: list[Any] = []
    for step in range(plan.number):
        given = [entry(value, step) if name in plan.over else value for name, value in values.items()]
        keywords = dict(zip(list(values)[positional:], given[positional:], strict=True))
        result = fn(*given[:positional], **keywords)
        values = _next_arguments(values, result)
        if results:  # of modules only the last are returned, and the others need not be kept
            results[-1] = map_leaves(lambda module: None, results[-1], Module)
        results.append(result)
    return together(results, "the result", name)


def _next_arguments(values: dict[str, Any], result: Any) -> dict[str, Any]:
    """The arguments of the next step."""
    before = [pair for name, value in values.items() for pair in modules_in(value, name)]
    after = modules_in(result, "the result")
    pairs = continuations(
        [(path, _ids(module)) for path, module in before], [(path, _ids(module), id(module)) for path, module in after]
    )
    modules = iter(
        [after[pairs[number]][1] if number in pairs else module for number, (_, module) in enumerate(before)]
    )
    return {name: map_leaves(lambda module: next(modules), value, Module) for name, value in values.items()}


def _ids(module: Module) -> Ids:
    return tuple([param.id for param in module.params()])


def together(results: list[Any], path: str, name: str) -> Any:
    """The results of all steps as one: tensors stacked, modules of the last step, constants unchanged.

    Raises `CompileError`, with the path, if a value differs from step to step and cannot be stacked.
    """
    if isinstance(results[-1], Module):
        return results[-1]
    first, kind = results[0], cast("type[Any]", type(results[0]))
    _alike(results, path, lambda one: f"a {type(one).__name__}")
    if isinstance(first, Tensor):
        _alike(results, path, lambda one: f"{one.kind.__name__} {one.shape} on {one.backend!r}")
        # As out of a program: without history, or the tapes of all steps would be kept.
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
    for step, result in enumerate(results):
        if (other := described(result)) != first:
            raise CompileError(
                f"{path} is {first} in step 0 and {other} in step {step}, and cannot be stacked; return tensors of one "
                "shape, and nothing else that changes from step to step"
            )


# --- as one loop of a program


Record = Callable[[Call, Sequence[Any], Sequence[Any]], StepArguments]


class Loop:
    """The trace of several steps: one step, and how its results go into the next.

    The position of the random stream, the arrays of modules and the states of optimizers go from step to step. Every
    step takes its own entry of the arrays that the loop runs over. All other values are the same in every step.
    """

    def __init__(self, record: Record, name: str, call: Call, donated: Sequence[Any], kept: Sequence[Any]) -> None:
        self._record, self._name, self._call = record, name, call
        reader = self._reader = call.reader
        self._backend = reader.backend
        self._lists = {id(reader.donated): list(donated), id(reader.kept): list(kept)}
        self._carried_places = [
            (reader.kept, 0),
            *((module.leaves, module.place) for module in reader.modules),
            *((optimizer.leaves, optimizer.place) for optimizer in reader.optimizers),
        ]
        self._carry = [_tuple(self._leaf(leaves, place)) for leaves, place in self._carried_places]

    def _leaf(self, leaves: list[Any], place: int) -> Any:
        return self._lists[id(leaves)][place]

    def _step(self, carry: Sequence[tuple[Any, ...]], entries: Sequence[Any]) -> StepArguments:
        reader = self._reader
        now = {number: list(leaves) for number, leaves in self._lists.items()}
        for (leaves, place), parts in zip(self._carried_places, carry, strict=True):
            whole = isinstance(self._leaf(leaves, place), tuple)
            now[id(leaves)][place] = parts if whole else parts[0]
        for (leaves, place), one in zip(self._call.over, entries, strict=True):
            now[id(leaves)][place] = one
        return self._record(self._call, now[id(reader.donated)], now[id(reader.kept)])

    def run(self, count: int) -> tuple[list[Any], OutputSpec]:
        """The arrays after all steps, and their meaning."""
        sizes = [len(parts) for parts in self._carry]
        splits: list[_Split] = []

        def body(state: tuple[Any, ...], one: tuple[Any, ...]) -> tuple[Sequence[Any], Sequence[Any]]:
            split = _Split(self._name, self._reader, self._step(_grouped(state, sizes), one))
            self._check(split)
            splits.append(split)
            carry = [cut_alike(self._backend, *pair) for pair in zip(split.carry, self._carry, strict=True)]
            return [part for parts in carry for part in parts], split.rest()

        start = [part for parts in self._carry for part in parts]
        swept = [self._leaf(*where) for where in self._call.over]
        last, stacked = self._backend.scan(body, start, swept, count)
        split = splits[-1]
        meaning = split.step.meaning
        return split.together(_grouped(last, sizes), stacked, count), replace(meaning, draws=meaning.draws * count)

    def _check(self, split: _Split) -> None:
        """Raise `CompileError` if the shape of an array for the next step has changed."""
        modules = len(self._reader.modules)
        for number, (before, after) in enumerate(zip(self._carry[1:], split.carry[1 : 1 + modules], strict=False)):
            if _shapes(self._backend, before) != _shapes(self._backend, after):
                split.refuse_module(number)
        for number, (argument, (_, packed)) in enumerate(zip(self._reader.optimizers, split.step.states, strict=True)):
            after = split.carry[1 + modules + number]
            before = argument.packed
            if _form(packed) != _form(before) or _shapes(self._backend, before.leaves) != _shapes(self._backend, after):
                split.refuse_state(number, self._backend)


class _Split:
    """The outcome of a step: the arrays for the next step, and those to stack."""

    def __init__(self, name: str, reader: CallArguments, step: StepArguments) -> None:
        self._name, self._reader, self.step = name, reader, step
        owners = [cast("Aux", reader.owners[given.owner]) for given in reader.modules]
        self._pairs = continuations(
            [(given.path, owner.ids) for given, owner in zip(reader.modules, owners, strict=True)],
            [(one.path, one.ids, id(one.module)) for one in step.returned],
        )
        self.carry: list[tuple[Any, ...]] = [(step.words,)]
        self._carried: dict[int, int] = {}
        """The part of the carry for each position of an array that goes to the next step."""
        for number, (module, owner) in enumerate(zip(step.modules, owners, strict=True)):
            found = self._pairs.get(number)
            if found is None:
                self.carry.append(flatten(module)[0])
                continue
            after = step.returned[found].module
            if flatten(after)[1].template is not owner.template:
                self.refuse_module(number)
            for one in step.returned:
                if one.module is after:
                    self._carried[one.place] = len(self.carry)
            self.carry.append(step.arrays[step.returned[found].place])
        for place, _ in step.states:
            self._carried[place] = len(self.carry)
            self.carry.append(step.arrays[place])
        self._set: dict[int, tuple[int, int]] = {}
        """The same for parameters that were set in a module that is not in the result, with their number in it."""
        self._first: set[int] = set()
        """Positions of parameters that were set in a module that a result replaces: only the first step has it."""
        for number, param, place, _ in step.meaning.changed:
            if number in self._pairs:
                self._first.add(place)
            else:
                self._set[place] = 1 + number, param

    def rest(self) -> list[Any]:
        """The arrays that do not go to the next step."""
        places = [
            place for place in range(len(self.step.arrays)) if place not in self._carried and place not in self._set
        ]
        return [part for place in places for part in _tuple(self.step.arrays[place])]

    def together(self, last: Sequence[tuple[Any, ...]], stacked: Sequence[Any], count: int) -> list[Any]:
        """The arrays that all steps come to: as the last one left them, or stacked."""
        backend = self._reader.backend
        rest = iter(stacked)
        arrays: list[Any] = []
        for place, leaf in enumerate(self.step.arrays):
            if place in self._carried:
                arrays.append(last[self._carried[place]])
            elif place in self._set:
                part, param = self._set[place]
                arrays.append(last[part][param])
            elif isinstance(leaf, tuple):
                parts = islice(rest, len(cast("tuple[Any, ...]", leaf)))
                arrays.append(tuple([_entry_of(backend, part, count - 1) for part in parts]))
            else:
                one = next(rest)
                arrays.append(_entry_of(backend, one, 0) if place in self._first else one)
        return arrays

    def refuse_module(self, number: int) -> None:
        """Raise the error for a module whose structure changes in a step."""
        given = self._reader.modules[number]
        after = self.step.returned[self._pairs[number]]
        facets = [dict(module_facets(module, given.path)) for module in (self.step.modules[number], after.module)]
        changes = changes_between(*facets)
        what = "; ".join(f"{change.path} was {change.before} and is {change.after}" for change in changes[:5])
        raise CompileError(
            f"{self._name}: {after.path} goes on as {given.path} in the next step and must be built like it; {what}"
        )

    def refuse_state(self, number: int, backend: Backend) -> None:
        """Raise the error for an optimizer whose state changes its form in a step."""
        before, after = self._reader.optimizers[number].packed, self.step.states[number][1]
        names: dict[ParamId, str] = {}
        for given in self._reader.modules:
            for path, param in given.module.named_params():
                names.setdefault(param.id, f"{given.path}.{path}")
        old, new = (_described(backend, packed) for packed in (before, after))
        what = [
            f"that of {names.get(id, 'a parameter')} was {old.get(id, 'none')} and is {new.get(id, 'none')}"
            for id in {**old, **new}
            if old.get(id) != new.get(id)
        ]
        optimizer = type(self._reader.optimizers[number].optimizer).__name__
        raise CompileError(
            f"{self._name}: the state of an optimizer ({optimizer}) goes on from step to step and must keep its form; "
            f"{'; '.join(what[:3])}; let `init` return what `step` will"
        )


def _form(packed: FlatState) -> Hashable:
    """The form of states, which must not change from step to step; empty states are left out."""
    states = zip(packed.ids, packed.form.skeletons, strict=True)
    return (
        packed.form.places,
        packed.form.backends,
        packed.form.sources,
        tuple([(id, skeleton) for id, skeleton in states if any(paths(skeleton))]),
    )


def _described(backend: Backend, packed: FlatState) -> dict[ParamId, str]:
    """The state of every parameter in words."""
    leaves = iter([packed.leaves[source] for source in packed.form.sources])
    found: dict[ParamId, str] = {}
    for id, skeleton in zip(packed.ids, packed.form.skeletons, strict=True):
        parts = [
            f"{path or 'it'} {kind}" + ("" if kind == "integer" else f" {_shape(backend, next(leaves))}")
            for path, kind in paths(skeleton)
        ]
        found[id] = ", ".join(parts) or "empty"
    return found


def _shape(backend: Backend, array: Any) -> tuple[int, ...]:
    return () if isinstance(array, (int, float)) else backend.shape(array)


def _shapes(backend: Backend, arrays: Sequence[Any]) -> list[tuple[int, ...]]:
    return [_shape(backend, array) for array in arrays]


def _tuple(leaf: Any) -> tuple[Any, ...]:
    return cast("tuple[Any, ...]", leaf) if isinstance(leaf, tuple) else (leaf,)


def _grouped(flat: Sequence[Any], sizes: Sequence[int]) -> list[tuple[Any, ...]]:
    rest = iter(flat)
    return [tuple(islice(rest, size)) for size in sizes]


def _entry_of(backend: Backend, array: Any, step: int) -> Any:
    """One entry of an array on its first axis, or one of several numbers."""
    if isinstance(array, tuple):
        return cast("tuple[Any, ...]", array)[step]
    return Tensor.from_primitive(array, backend)[step].primitive

"""Several steps in one call: the arguments of each step, the values passed from step to step, and the results.

A function of modules and data is called n times: each time with the next entry of the arguments that the loop runs
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
from phlox.transform.compile.trace import Call, OutputSpec, StepArguments, keep_sharding
from phlox.transform.tree import AnyTensor, leaves_of, map_leaves, map_parts, parts_of, with_parts


class Steps(NamedTuple):
    """The number of steps in one call, and the parameters with an entry for each step."""

    number: int
    over: frozenset[str]


def with_step_scalars(value: Any, path: str, steps: int) -> Any:
    """An argument that the loop runs over, with `StepScalars` for lists and arrays of them.

    Raises `CompileError` if the length of a first axis, or of a list of numbers, is not the number of steps, or if the
    argument has no entries.
    """
    if isinstance(value, Tensor):
        shape = cast("AnyTensor", value).shape
        if shape[:1] != (steps,):
            problem = f"is of shape {shape}" if shape else "has no axis"
            raise CompileError(
                f"{path}: it must have an entry for each of the {steps} steps on its first axis, and {problem}"
            )
        return cast("AnyTensor", value)
    if isinstance(value, (Module, Optimizer)):
        raise CompileError(
            f"{path}: a {type(value).__name__} is continued from step to step by itself; take {path} out of `over`"
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
    return map_parts(lambda part, below: with_step_scalars(part, below, steps), value, path)


def _scalars_of(value: Any, path: str) -> tuple[Any, ...] | None:
    """The scalars of a list, a tuple or an array that has nothing else: all floats, or all integers; otherwise None."""
    if isinstance(value, np.ndarray):
        array = cast("np.ndarray[Any, Any]", value)
        if array.ndim != 1 or array.dtype.kind not in "fiu":
            raise CompileError(
                f"{path}: it is a NumPy array of {array.dtype} and shape {array.shape}, but `over` takes only arrays "
                "of numbers on one axis; make it a tensor with phlox.tensor(...)"
            )
        return tuple(array.tolist())
    if not isinstance(value, (list, tuple)) or not value:
        return None
    parts = cast("list[Any]", value)
    if not all(
        isinstance(part, (float, int, np.floating, np.integer)) and not isinstance(part, bool) for part in parts
    ):
        return None
    are_integers = all(isinstance(part, (int, np.integer)) for part in parts)
    return tuple([int(part) if are_integers else float(part) for part in parts])


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
    """Pairs (argument, result): the module in the result that replaces each module argument in the next step.

    A module continues another if it has the same parameters. If several arguments have the same parameters, such as a
    network and the average of its weights, they are continued in order. Each result has a key that is equal for the
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
    """Run the steps one by one, each as an ordinary call."""
    values = dict(named)
    results: list[Any] = []
    for step in range(plan.number):
        arguments = [entry(value, step) if name in plan.over else value for name, value in values.items()]
        keywords = dict(zip(list(values)[positional:], arguments[positional:], strict=True))
        result = fn(*arguments[:positional], **keywords)
        values = _next_arguments(values, result)
        if results:  # only the last modules are returned; the others need not be kept
            results[-1] = map_leaves(lambda module: None, results[-1], Module)
        results.append(result)
    return combine(results, "the result", name)


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


def combine(results: list[Any], path: str, name: str) -> Any:
    """The results of all steps as one: tensors stacked, modules of the last step, constants unchanged.

    Raises `CompileError`, with the path, if a value differs from step to step and cannot be stacked.
    """
    if isinstance(results[-1], Module):
        return results[-1]
    first, kind = results[0], cast("type[Any]", type(results[0]))
    _check_alike(results, path, lambda x: f"a {type(x).__name__}")
    if isinstance(first, Tensor):
        _check_alike(results, path, lambda x: f"{x.kind.__name__} {x.shape} on {x.backend!r}")
        # Without history, like results of a program; otherwise the tapes of all steps would be kept.
        stacked, backend = stack([cast("AnyTensor", result).detach() for result in results]), first.backend
        if not any(backend.requires_grad(result.primitive) for result in results):
            return stacked
        return stacked._with(backend.poisoned(stacked.primitive, no_history(name)))  # pyright: ignore[reportPrivateUsage]
    if parts_of(first) is not None:
        _check_alike(
            results, path, lambda x: f"{kind.__name__} of {', '.join(label for label, _ in _parts(x)) or 'nothing'}"
        )
        columns = zip(*[_parts(result) for result in results], strict=True)
        return with_parts(first, [combine([x for _, x in column], f"{path}{column[0][0]}", name) for column in columns])
    _check_alike(results, path, repr)
    return first


def _parts(value: Any) -> list[tuple[str, Any]]:
    return parts_of(value) or []


def _check_alike(results: list[Any], path: str, describe: Callable[[Any], str]) -> None:
    first = describe(results[0])
    for step, result in enumerate(results):
        if (other := describe(result)) != first:
            raise CompileError(
                f"{path} is {first} in step 0 and {other} in step {step}, and cannot be stacked; return tensors of one "
                "shape, and nothing else that changes from step to step"
            )


# --- as one loop of a program


Record = Callable[[Call, Sequence[Any], Sequence[Any]], StepArguments]


class Loop:
    """The trace of several steps: one step, and the passing of its results to the next.

    The position of the random stream, the arrays of modules and the states of optimizers go from step to step. Every
    step takes its own entry of the arrays that the loop runs over. All other values are the same in every step.
    """

    def __init__(self, record: Record, name: str, call: Call, donated: Sequence[Any], kept: Sequence[Any]) -> None:
        self._record, self._name, self._call = record, name, call
        reader = self._reader = call.reader
        self._backend = reader.backend
        self._lists = {id(reader.donated): list(donated), id(reader.kept): list(kept)}
        self._carried = [
            (reader.kept, 0),
            *((module.leaves, module.position) for module in reader.modules),
            *((optimizer.leaves, optimizer.position) for optimizer in reader.optimizers),
        ]
        self._carry = [_tuple(self._leaf(leaves, index)) for leaves, index in self._carried]

    def _leaf(self, leaves: list[Any], index: int) -> Any:
        return self._lists[id(leaves)][index]

    def _step(self, carry: Sequence[tuple[Any, ...]], entries: Sequence[Any]) -> StepArguments:
        reader = self._reader
        lists = {number: list(leaves) for number, leaves in self._lists.items()}
        for (leaves, index), parts in zip(self._carried, carry, strict=True):
            is_tuple = isinstance(self._leaf(leaves, index), tuple)
            lists[id(leaves)][index] = parts if is_tuple else parts[0]
        for (leaves, index), array in zip(self._call.over, entries, strict=True):
            lists[id(leaves)][index] = array
        return self._record(self._call, lists[id(reader.donated)], lists[id(reader.kept)])

    def run(self, count: int) -> tuple[list[Any], OutputSpec]:
        """The arrays after all steps, and their meaning."""
        sizes = [len(parts) for parts in self._carry]
        splits: list[_Split] = []

        def body(state: tuple[Any, ...], entry: tuple[Any, ...]) -> tuple[Sequence[Any], Sequence[Any]]:
            split = _Split(self._name, self._reader, self._step(_grouped(state, sizes), entry))
            self._check(split)
            splits.append(split)
            carry = [keep_sharding(self._backend, *pair) for pair in zip(split.carry, self._carry, strict=True)]
            return [part for parts in carry for part in parts], split.to_stack()

        start = [part for parts in self._carry for part in parts]
        entries = [self._leaf(*where) for where in self._call.over]
        last, stacked = self._backend.scan(body, start, entries, count)
        split = splits[-1]
        meaning = split.step.meaning
        return split.combine(_grouped(last, sizes), stacked, count), replace(meaning, draws=meaning.draws * count)

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
    """The outcome of a step, split: the arrays for the next step, and the arrays to stack."""

    def __init__(self, name: str, reader: CallArguments, step: StepArguments) -> None:
        self._name, self._reader, self.step = name, reader, step
        owners = [cast("Aux", reader.owners[argument.owner]) for argument in reader.modules]
        self._pairs = continuations(
            [(argument.path, owner.ids) for argument, owner in zip(reader.modules, owners, strict=True)],
            [(result.path, result.ids, id(result.module)) for result in step.returned],
        )
        self.carry: list[tuple[Any, ...]] = [(step.words,)]
        self._carried: dict[int, int] = {}
        """For each array that goes to the next step, by position, its index in the carry."""
        for number, (module, owner) in enumerate(zip(step.modules, owners, strict=True)):
            successor = self._pairs.get(number)
            if successor is None:
                self.carry.append(flatten(module)[0])
                continue
            after = step.returned[successor].module
            if flatten(after)[1].template is not owner.template:
                self.refuse_module(number)
            for result in step.returned:
                if result.module is after:
                    self._carried[result.position] = len(self.carry)
            self.carry.append(step.arrays[step.returned[successor].position])
        for index, _ in step.states:
            self._carried[index] = len(self.carry)
            self.carry.append(step.arrays[index])
        self._set: dict[int, tuple[int, int]] = {}
        """Likewise for parameters set in a module that is not in the result, with the parameter's number."""
        self._first: set[int] = set()
        """Positions of parameters set in a module that a result replaces: only the first step has the module."""
        for number, param, index, _ in step.meaning.changed:
            if number in self._pairs:
                self._first.add(index)
            else:
                self._set[index] = 1 + number, param

    def to_stack(self) -> list[Any]:
        """The arrays that do not go to the next step."""
        indices = [
            index for index in range(len(self.step.arrays)) if index not in self._carried and index not in self._set
        ]
        return [part for index in indices for part in _tuple(self.step.arrays[index])]

    def combine(self, last: Sequence[tuple[Any, ...]], stacked: Sequence[Any], count: int) -> list[Any]:
        """The arrays after all steps: from the last step, or stacked."""
        backend = self._reader.backend
        remaining = iter(stacked)
        arrays: list[Any] = []
        for index, leaf in enumerate(self.step.arrays):
            if index in self._carried:
                arrays.append(last[self._carried[index]])
            elif index in self._set:
                part, param = self._set[index]
                arrays.append(last[part][param])
            elif isinstance(leaf, tuple):
                parts = islice(remaining, len(cast("tuple[Any, ...]", leaf)))
                arrays.append(tuple([_entry_of(backend, part, count - 1) for part in parts]))
            else:
                array = next(remaining)
                arrays.append(_entry_of(backend, array, 0) if index in self._first else array)
        return arrays

    def refuse_module(self, number: int) -> None:
        """Raise the error for a module whose structure changes in a step."""
        argument = self._reader.modules[number]
        after = self.step.returned[self._pairs[number]]
        facets = [dict(module_facets(module, argument.path)) for module in (self.step.modules[number], after.module)]
        changes = changes_between(*facets)
        text = "; ".join(f"{change.path} was {change.before} and is {change.after}" for change in changes[:5])
        raise CompileError(
            f"{self._name}: {after.path} becomes {argument.path} in the next step and must have its structure; {text}"
        )

    def refuse_state(self, number: int, backend: Backend) -> None:
        """Raise the error for an optimizer whose state changes its form in a step."""
        before, after = self._reader.optimizers[number].packed, self.step.states[number][1]
        names: dict[ParamId, str] = {}
        for argument in self._reader.modules:
            for path, param in argument.module.named_params():
                names.setdefault(param.id, f"{argument.path}.{path}")
        old, new = (_describe_states(backend, packed) for packed in (before, after))
        changes = [
            f"the state of {names.get(id, 'a parameter')} was {old.get(id, 'none')} and is {new.get(id, 'none')}"
            for id in {**old, **new}
            if old.get(id) != new.get(id)
        ]
        optimizer = type(self._reader.optimizers[number].optimizer).__name__
        raise CompileError(
            f"{self._name}: the state of an optimizer ({optimizer}) goes from step to step and must keep its form; "
            f"{'; '.join(changes[:3])}; let `init` return a state of the form that `step` returns"
        )


def _form(packed: FlatState) -> Hashable:
    """The form of states, which must not change from step to step; empty states are left out."""
    states = zip(packed.ids, packed.form.skeletons, strict=True)
    return (
        packed.form.positions,
        packed.form.backends,
        packed.form.sources,
        tuple([(id, skeleton) for id, skeleton in states if any(paths(skeleton))]),
    )


def _describe_states(backend: Backend, packed: FlatState) -> dict[ParamId, str]:
    """The state of every parameter in words."""
    leaves = iter([packed.leaves[source] for source in packed.form.sources])
    texts: dict[ParamId, str] = {}
    for id, skeleton in zip(packed.ids, packed.form.skeletons, strict=True):
        parts = [
            f"{path or 'it'} {kind}" + ("" if kind == "integer" else f" {_shape(backend, next(leaves))}")
            for path, kind in paths(skeleton)
        ]
        texts[id] = ", ".join(parts) or "empty"
    return texts


def _shape(backend: Backend, array: Any) -> tuple[int, ...]:
    return () if isinstance(array, (int, float)) else backend.shape(array)


def _shapes(backend: Backend, arrays: Sequence[Any]) -> list[tuple[int, ...]]:
    return [_shape(backend, array) for array in arrays]


def _tuple(leaf: Any) -> tuple[Any, ...]:
    return cast("tuple[Any, ...]", leaf) if isinstance(leaf, tuple) else (leaf,)


def _grouped(flat: Sequence[Any], sizes: Sequence[int]) -> list[tuple[Any, ...]]:
    remaining = iter(flat)
    return [tuple(islice(remaining, size)) for size in sizes]


def _entry_of(backend: Backend, array: Any, step: int) -> Any:
    """One entry of an array on its first axis, or one of a tuple of numbers."""
    if isinstance(array, tuple):
        return cast("tuple[Any, ...]", array)[step]
    return Tensor.from_primitive(array, backend)[step].primitive

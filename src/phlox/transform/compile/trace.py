"""One call of a function on tracers: its arguments, results and side effects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from phlox import random
from phlox.backend import Backend
from phlox.backend.tracing.checks import Check, collecting
from phlox.module import Module, Param
from phlox.module.template import Aux, flatten
from phlox.optim import Optimizer
from phlox.optim.optimizer import tracing
from phlox.optim.state.flat import FlatState
from phlox.tensor import Tensor
from phlox.transform.compile.outputs import Maker, OutputWriter, Returned, StateMaker
from phlox.transform.compile.recompiles import changes_between, field_error, module_facets
from phlox.transform.compile.signature import CallArguments, IdPosition, Ids, Rebuilder, first_positions


class Call(NamedTuple):
    """The arguments of one call, as passed and as read."""

    reader: CallArguments
    named: list[tuple[str, Any, list[Any]]]
    """Name, value, and the list that has its arrays; the last `keywords` arguments were passed by keyword."""
    keywords: int
    over: list[tuple[list[Any], int]]
    """For each array with an entry for each step of a loop, the list that has it, and the index in the list."""


@dataclass(eq=False, slots=True)
class OutputSpec:
    """The meaning of the arrays that a program returns: the result, optimizer states, and parameters that were set."""

    result: Maker
    states: list[StateMaker]
    changed: list[tuple[int, int, int, Backend]]
    """The numbers of module, parameter and array, and the backend of the new value."""
    draws: int
    checks: list[Check]
    """The checks after the call; their scalars are the last arrays."""
    returns_optimizers: bool
    continued: list[tuple[int, int]]
    """Module arguments, by number, with the positions of the arrays of the modules in the result that continue them."""
    plain: bool = field(init=False)
    """Is the result the only effect of a call?"""

    def __post_init__(self) -> None:
        self.plain = not (self.states or self.changed or self.draws or self.checks)


class StepArguments(NamedTuple):
    """The outcome of one call on tracers."""

    arrays: list[Any]
    """The arrays, with tuples of them for modules and states; the last are the scalars of checks."""
    meaning: OutputSpec
    words: Any
    """The position of the random stream after the call."""
    modules: list[Module]
    """The modules among the arguments."""
    returned: list[Returned]
    states: list[tuple[int, FlatState]]
    """For each optimizer the position of its state among the arrays, and the state."""


def record(
    fn: Callable[..., Any], name: str, call: Call, donated: Sequence[Any], kept: Sequence[Any], checked: bool
) -> StepArguments:
    """Call the function on tracers for the arrays of a call."""
    reader = call.reader
    rebuilder = Rebuilder(tracing.get(), reader.backend)
    sources = {id(reader.donated): iter(donated), id(reader.kept): iter(kept)}
    stream = random.TracedStream(next(sources[id(reader.kept)]))
    stream.whole = random.current().whole
    twins = rebuilder.twins_of(reader.optimizers)
    values = [rebuilder.rebuild(value, sources[id(leaves)]) for _, value, leaves in call.named]
    for argument, twin in zip(reader.optimizers, twins, strict=True):
        rebuilder.rebuild_late(twin, argument.packed, sources[id(argument.leaves)])
    positional = len(values) - call.keywords
    names = [name for name, _, _ in call.named[positional:]]
    keywords = dict(zip(names, values[positional:], strict=True))
    before = [(module.params(), [param.val() for param in module.params()]) for module in rebuilder.modules]
    with random.stream(stream), collecting(checked, stream.start) as collected:
        result = fn(*values[:positional], **keywords)
    if reader.guess:
        _check_first_states(reader, twins)
    writer = OutputWriter(reader.owners, twins, name)
    make = writer.write(result)
    device = reader.backend.device_of_tracers(reader.device)
    states: list[tuple[int, FlatState]] = []
    makers: list[StateMaker] = []
    for twin in twins:
        states.append((len(writer.arrays), twin.pack(device)))
        makers.append(writer.state(twin, device))
    changed = _changed(name, reader, rebuilder.modules, before, writer.arrays)
    reader.twins = twins
    continued = _continued(reader, writer.modules)
    meaning = OutputSpec(make, makers, changed, stream.position, collected.checks, writer.has_optimizers, continued)
    arrays = [*writer.arrays, *collected.values]
    if reader.backend.partitions:
        lists = {id(reader.donated): donated, id(reader.kept): kept}
        carried = [(reader.modules[number], index) for number, index in meaning.continued]
        carried += [(argument, index) for argument, (index, _) in zip(reader.optimizers, states, strict=True)]
        for argument, index in carried:
            arrays[index] = keep_sharding(reader.backend, arrays[index], lists[id(argument.leaves)][argument.position])
    return StepArguments(arrays, meaning, stream.words(), rebuilder.modules, writer.modules, states)


def keep_sharding(backend: Backend, results: Any, arguments: Any) -> Any:
    """Give results that continue arguments the arguments' sharding, because another sharding needs another program.

    Both are tuples of arrays. If their lengths differ, as with new states, results are not changed.
    """
    if len(results) != len(arguments):
        return results
    return tuple(map(backend.keep_sharding, results, arguments))


class WrongStateGuess(Exception):
    """The function steps other parameters than guessed; `variants` has the parameters that it steps."""

    def __init__(self, variants: list[dict[IdPosition, int]]) -> None:
        super().__init__()
        self.variants = variants


def _check_first_states(reader: CallArguments, twins: Sequence[Optimizer]) -> None:
    """Raise `WrongStateGuess` if a state was created that no step used, or a used state was not created."""
    variants: list[dict[IdPosition, int]] = []
    is_wrong = False
    positions = first_positions(reader.owners[argument.owner].ids for argument in reader.modules)
    for argument, twin in zip(reader.optimizers, twins, strict=True):
        states, before = twin.states, argument.packed.ids
        new = [id for id in states if id in positions and id not in before]
        is_wrong |= bool(twin.begun) or (bool(new) and type(twin).begin is not Optimizer.begin)
        first = [*new, *(id for id in argument.ready.begun if id in positions and id not in twin.begun)]
        variants.append({_position_among_owners(reader, positions[id]): twin.variant(id) for id in first})
    if is_wrong:
        raise WrongStateGuess(variants)


def _position_among_owners(reader: CallArguments, position: IdPosition) -> IdPosition:
    """A position among the owners of modules, as a position among all owners."""
    return reader.modules[position[0]].owner, position[1]


def _continued(reader: CallArguments, returned: Sequence[Returned]) -> list[tuple[int, int]]:
    """Module arguments, by number, with the positions of the modules in the result that have the same parameters.

    If several have the same parameters, they are continued in order.
    """
    positions: dict[Ids, list[int]] = {}
    for module in returned:
        positions.setdefault(module.ids, []).append(module.position)
    pairs: list[tuple[int, int]] = []
    for number, argument in enumerate(reader.modules):
        candidates = positions.get(reader.owners[argument.owner].ids)
        if candidates:
            pairs.append((number, candidates.pop(0) if len(candidates) > 1 else candidates[0]))
    return pairs


def _changed(
    name: str,
    reader: CallArguments,
    modules: list[Module],
    before: list[tuple[list[Param], list[Tensor[Any, Any, Any]]]],
    arrays: list[Any],
) -> list[tuple[int, int, int, Backend]]:
    """The parameters of arguments that were set, whose new values are appended to the arrays."""
    changed: list[tuple[int, int, int, Backend]] = []
    for number, (argument, module, (_, values)) in enumerate(zip(reader.modules, modules, before, strict=True)):
        owner = reader.owners[argument.owner]
        assert isinstance(owner, Aux)
        if flatten(module)[1].template is not owner.template:
            before_call, after_call = (dict(module_facets(x, argument.path)) for x in (argument.module, module))
            raise field_error(name, type(module).__name__, changes_between(before_call, after_call))
        if argument.leaves is reader.donated:  # it is not used again
            continue
        for index, (param, old) in enumerate(zip(module.params(), values, strict=True)):
            value = param.val()
            if value is not old:
                changed.append((number, index, len(arrays), value.backend))
                arrays.append(value.backend.strip(value.primitive))
    return changed

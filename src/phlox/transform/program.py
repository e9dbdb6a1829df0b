"""One program: recorded when first called, and once more for every combination of shapes; then run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import islice
from threading import RLock
from typing import Any, NamedTuple, cast

from phlox import random
from phlox.backend import Backend, Device
from phlox.backend.checks import Check, gathering
from phlox.backend.pytree import Node, register_node
from phlox.errors import CompileError, DeviceError, RandomnessError
from phlox.module import Module, Param
from phlox.module.template import Aux, flatten
from phlox.optim.optimizer import Packed, recording
from phlox.tensor import Tensor
from phlox.transform.reading import Ids, Place, Reader, Rebuilder, first_places, plain_backend, used_up
from phlox.transform.results import Maker, StateMaker, Writer


class Call(NamedTuple):
    """The arguments of one call, as given and as read."""

    reader: Reader
    named: list[tuple[str, Any, list[Any]]]
    """Name, value, and the list that its arrays have gone to; the last `keywords` of them by keyword."""
    keywords: int


@dataclass(eq=False, slots=True)
class Meaning:
    """What the arrays of an outcome stand for: the result, states of optimizers, and parameters that were set."""

    result: Maker
    states: list[StateMaker]
    state_ids: list[Ids]
    changed: list[tuple[int, int, int, Backend]]
    """Module, parameter, array, and the backend that it is seen from."""
    draws: int
    checks: list[Check]
    """What is checked after the call; its numbers are the last of the arrays."""


class Outcome:
    """What a program returns: arrays, and what to make of them, which was found when it was recorded.

    As a PyTree node it lets the engine keep the second beside each recording.
    """

    __slots__ = ("arrays", "meaning")

    def __init__(self, arrays: Sequence[Any], meaning: Meaning) -> None:
        self.arrays = arrays
        self.meaning = meaning


def _take_apart(outcome: Outcome) -> tuple[Sequence[Any], Meaning]:
    return outcome.arrays, outcome.meaning


def _put_together(meaning: Meaning, arrays: Any) -> Outcome:
    return Outcome(arrays, meaning)


register_node(Node(Outcome, _take_apart, _put_together))


def _arrays(leaves: Sequence[Any]) -> list[Any]:
    """The arrays among leaves, some of which are tuples of them, and some numbers."""
    each = [one for leaf in leaves for one in (cast("tuple[Any, ...]", leaf) if isinstance(leaf, tuple) else (leaf,))]
    return [one for one in each if hasattr(one, "shape")]


class StatesElsewhere(Exception):
    """States of an optimizer were on another device than its module, and have been moved there: try again."""


_call: ContextVar[Call] = ContextVar("phlox_call")
_drawing = RLock()
_nothing = nullcontext()


class Program:
    """A function of certain structures, as the engine runs it."""

    def __init__(self, fn: Callable[..., Any], name: str, backend: Backend, checked: bool) -> None:
        self.fn, self.name, self.backend, self.checked = fn, name, backend, checked
        self.run = backend.compile(self._body)
        self.draws = True  # until it is known that it does not

    def __call__(self, call: Call) -> Any:
        reader = call.reader
        # Two threads on one stream must not draw from one position: the next starts where this one has ended.
        with _drawing if self.draws else _nothing:
            stream = random.current()
            reader.kept[0] = words = stream.words()
            token = _call.set(call)
            try:
                outcome: Outcome = self.run(reader.donated, reader.kept)
            except Exception as error:
                self._explain(error, call)
                raise
            finally:
                _call.reset(token)
            arrays, meaning = outcome.arrays, outcome.meaning
            if meaning.checks:
                self._judge(arrays, meaning.checks)
            self.draws = bool(meaning.draws)
            if meaning.draws:
                self._check_stream(arrays, words)
                stream.skip(meaning.draws)
        owners = reader.owners
        result = meaning.result(arrays, owners)
        for (optimizer, packed, _), make in zip(reader.optimizers, meaning.states, strict=True):
            optimizer.load_packed(make(arrays, owners, packed.place))
        for number, place, at, backend in meaning.changed:
            param = reader.modules[number][0].params()[place]
            param.set(Tensor.from_primitive(arrays[at], backend, param.kind))
        return result

    def _judge(self, arrays: Sequence[Any], checks: list[Check]) -> None:
        """Raise what the first failed check says, unless this is itself part of a program."""
        numbers = iter(arrays[len(arrays) - sum(check.count for check in checks) :])
        for check in checks:
            mine = list(islice(numbers, check.count))
            if not any(map(self.backend.is_traced, mine)):
                check.raise_for([self.backend.to_host(number).item() for number in mine])

    def _explain(self, error: Exception, call: Call) -> None:
        """Raise an error that says more, if there is more to be said, or `StatesElsewhere` if that is all."""
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, Exception) and self.backend.is_record_error(cause):
                raise CompileError(
                    f"{self.name}: the value of a tensor or number is needed while the function is being compiled "
                    f"(by item(), float(), bool(), range() or numpy()); use phlox.where, or move it out "
                    f"({str(cause).strip().splitlines()[0]})"
                ) from error
            cause = cause.__cause__
        devices: dict[Device, str] = {}
        for name, value, _ in call.named:
            leaves: list[Any] = []
            Reader(self.backend).read(value, name, leaves)
            arrays = _arrays(leaves)
            if any(map(self.backend.is_gone, arrays)):
                raise used_up(f"{self.name}: {name}") from error
            for array in arrays:
                if not self.backend.is_traced(array):
                    devices.setdefault(self.backend.device_of(array), name)
        left = [optimizer for optimizer, packed, _ in call.reader.optimizers if self._is_elsewhere(packed, call.reader)]
        for optimizer in left:
            optimizer.load_packed(Packed.of(optimizer.states, call.reader.place))
        if left:
            raise StatesElsewhere from error
        if len(devices) > 1 and isinstance(error, ValueError):
            have = " and ".join(f"{name} on {device}" for device, name in devices.items())
            raise DeviceError(
                f"{self.name}: the arguments are on different devices, {have}; move one with .to_device(...)"
            ) from error

    def _is_elsewhere(self, packed: Packed, reader: Reader) -> bool:
        arrays = _arrays(packed.leaves)
        if any(map(self.backend.is_gone, arrays)):
            return False
        return any(self.backend.device_of(array) != reader.place for array in arrays)

    def _check_stream(self, arrays: Sequence[Any], words: Any) -> None:
        if any(map(self.backend.is_traced, _arrays(arrays))) and not self.backend.is_traced(words):
            raise RandomnessError(
                f"{self.name} draws random numbers and is called inside a raw JAX transformation, which would bake "
                "them in; compile the outer function with phlox.compile, or open phlox.random.stream(key) inside it"
            )

    def _body(self, donated: list[Any], kept: list[Any]) -> Outcome:
        """The function on placeholders: what the engine records."""
        call = _call.get()
        reader = call.reader
        here = object()
        rebuilder = Rebuilder(here)
        sources = {id(reader.donated): iter(donated), id(reader.kept): iter(kept)}
        stream = random.TracedStream(next(sources[id(reader.kept)]))
        token = recording.set(here)
        try:
            values = [rebuilder.rebuild(value, sources[id(leaves)]) for _, value, leaves in call.named]
            for optimizer, packed, leaves in reader.optimizers:
                rebuilder.rebuild_late(optimizer, packed, sources[id(leaves)])
            positional = len(values) - call.keywords
            names = [name for name, _, _ in call.named[positional:]]
            keywords = dict(zip(names, values[positional:], strict=True))
            before = [(module.params(), [param.val() for param in module.params()]) for module in rebuilder.modules]
            with random.stream(stream), gathering(self.checked, stream.start) as gathered:
                result = self.fn(*values[:positional], **keywords)
            outcome = self._outcome(reader, rebuilder.modules, before, result, stream.position)
            outcome.meaning.checks.extend(gathered.checks)
            outcome.arrays = [*outcome.arrays, *gathered.numbers]
            return outcome
        finally:
            recording.reset(token)
            for optimizer, packed, _ in reader.optimizers:
                optimizer.load_packed(packed)

    def _outcome(
        self,
        reader: Reader,
        modules: list[Module],
        before: list[tuple[list[Param], list[Tensor[Any, Any, Any]]]],
        result: Any,
        draws: int,
    ) -> Outcome:
        writer = Writer(reader.owners)
        make = writer.write(result)
        here = self.backend.device()  # where placeholders seem to be
        states = [writer.state(optimizer, here) for optimizer, _, _ in reader.optimizers]
        changed: list[tuple[int, int, int, Backend]] = []
        for number, (module, (_, values)) in enumerate(zip(modules, before, strict=True)):
            owner = reader.owners[reader.modules[number][1]]
            assert isinstance(owner, Aux)
            if flatten(module)[1].template is not owner.template:
                raise CompileError(
                    f"{self.name}: a field of the {type(module).__name__} that is an argument was changed inside, "
                    "which ends with the call; return a new module, or keep what changes in a Param that is not trained"
                )
            for place, (param, old) in enumerate(zip(module.params(), values, strict=True)):
                value = param.val()
                if value is not old:
                    changed.append((number, place, len(writer.arrays), value.backend))
                    writer.arrays.append(value.backend.strip(value.primitive))
        state_ids = [tuple(optimizer.states) for optimizer, _, _ in reader.optimizers]
        return Outcome(writer.arrays, Meaning(make, states, state_ids, changed, draws, []))

    def find_states(self, call: Call) -> list[list[Place]]:
        """The parameters that each optimizer makes a state for, if not all of them have one.

        Recorded once on placeholders, the function tells.
        """
        reader = call.reader
        owned = {id for _, number in reader.modules for id in reader.owners[number].ids}
        if all(owned <= set(packed.ids) for _, packed, _ in reader.optimizers):
            return []
        found: list[list[Ids]] = []

        def body(donated: list[Any], kept: list[Any]) -> Outcome:
            outcome = self._body(donated, kept)
            found.append(outcome.meaning.state_ids)
            return outcome

        token = _call.set(call)
        reader.kept[0] = random.current().words()
        try:
            self.backend.record_only(body, reader.donated, reader.kept)
        except Exception as error:
            self._explain(error, call)
            raise
        finally:
            _call.reset(token)
        places = first_places(reader.owners[number].ids for _, number in reader.modules)
        return [[places[id] for id in ids if id in places] for ids in found[0]]


def fill_states(reader: Reader, found: list[list[Place]]) -> bool:
    """Give optimizers the states that their first step would make, so that it and all others are one program."""
    filled = False
    for (optimizer, _, _), places in zip(reader.optimizers, found, strict=bool(found)):
        states = optimizer.states
        for number, place in places:
            param = reader.modules[number][0].params()[place]
            if param.id in states:
                continue
            value = param.val()
            array = value.backend.strip(value.primitive)
            state = optimizer.init_state(Tensor.from_primitive(array, plain_backend(value.backend), value.kind))
            if state is not None:
                states[param.id] = state
                filled = True
    return filled

"""One program: recorded when first called, and once more for every combination of shapes; then run."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from itertools import islice
from threading import RLock
from typing import Any, cast

from phlox import random
from phlox.backend import Backend
from phlox.backend.checks import Check
from phlox.backend.levels import resumed
from phlox.backend.programs import left_over, note_donation, note_recording, used_up
from phlox.backend.pytree import Node, register_node
from phlox.errors import CompileError, DeviceError, RandomnessError
from phlox.module.template import flatten
from phlox.optim.optimizer import Optimizer, recording
from phlox.optim.packed import Packed
from phlox.tensor import Tensor
from phlox.transform.handover import Handover
from phlox.transform.loop import Loop
from phlox.transform.reading import Ids, Owner, Place, Reader, first_places, plain_backend
from phlox.transform.recompiles import History, facets_of
from phlox.transform.recorded import Call, Meaning, Turn, record
from phlox.transform.turns import Turns


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


def _arrays_of(module: Any) -> Iterable[Any]:
    return flatten(module)[0]


def _alone(array: Any) -> Iterable[Any]:
    return (array,)


def _twice(call: Call) -> str | None:
    """Which arguments hold one array that is donated, if any do."""
    seen: dict[int, tuple[str, bool]] = {}
    for name, value, leaves in call.named:
        donated, mine = leaves is call.reader.donated, list[Any]()
        Reader(call.reader.backend).read(value, name, mine)
        for array in _arrays(mine):
            earlier = seen.get(id(array))
            if earlier is not None and (donated or earlier[1]):
                one = earlier[0] == name
                return f"{name} holds one array twice" if one else f"{earlier[0]} and {name} hold the same array"
            seen[id(array)] = name, donated
    return None


@contextmanager
def _recording(reader: Reader) -> Generator[None]:
    """A function is being recorded; afterwards, optimizers have the states that they had."""
    token = recording.set(object())
    try:
        with resumed(()):  # nothing of a function that is differentiated around the call enters it
            yield
    finally:
        recording.reset(token)
        for going in reader.optimizers:
            going.optimizer.load_packed(going.packed)


class StatesElsewhere(Exception):
    """States of an optimizer were on another device than its module, and have been moved there: try again."""


_call: ContextVar[Callable[[], Call]] = ContextVar("phlox_call")
_drawing = RLock()
_nothing = nullcontext()
_none: list[Any] = []


class Program:
    """A function of certain structures, as the engine runs it."""

    def __init__(
        self, fn: Callable[..., Any], history: History, backend: Backend, checked: bool, turns: Turns | None
    ) -> None:
        self.fn, self.name, self.backend, self.checked, self.turns = fn, history.function, backend, checked, turns
        self.history = history
        self.run = backend.compile(self._body, self._let_go)
        self.draws = True  # until it is known that it does not
        self._words: tuple[random.Stream, int, random.Key, Any] | None = None

    def __call__(self, call: Call) -> Any:
        reader = call.reader
        try:
            # Two threads on one stream must not draw from one position: the next starts where this one has ended.
            with _drawing if self.draws else _nothing:
                stream = random.current()
                reader.kept[0] = words = stream.words()
                token = _call.set(lambda: call)
                try:
                    outcome: Outcome = self.run(reader.donated, reader.kept)
                except Exception as error:
                    if reader.handover is None:
                        self._explain(error, call)
                    raise
                finally:
                    _call.reset(token)
                self._follow(outcome, stream, words)
            return self._results(outcome, call)
        finally:
            handover, reader.handover = reader.handover, None
            if handover is not None:
                handover.end()

    def _let_go(self) -> None:
        """The engine is about to write over what is donated in the call that is going on."""
        reader = _call.get()().reader
        reader.handover = Handover()  # known before anything can fail, so that it ends
        reader.handover.let_go(self.name, reader)

    def straight(self, kept: list[Any], owners: Sequence[Owner], read: Callable[[], Call]) -> Any:
        """As a call, for one that gives nothing away and has no optimizers, of a program that is known not to draw.

        `kept` are its arrays, the first place free; what else there is to it is read only where it is needed: to record
        the function for other shapes, to explain an error, or because the function does more than to return something.
        """
        stream = random.current()
        known = self._words
        if known is not None and known[0] is stream and known[1] == stream.position and known[2] is stream.key:
            kept[0] = words = known[3]
        else:
            kept[0] = words = stream.words()
            # Those of other streams may be placeholders.
            self._words = (stream, int(words[2]), stream.key, words) if type(stream) is random.Stream else None
        token = _call.set(read)
        try:
            outcome: Outcome = self.run(_none, kept)
        except Exception as error:
            self._explain(error, read())
            raise
        finally:
            _call.reset(token)
        meaning = outcome.meaning
        if meaning.plain:
            return meaning.result(outcome.arrays, owners)
        self._follow(outcome, stream, words)
        return self._results(outcome, read())

    def _follow(self, outcome: Outcome, stream: random.Stream, words: Any) -> None:
        """Judge what is checked in a call, and go on in the random stream."""
        meaning = outcome.meaning
        if meaning.checks:
            self._judge(outcome.arrays, meaning.checks)
        self.draws = bool(meaning.draws)
        if meaning.draws:
            self._check_stream(outcome.arrays, words)
            stream.skip(meaning.draws, self.backend)

    def _results(self, outcome: Outcome, call: Call) -> Any:
        """The result of a call, once states and parameters are as it has left them."""
        reader, arrays, meaning = call.reader, outcome.arrays, outcome.meaning
        if reader.donated:
            self._note_donations(call)
        owners = reader.owners
        result = meaning.result(arrays, owners)
        for (optimizer, packed, _, _), make in zip(reader.optimizers, meaning.states, strict=True):
            optimizer.load_packed(make(arrays, owners, packed.place))
        for number, place, at, backend in meaning.changed:
            param = reader.modules[number].module.params()[place]
            param.set(Tensor.from_primitive(arrays[at], backend, param.kind))
        if reader.handover is not None:
            reader.handover.done(arrays, meaning.continued)
        return result

    def _judge(self, arrays: Sequence[Any], checks: list[Check]) -> None:
        """Raise what the first failed check says, unless this is itself part of a program."""
        numbers = arrays[len(arrays) - sum(check.count for check in checks) :]
        if any(map(self.backend.is_traced, numbers)):
            return
        hosts = [self.backend.to_host(number) for number in numbers]
        for turn in [()] if self.turns is None else range(self.turns.number):
            found = iter([host[turn].tolist() for host in hosts])
            for check in checks:
                check.raise_for(list(islice(found, check.count)))

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
        devices: dict[str, str] = {}
        for name, value, _ in call.named:
            leaves: list[Any] = []
            Reader(self.backend).read(value, name, leaves)
            arrays = _arrays(leaves)
            for array in arrays:
                if self.backend.is_gone(array):
                    raise used_up(f"{self.name}: {name} was", array) from error
                if self.backend.is_left_over(array):
                    raise left_over(f"{self.name}: {name}", self.backend.program_of(array)) from error
            for array in arrays:
                if not self.backend.is_traced(array):
                    devices.setdefault(str(self.backend.device_of(array)), name)
        if self.backend.is_left_over_error(error):
            raise left_over(f"{self.name}: a tensor that it uses, and that is none of its arguments,", None) from error
        twice = _twice(call)
        if twice is not None:
            raise CompileError(
                f"{self.name}: {twice}, which cannot be given away and used besides; donate only one that nothing else "
                "holds, or pass a copy (tensor + 0.0)"
            ) from error
        left = [going.optimizer for going in call.reader.optimizers if self._is_elsewhere(going.packed, call.reader)]
        for optimizer in left:
            optimizer.load_packed(optimizer.repack(call.reader.place))
        if left:
            raise StatesElsewhere from error
        if len(devices) > 1 and isinstance(error, ValueError):
            have = " and ".join(f"{name} on {device}" for device, name in devices.items())
            raise DeviceError(
                f"{self.name}: the arguments are on different devices, {have}; "
                "move one with .to_device(...), to the device of the other"
            ) from error

    def _is_elsewhere(self, packed: Packed, reader: Reader) -> bool:
        arrays = _arrays(packed.leaves)
        if any(map(self.backend.is_gone, arrays)):
            return False
        return not all(reader.place.holds(self.backend.device_of(array)) for array in arrays)

    def _check_stream(self, arrays: Sequence[Any], words: Any) -> None:
        if any(map(self.backend.is_traced, _arrays(arrays))) and not self.backend.is_traced(words):
            raise RandomnessError(
                f"{self.name} draws random numbers and is called inside a raw JAX transformation, which would bake "
                "them in; compile the outer function with phlox.compile, or open phlox.random.stream(key) inside it"
            )

    def _note_donations(self, call: Call) -> None:
        """Remember what is used up, and by whom."""
        donated = call.reader.donated
        for given in call.reader.modules:
            if given.leaves is donated:
                note_donation(given.module, _arrays_of, self.name, given.path)
        for name, value, leaves in call.named:
            if leaves is donated and isinstance(value, Tensor):
                array = self.backend.strip(cast("Tensor[Any, Any, Any]", value).primitive)
                note_donation(array, _alone, self.name, name)

    def _body(self, donated: list[Any], kept: list[Any]) -> Outcome:
        """The function on placeholders: what the engine records."""
        call = _call.get()()
        trace = self.backend.program_of(kept[0])
        if trace is not None:
            note_recording(trace, self.name)
        self.history.add(facets_of([(name, value) for name, value, _ in call.named], call.reader, self.checked))
        with _recording(call.reader):
            if self.turns is not None:
                return Outcome(*Loop(self._turn, self.name, call, donated, kept).run(self.turns.number))
            turn = self._turn(call, donated, kept)
            return Outcome(turn.arrays, turn.meaning)

    def _turn(self, call: Call, donated: Sequence[Any], kept: Sequence[Any]) -> Turn:
        return record(self.fn, self.name, call, donated, kept, self.checked)

    def find_states(self, call: Call) -> list[list[tuple[Place, int]]]:
        """The parameters that each optimizer makes a state for, and in which variant, if not all of them have one.

        Recorded once on placeholders, the function tells.
        """
        reader = call.reader
        owned = {id for given in reader.modules for id in reader.owners[given.owner].ids}
        if all(owned <= set(going.packed.ids) for going in reader.optimizers):
            return []
        found: list[list[Ids]] = []

        def body(donated: list[Any], kept: list[Any]) -> Outcome:
            with _recording(reader):
                turn = Loop(self._turn, self.name, call, donated, kept).first()
                found.append(turn.meaning.state_ids)
                return Outcome(turn.arrays, turn.meaning)

        token = _call.set(lambda: call)
        reader.kept[0] = random.current().words()
        try:
            self.backend.record_only(body, reader.donated, reader.kept)
        except Exception as error:
            self._explain(error, call)
            raise
        finally:
            _call.reset(token)
        places = first_places(reader.owners[given.owner].ids for given in reader.modules)
        made = zip(reader.optimizers, found[0], strict=True)
        return [[(places[id], going.optimizer.variant(id)) for id in ids if id in places] for going, ids in made]


def fill_states(reader: Reader, found: list[list[tuple[Place, int]]]) -> bool:
    """Give optimizers the states that their first step would make, so that it and all others are one program."""
    filled = False
    for going, places in zip(reader.optimizers, found, strict=bool(found)):
        optimizer, states = going.optimizer, going.optimizer.states
        for (number, place), variant in places:
            param = reader.modules[number].module.params()[place]
            if param.id in states:
                continue
            value = param.val()
            array = value.backend.strip(value.primitive)
            tensor = Tensor.from_primitive(array, plain_backend(value.backend), value.kind)
            state = optimizer.init_state(tensor, variant)
            # Of an optimizer that keeps no state, none is what there will be; of others, only they know.
            if state is not None or type(optimizer).init_state is not Optimizer.init_state:
                states[param.id] = state
                filled = True
    return filled

"""`compile`: a whole step, state changes and random draws included, as one program."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar

from phlox import random
from phlox.backend import Backend, Device
from phlox.backend.pytree import Node, register_node
from phlox.errors import CompileError, RandomnessError
from phlox.module import Module, Param
from phlox.optim import Optimizer
from phlox.tensor import Tensor
from phlox.transform.signature import Ids, Maker, Reader, Rebuilder, Spec

P = ParamSpec("P")
R = TypeVar("R")

_recording: ContextVar[bool] = ContextVar("phlox_recording", default=False)


def compile(fn: Callable[P, R], *, donate: Sequence[str] = ()) -> Compiled[P, R]:
    """`fn` as a function whose calls run as one program where the backend has a compiler, and mean the same.

    Arguments may be modules, optimizers, tensors, numbers, and lists, tuples and dicts of these; anything else is a
    constant, for which a new program is made when it changes. Numbers are arguments: they do not recompile. What a call
    changes outside its result happens as in an eager call: the state of optimizers, running statistics of modules that
    are passed in, the position of the random stream. A tensor's value cannot be asked for inside.

    Args:
        fn: the function; on backends without a compiler (NumPy, Torch) it is called as it is.
        donate: names of parameters whose memory the program may reuse for its results. A donated module or tensor is
            used up by the call; a donated optimizer goes on with its new state.

    Raises `CompileError` for an argument or result that cannot pass, and where a value is needed while recording.

    >>> import phlox as px
    >>> double = px.compile(lambda x: x * 2.0)
    >>> double(px.ones((2,))).tolist()
    [2.0, 2.0]
    """
    return Compiled(fn, tuple(donate))


class Compiled(Generic[P, R]):
    """A compiled function; see `compile`."""

    def __init__(self, fn: Callable[P, R], donate: tuple[str, ...]) -> None:
        self._fn = fn
        self._names = _positional_names(fn)
        self._donated = frozenset(donate)
        known = {*self._names, *_keyword_names(fn)}
        for name in donate:
            if name not in known:
                raise CompileError(f"donate: {_name(fn)} has no parameter {name!r} (it has {', '.join(sorted(known))})")
        self._programs: dict[Hashable, Program] = {}
        update_wrapper(self, fn)

    @property
    def programs(self) -> int:
        """The number of programs made so far: one for each combination of structures, shapes aside."""
        return len(self._programs)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if _recording.get():
            return self._fn(*args, **kwargs)
        reader = Reader()
        key = self._read(reader, args, kwargs)
        place = reader.place
        if place is None or not place.backend.compiles:
            return self._fn(*args, **kwargs)
        call = Call(reader, self._leaves_of, args, kwargs)
        program = self._programs.get(key)
        if program is None:
            program = Program(self._fn, place)
            if program.fill_states(call):
                return self(*args, **kwargs)
            self._programs[key] = program
        return program(call)

    def _leaves_of(self, name: str | int, reader: Reader) -> list[Any]:
        named = self._names[name] if isinstance(name, int) and name < len(self._names) else name
        return reader.donated if named in self._donated else reader.kept

    def _read(self, reader: Reader, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
        parts: list[Hashable] = [len(args), *kwargs]
        late: list[tuple[str | int, Optimizer]] = []
        for name, value in (*enumerate(args), *kwargs.items()):
            if isinstance(value, Optimizer):
                late.append((name, value))
            else:
                path = self._names[name] if isinstance(name, int) and name < len(self._names) else str(name)
                parts.append(reader.read(value, path, self._leaves_of(name, reader)))
        if reader.place is None:
            return None
        for name, optimizer in late:
            parts.append((name, reader.read_optimizer(optimizer, self._leaves_of(name, reader))))
        return (reader.place.backend, tuple(parts))


class Call(NamedTuple):
    """The arguments of one call, as given and as read."""

    reader: Reader
    leaves_of: Callable[[str | int, Reader], list[Any]]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Outcome:
    """What a program returns: arrays, and what to make of them, which was found when it was recorded.

    As a PyTree node it lets the engine keep the second beside each recording, of which there is one for every
    combination of shapes.
    """

    __slots__ = ("arrays", "meaning")

    def __init__(self, arrays: list[Any], meaning: Meaning) -> None:
        self.arrays = arrays
        self.meaning = meaning


register_node(Node(Outcome, lambda x: (x.arrays, x.meaning), lambda meaning, arrays: Outcome(list(arrays), meaning)))


@dataclass(eq=False, slots=True)
class Meaning:
    """What the arrays of an outcome stand for: the result, states of optimizers, and parameters that were set."""

    result: Maker
    states: list[Callable[..., Any]]
    state_ids: list[Ids]
    changed: list[tuple[int, int, Backend]]
    draws: int


_call: ContextVar[Call] = ContextVar("phlox_call")


class Program:
    """One program, or one for each combination of shapes: recorded when first called, then run."""

    def __init__(self, fn: Callable[..., Any], place: Device) -> None:
        self.fn, self.place = fn, place
        self.run = place.backend.compile(self._body)

    def __call__(self, call: Call) -> Any:
        reader = call.reader
        stream = random.current()
        words = stream.words()
        token = _call.set(call)
        try:
            outcome = self.run(reader.donated, [words, *reader.kept])
        except Exception as error:
            raise self._explained(error) from error
        finally:
            _call.reset(token)
        meaning = outcome.meaning
        if meaning.draws:
            self._check_stream(outcome, words)
            stream.skip(meaning.draws)
        source, given = iter(outcome.arrays), reader.ids
        result = meaning.result(source, given)
        for (optimizer, _), make in zip(reader.optimizers, meaning.states, strict=True):
            optimizer.load_packed(make(source, given))
        for module, number, backend in meaning.changed:
            param = reader.modules[module].params()[number]
            param.set(Tensor.from_primitive(next(source), backend, param.kind))
        return result

    def _explained(self, error: Exception) -> Exception:
        if not self.place.backend.is_record_error(error):
            return error
        return CompileError(
            f"{_name(self.fn)}: the value of a tensor or number is needed while the function is being compiled "
            f"(by item(), float(), bool() or numpy()); use phlox.where, or move it out ({_first_line(error)})"
        )

    def _check_stream(self, outcome: Outcome, words: Any) -> None:
        backend = self.place.backend
        if outcome.arrays and backend.is_traced(outcome.arrays[0]) and not backend.is_traced(words):
            raise RandomnessError(
                f"{_name(self.fn)} draws random numbers and is called inside a raw JAX transformation, which would bake "
                "them in; compile the outer function with phlox.compile, or open phlox.random.stream(key) inside it"
            )

    def _body(self, donated: list[Any], kept: list[Any]) -> Outcome:
        """The function on placeholders: what the engine records."""
        call = _call.get()
        reader = call.reader
        rebuilder = Rebuilder({id(optimizer): packed for optimizer, packed in reader.optimizers})
        sources = {id(reader.donated): iter(donated), id(reader.kept): iter(kept)}
        words = next(sources[id(reader.kept)])
        named: list[tuple[str | int, Any]] = [*enumerate(call.args), *call.kwargs.items()]
        rebuilt: dict[str | int, Any] = {}
        stream = random.TracedStream(words)
        token = _recording.set(True)
        try:
            for late in (False, True):  # optimizers after everything else, as they were read
                for name, value in named:
                    if isinstance(value, Optimizer) is late:
                        rebuilder.leaves = sources[id(call.leaves_of(name, reader))]
                        rebuilt[name] = rebuilder.rebuild(value)
            before = [[param.val() for param in module.params()] for module in rebuilder.modules]
            with random.stream(stream):
                args = [rebuilt[place] for place in range(len(call.args))]
                result = self.fn(*args, **{name: rebuilt[name] for name in call.kwargs})
            return self._outcome(reader, rebuilder.modules, before, result, stream.position)
        finally:
            _recording.reset(token)
            for optimizer, packed in reader.optimizers:
                optimizer.load_packed(packed)

    def _outcome(
        self, reader: Reader, modules: list[Module], before: list[list[Any]], result: Any, draws: int
    ) -> Outcome:
        spec = Spec(reader.ids)
        arrays: list[Any] = []
        make = spec.write(result, arrays)
        states = [spec.optimizer(optimizer, self.place, arrays) for optimizer, _ in reader.optimizers]
        changed: list[tuple[int, int, Backend]] = []
        for number, (module, values) in enumerate(zip(modules, before, strict=True)):
            for place, (param, old) in enumerate(zip(module.params(), values, strict=True)):
                value = param.val()
                if value is not old:
                    arrays.append(value.backend.strip(value.primitive))
                    changed.append((number, place, value.backend))
        state_ids = [tuple(optimizer.states) for optimizer, _ in reader.optimizers]
        return Outcome(arrays, Meaning(make, states, state_ids, changed, draws))

    def fill_states(self, call: Call) -> bool:
        """Give optimizers the states that their first step would make, so that it and all others are one program.

        Recorded once on placeholders, the function tells for which parameters states are made.
        """
        reader = call.reader
        owned = {id for ids in reader.ids[: len(reader.modules)] for id in ids}
        if not any(owned - set(packed.ids) for _, packed in reader.optimizers):
            return False
        found: list[list[Ids]] = []

        def body(donated: list[Any], kept: list[Any]) -> Outcome:
            outcome = self._body(donated, kept)
            found.append(outcome.meaning.state_ids)
            return outcome

        token = _call.set(call)
        try:
            self.place.backend.record_only(body, reader.donated, [random.current().words(), *reader.kept])
        except Exception as error:
            raise self._explained(error) from error
        finally:
            _call.reset(token)
        params: dict[Any, Param] = {param.id: param for module in reader.modules for param in module.params()}
        filled = False
        for (optimizer, _), ids in zip(reader.optimizers, found[0], strict=True):
            states = optimizer.states
            for id in ids:
                if id in states or id not in params:
                    continue
                value = params[id].val()
                array = value.backend.strip(value.primitive)
                state = optimizer.init_state(Tensor.from_primitive(array, self.place.backend, value.kind))
                if state is not None:
                    states[id] = state
                    filled = True
        return filled


def _positional_names(fn: Callable[..., Any]) -> tuple[str, ...]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(p.name for p in inspect.signature(fn).parameters.values() if p.kind in kinds)


def _keyword_names(fn: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(p.name for p in inspect.signature(fn).parameters.values() if p.kind is p.KEYWORD_ONLY)


def _name(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__qualname__", repr(fn))


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]

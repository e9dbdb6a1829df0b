"""`compile`: a whole step, state changes and random draws included, as one program."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Sequence
from functools import update_wrapper
from types import MethodType
from typing import Any, Generic, ParamSpec, TypeVar

from phlox.backend import Backend
from phlox.backend.checks import checks_are_on
from phlox.errors import CompileError
from phlox.module import Module
from phlox.optim.optimizer import recording
from phlox.transform.program import Call, Program, StatesElsewhere, fill_states
from phlox.transform.reading import Place, Reader, first_backend

P = ParamSpec("P")
R = TypeVar("R")


def compile(fn: Callable[P, R], *, donate: Sequence[str] = ()) -> Compiled[P, R]:
    """`fn` as a function whose calls run as one program where the backend has a compiler, and mean the same.

    Arguments may be modules, optimizers, tensors, numbers, and lists, tuples and dicts of these; anything else is a
    constant, for which a new program is made when it changes. Numbers are arguments: they do not recompile. What a call
    changes outside its result happens as in an eager call: the state of optimizers, running statistics of modules that
    are passed in, the position of the random stream. A tensor's value cannot be asked for inside.

    Args:
        fn: the function; a module or a method of one counts as an argument too. On backends without a compiler (NumPy,
            Torch) it is called as it is.
        donate: names of parameters whose memory the program may reuse for its results. A donated module or tensor is
            used up by the call; a donated optimizer goes on with its new state.

    Raises `CompileError` for an argument or result that cannot pass, for one that is used up, and where a value is
    needed while recording.

    >>> import phlox as px
    >>> double = px.compile(lambda x: x * 2.0)
    >>> double(px.ones((2,))).tolist()
    [2.0, 2.0]
    """
    return Compiled(fn, (donate,) if isinstance(donate, str) else tuple(donate))


class Compiled(Generic[P, R]):
    """A compiled function; see `compile`."""

    def __init__(self, fn: Callable[P, R], donate: tuple[str, ...]) -> None:
        self._fn: Callable[..., R] = fn
        self._bound: tuple[Any, ...] = ()
        if isinstance(fn, MethodType) and isinstance(fn.__self__, Module):
            self._fn, self._bound = fn.__func__, (fn.__self__,)
        elif isinstance(fn, Module):
            self._fn, self._bound = type(fn).__call__, (fn,)
        update_wrapper(self, self._fn)
        self._name = getattr(self._fn, "__qualname__", repr(fn))
        parameters = inspect.signature(self._fn).parameters.values()
        named = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        for name in donate:
            if name not in named:
                raise CompileError(f"donate: {self._name} has no parameter {name!r} (it has {', '.join(named)})")
        self._donated = frozenset(donate)
        positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        self._places = positional
        self._programs: dict[Hashable, Program] = {}
        self._first_states: dict[Hashable, list[list[Place]]] = {}

    @property
    def programs(self) -> int:
        """The number of programs made so far: one for each combination of structures, shapes aside."""
        return len(self._programs)

    def __get__(self, instance: Any, owner: type[Any] | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        values = (*self._bound, *args)
        if recording.get() is None:
            backend = first_backend((*values, *kwargs.values()))
            if backend is not None and backend.compiles:
                call, key = self._read(backend, values, kwargs)
                program = self._programs.get(key)
                if program is None:
                    call, program = self._prepare(backend, values, kwargs, call, key)
                try:
                    return program(call)
                except StatesElsewhere:
                    return program(self._read(backend, values, kwargs)[0])
        return self._fn(*values, **kwargs)

    def _prepare(
        self, backend: Backend, values: tuple[Any, ...], kwargs: dict[str, Any], call: Call, key: Hashable
    ) -> tuple[Call, Program]:
        """The program for a call that none has been recorded for: a new one, unless it only lacks optimizer states."""
        program = Program(self._fn, self._name, backend, checks_are_on())
        found = self._first_states.get(key)
        if found is None:
            found = self._first_states[key] = program.find_states(call)
        if fill_states(call.reader, found):
            call, key = self._read(backend, values, kwargs)
        return call, self._programs.setdefault(key, program)

    def _read(self, backend: Backend, values: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Call, Hashable]:
        reader = Reader(backend)
        checked = checks_are_on()
        # What is checked may be refused, and then nothing may be lost.
        donating = frozenset[str]() if checked else self._donated
        places, last = self._places, len(self._places)
        named: list[tuple[str, Any, list[Any]]] = []
        key: list[Hashable] = [backend, checked, len(values)]
        for number, value in enumerate(values):
            name = places[number] if number < last else f"argument {number}"
            leaves = reader.donated if name in donating else reader.kept
            named.append((name, value, leaves))
            key.append(reader.read(value, name, leaves))
        for name in sorted(kwargs):
            value = kwargs[name]
            leaves = reader.donated if name in donating else reader.kept
            named.append((name, value, leaves))
            key.append((name, reader.read(value, name, leaves)))
        key.append(reader.read_late())
        return Call(reader, named, len(kwargs)), tuple(key)

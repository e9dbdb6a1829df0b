"""Ids of parameters: derived from a seed, so that equal runs write equal files; each is given only once in a program.

An id is a digest of where the parameter comes from: the key of the current stream, or for `Module.init` the seed, the
class of the module and the path. A name that occurs again (two models of one seed, a stream that is seeded anew) gets
the next number, which is a part of the digest. Without a seed, ids are random.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Hashable, Iterable
from hashlib import blake2b
from typing import Any, Final, NewType

from phlox.backend.pytree import transformation
from phlox.random import current

ParamId = NewType("ParamId", str)
"""Names a parameter for life: through moves, maps, saving and loading. Optimizer state is kept by it."""

_LIMIT: Final = 1 << 16


class _OccurrenceCounter:
    """Counts how often each name has occurred. Names above the limit share one count.

    So the table stays below 10 MB in a program that creates models of new seeds without end. Numbers stay unique, and
    equal in equal runs.
    """

    def __init__(self) -> None:
        self._next: dict[Hashable, int] = {}
        self._others = 0
        self._lock = threading.Lock()

    def next_number(self, name: Hashable) -> int:
        """The number of this occurrence of a name."""
        with self._lock:
            number = self._next.get(name)
            if number is None and len(self._next) >= _LIMIT:
                self._others += 1
                return -self._others
            self._next[name] = 1 if number is None else number + 1
        return number or 0


_numbers = _OccurrenceCounter()


def _digest(*parts: object) -> bytes:
    # repr distinguishes what a join of str would not: ("a.b", "c") and ("a", "b.c").
    return blake2b(repr(parts).encode(), digest_size=16).digest()


def new_id() -> ParamId:
    """An id that no other parameter of the program has; from the current stream's seed, if it has one."""
    origin = current().origin
    if origin is None:
        return _as_param_id(uuid.uuid4().hex)
    return _as_param_id(_digest("stream", origin, _numbers.next_number(origin)).hex())


class BornId(str):
    """The id of a parameter that is created inside of a trace. The result of each later call has another id.

    A trace is made once and called many times: each call of `jax.jit(lambda s: Net().init(seed=s))` creates a network.
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (str(self),)

    def of_call(self, number: int, thread: str) -> ParamId:
        """The id in the result of a call, by the call's number in its thread, counted from 0."""
        return ParamId(_digest("call", str(self), number, thread).hex() if number or thread else str(self))


def _as_param_id(id: str) -> ParamId:
    return ParamId(id if transformation() is None else BornId(id))


_thread = threading.local()


def name_of_thread() -> str:
    """A name that distinguishes the calls of this thread; empty in the main thread, so that runs are repeatable."""
    if threading.current_thread() is threading.main_thread():
        return ""
    if not hasattr(_thread, "name"):
        _thread.name = uuid.uuid4().hex
    return _thread.name


class InitIds:
    """The ids of the parameters that one call of `Module.init` creates.

    Args:
        seed: the key that the values come from; None if it is not known, in a traced call.
        kind: the name of the module's class.
        paths: the parameters that are created.
    """

    def __init__(self, seed: Any, kind: str, paths: Iterable[str]) -> None:
        name = _digest("traced") if seed is None else _digest("init", seed, kind, *paths)
        self._origin = _digest(name, _numbers.next_number(name))

    def of(self, path: str) -> ParamId:
        """The id of the parameter at a path."""
        return _as_param_id(_digest(self._origin, path).hex())

"""Ids of parameters: from a seed, so that equal runs write equal files; each is handed out once in a program.

An id is a digest of where the parameter comes from: the key of the current stream, or for `Module.init` the seed, the
class of the module and the path. A name that comes again (two models of one seed, a stream that is seeded anew) gets
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


class _Numbers:
    """How often each name has come. Of more names than the limit, the later ones share one count.

    So the table stays below 10 MB in a program that never stops making models of new seeds; numbers stay unique, and
    equal in equal runs.
    """

    def __init__(self) -> None:
        self._next: dict[Hashable, int] = {}
        self._others = 0
        self._lock = threading.Lock()

    def take(self, name: Hashable) -> int:
        """The number of this occurrence of a name."""
        with self._lock:
            number = self._next.get(name)
            if number is None and len(self._next) >= _LIMIT:
                self._others += 1
                return -self._others
            self._next[name] = 1 if number is None else number + 1
        return number or 0


_numbers = _Numbers()


def _digest(*parts: object) -> bytes:
    # repr keeps apart what str would join: ("a.b", "c") and ("a", "b.c").
    return blake2b(repr(parts).encode(), digest_size=16).digest()


def new_id() -> ParamId:
    """An id that no other parameter of the program has; from the current stream's seed, if it has one."""
    origin = current().origin
    if origin is None:
        return _told(uuid.uuid4().hex)
    return _told(_digest("stream", origin, _numbers.take(origin)).hex())


class BornId(str):
    """The id of a parameter that is made inside of a trace: what a later call returns has another one.

    A trace is made once, and called many times: `jax.jit(lambda seed: Net().init(seed=seed))` makes a network a call.
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (str(self),)

    def of_call(self, number: int, thread: str) -> ParamId:
        """The id in what the call of this number in a thread returns, counted from 0."""
        return ParamId(_digest("call", str(self), number, thread).hex() if number or thread else str(self))


def _told(id: str) -> ParamId:
    return ParamId(id if transformation() is None else BornId(id))


_thread = threading.local()


def name_of_thread() -> str:
    """What tells the calls of this thread from those of others; empty in the main one, so that runs repeat."""
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
        self._origin = _digest(name, _numbers.take(name))

    def of(self, path: str) -> ParamId:
        """The id of the parameter at a path."""
        return _told(_digest(self._origin, path).hex())

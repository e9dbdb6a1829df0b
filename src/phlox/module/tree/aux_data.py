"""The structure of one module as JAX keeps it, and the ids of parameters that go into a trace and come out of one."""

from __future__ import annotations

import weakref
from threading import get_ident
from typing import Any, cast

from phlox.backend.pytree import keeping, transformation
from phlox.module.fields import Fields
from phlox.module.identity import BornId, ParamId, name_of_thread
from phlox.module.tree.layout import Layout, Mode, described, fields_from


class TracedId(str):
    """The id of a parameter inside of a trace: that of the same place of the argument, call by call."""

    __slots__ = ("aux", "number")

    aux: NodeAux
    number: int

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (str(self),)


class NodeAux:
    """The structure of one module as JAX keeps it: its layout, and what equal ones may differ in."""

    __slots__ = (
        "again", "born", "calls", "chain", "current", "given", "ids", "inside", "integers", "layout", "mode", "moves",
        "origin", "outside", "source", "traced",
    )  # fmt: skip

    def __init__(self, layout: Layout, mode: Mode, ids: tuple[ParamId, ...]) -> None:
        self.layout, self.ids = layout, ids
        self.mode = layout.modes.setdefault(mode, mode)
        self.integers = layout.integers(self.mode)
        self.traced = False
        """Has a trace been made with it? Then what was compiled is for these modes."""
        self.moves = any(isinstance(id, (TracedId, BornId)) for id in cast("tuple[str, ...]", ids))
        """Are the ids of what a compiled function returns others, call by call?"""
        self.born = any(isinstance(_first(id), BornId) for id in cast("tuple[str, ...]", ids))
        """Are there parameters in it that are made inside of the trace, so anew in each call?"""
        self.calls: dict[str, int] = {}
        """By thread, how often it was put together outside of the trace: equally often for all of a result."""
        self.chain = _chain_of(ids) if self.moves else ()
        """The arguments whose ids these are, all of them in their order; empty if they come from several places."""
        self.given = None if self.born else self.chain[-1].ids if self.chain else None if self.moves else ids
        """The ids if none of these arguments is another one in this call; None if they come from several places."""
        self.current: dict[int, tuple[ParamId, ...]] = {}
        """By thread, the ids of the module that a compiled function was last called with in its place."""
        self.source: weakref.ref[Fields] | None = None
        """The module that was taken apart."""
        self.inside: NodeAux | None = None
        self.outside: NodeAux | None = None
        self.origin: NodeAux | None = None
        """That of a compiled function's result, if this is of what it returned in one call."""
        self.again: NodeAux | None = None

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not NodeAux:
            return NotImplemented
        now = cast("NodeAux", other)
        if self.layout is not now.layout:
            return False
        if self.traced:
            traced = self
        elif now.traced:
            traced, now = now, self
        else:
            return True
        if traced.mode is not now.mode:
            return False
        # A compiled function is looked up by the structure that it was traced with: what it returns has the ids of what
        # it is called with now.
        if now.ids is not traced.ids and not (now.moves and any(_leads_to(id, traced) for id in now.ids)):
            traced.current[get_ident()] = now.ids
        elif traced.current:
            traced.current.pop(get_ident(), None)
        return True

    def __hash__(self) -> int:
        return hash(self.layout)

    def __reduce__(self) -> tuple[Any, ...]:
        return NodeAux, (self.layout, self.mode, tuple(map(str, self.ids)))

    def __repr__(self) -> str:
        return described(self.layout, self.mode)

    def fields(self, module: Any, children: tuple[Any, ...], scope: Any) -> dict[str, Any]:
        """The fields of a module of this structure around these children."""
        return fields_from(module, self.layout, self.mode, self.ids, children, scope)

    def taken(self) -> NodeAux:
        """One like it for a module that is taken apart, which no trace was made with, and which is of no call."""
        if self.origin is not None and keeping and get_ident() in keeping:
            return self
        if self.again is None or self.again.traced:
            self.again = NodeAux(self.layout, self.mode, self.ids)
        return self.again

    def into_trace(self) -> NodeAux:
        """That of the module that a trace sees."""
        self.traced = True
        self.source = None
        called = tuple([_called_with(id) for id in self.ids]) if self.moves else self.ids
        if called != self.ids or any(a is not b for a, b in zip(called, self.ids, strict=True)):
            return NodeAux(self.layout, self.mode, called)  # it is what a compiled function returns in this trace
        if self.inside is None:
            ids: list[Any] = []
            for number, id in enumerate(self.ids):
                traced = TracedId(id)
                traced.aux, traced.number = self, number
                ids.append(traced)
            self.inside = NodeAux(self.layout, self.mode, tuple(ids))
        return self.inside

    def out_of_trace(self) -> NodeAux:
        """That of a module that a compiled function returns in this call."""
        ids = self.given
        for whole in self.chain:
            if whole.current:
                ids = None
        if ids is None:
            ids = tuple(map(_now, self.ids))
            if self.born:
                ids = _of_call(self.calls, ids)
        known = self.outside
        if known is None or (known.ids is not ids and known.ids != ids) or known.traced:
            known = self.outside = NodeAux(self.layout, self.mode, ids)
            known.origin = self
        return known


def _of_call(calls: dict[str, int], ids: tuple[Any, ...]) -> tuple[ParamId, ...]:
    """The ids in this call, which is counted in `calls`."""
    thread = name_of_thread()
    number = calls.get(thread, 0)
    calls[thread] = number + 1
    return tuple([id.of_call(number, thread) if isinstance(id, BornId) else id for id in ids])


def _chain_of(ids: tuple[Any, ...]) -> tuple[NodeAux, ...]:
    found: list[NodeAux] = []
    while ids and ids[0].__class__ is TracedId:
        aux = ids[0].aux
        whole = len(aux.ids) == len(ids)
        if not whole or not all(
            id.__class__ is TracedId and id.aux is aux and id.number == n for n, id in enumerate(ids)
        ):
            return ()
        found.append(aux)
        ids = aux.ids
    return tuple(found)


def _leads_to(id: Any, aux: NodeAux) -> bool:
    """Is it the id of a parameter of that very argument, as in what the body of a loop returns?"""
    while id.__class__ is TracedId:
        if id.aux is aux:
            return True
        id = id.aux.ids[id.number]
    return False


def _called_with(id: Any) -> Any:
    """The id that the compiled function was called with that this one comes from; itself if there is none."""
    part = id
    while part.__class__ is TracedId:
        ids = part.aux.current.get(get_ident())
        if ids is not None:
            return ids[part.number]
        part = part.aux.ids[part.number]
    return id


def _first(id: Any) -> Any:
    """The id that it is in the outermost trace."""
    while id.__class__ is TracedId:
        id = id.aux.ids[id.number]
    return id


def _now(id: Any) -> ParamId:
    while id.__class__ is TracedId:
        id = id.aux.current.get(get_ident(), id.aux.ids)[id.number]
    return id


# --- the ids in other nodes: gradients, optimizers


class _BornIds(tuple[ParamId, ...]):
    """Ids in a result, some of parameters that are made in the trace: an object for each place, which counts calls."""

    calls: dict[str, int]


def ids_for_calls(ids: tuple[ParamId, ...], traced: tuple[ParamId, ...] | None) -> tuple[ParamId, ...]:
    """The ids as the structure of a node has them.

    `traced` are those of the trace, if the node came from `ids_of_call`: JAX takes a result apart to build those of all
    later calls.
    """
    if traced is not None and keeping and get_ident() in keeping:
        return traced
    if any(isinstance(_first(id), BornId) for id in cast("tuple[str, ...]", ids)):
        ids = _BornIds(ids)
        ids.calls = {}
    return ids


def ids_of_call(ids: tuple[ParamId, ...]) -> tuple[ParamId, ...]:
    """The ids of this call, in place of those that a function was traced with; others stay."""
    if not any(isinstance(id, (TracedId, BornId)) for id in cast("tuple[str, ...]", ids)):
        return ids
    if transformation() is not None:
        return tuple(map(_called_with, ids))
    found = tuple(map(_now, ids))
    return _of_call(ids.calls, found) if isinstance(ids, _BornIds) else found

"""The structure of one module as JAX keeps it, and the ids of parameters that go into a trace and come out of one."""

from __future__ import annotations

import weakref
from threading import get_ident
from typing import Any, cast

from phlox.backend.pytree import keeping, transformation
from phlox.module.fields import Fields
from phlox.module.identity import BornId, ParamId, name_of_thread
from phlox.module.tree.layout import Mode, TreeLayout, described, fields_from


class TracedId(str):
    """The id of a parameter inside of a trace: it stands for the id at the same position of each call's argument."""

    __slots__ = ("aux", "number")

    aux: NodeAux
    number: int

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (str(self),)


class NodeAux:
    """The structure of one module as JAX keeps it: its layout, and properties in which equal structures may differ."""

    __slots__ = (
        "born", "calls", "chain", "current", "ids", "inside", "integers", "layout", "mode", "moves", "origin",
        "outside", "source", "traced", "untraced", "usual_ids",
    )  # fmt: skip

    def __init__(self, layout: TreeLayout, mode: Mode, ids: tuple[ParamId, ...]) -> None:
        self.layout, self.ids = layout, ids
        self.mode = layout.modes.setdefault(mode, mode)
        self.integers = layout.integers(self.mode)
        self.traced = False
        """Whether a trace was made with it. Then the compiled program is for these modes."""
        self.moves = any(isinstance(id, (TracedId, BornId)) for id in cast("tuple[str, ...]", ids))
        """Whether a compiled function returns other ids in each call."""
        self.born = any(isinstance(_outermost_id(id), BornId) for id in cast("tuple[str, ...]", ids))
        """Whether it has parameters that are created inside of the trace, so anew in each call."""
        self.calls: dict[str, int] = {}
        """By thread, how often it was unflattened outside of the trace; equal for all parts of a result."""
        self.chain = _chain_of(ids) if self.moves else ()
        """The arguments that have exactly these ids, in this order; empty if the ids come from several arguments."""
        self.usual_ids = None if self.born else self.chain[-1].ids if self.chain else None if self.moves else ids
        """The ids if this call has the same arguments as the trace; None if they come from several arguments."""
        self.current: dict[int, tuple[ParamId, ...]] = {}
        """By thread, the ids of the module in this position in the last call of the compiled function."""
        self.source: weakref.ref[Fields] | None = None
        """The module that was flattened."""
        self.inside: NodeAux | None = None
        self.outside: NodeAux | None = None
        self.origin: NodeAux | None = None
        """The structure of a compiled function's result, if this is the structure of one call's result."""
        self.untraced: NodeAux | None = None

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not NodeAux:
            return NotImplemented
        current = cast("NodeAux", other)
        if self.layout is not current.layout:
            return False
        if self.traced:
            traced = self
        elif current.traced:
            traced, current = current, self
        else:
            return True
        if traced.mode is not current.mode:
            return False
        # A compiled function is looked up by the structure that it was traced with. Its result gets the ids of the
        # arguments of this call.
        if current.ids is not traced.ids and not (current.moves and any(_comes_from(id, traced) for id in current.ids)):
            traced.current[get_ident()] = current.ids
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

    def for_flattening(self) -> NodeAux:
        """An equal structure for a module that is flattened, which belongs to no trace and to no call."""
        if self.origin is not None and keeping and get_ident() in keeping:
            return self
        if self.untraced is None or self.untraced.traced:
            self.untraced = NodeAux(self.layout, self.mode, self.ids)
        return self.untraced

    def into_trace(self) -> NodeAux:
        """The structure of the module inside of a trace."""
        self.traced = True
        self.source = None
        call_ids = tuple([_id_in_call(id) for id in self.ids]) if self.moves else self.ids
        if call_ids != self.ids or any(a is not b for a, b in zip(call_ids, self.ids, strict=True)):
            return NodeAux(self.layout, self.mode, call_ids)  # of a compiled function's result in this trace
        if self.inside is None:
            ids: list[Any] = []
            for number, id in enumerate(self.ids):
                traced = TracedId(id)
                traced.aux, traced.number = self, number
                ids.append(traced)
            self.inside = NodeAux(self.layout, self.mode, tuple(ids))
        return self.inside

    def out_of_trace(self) -> NodeAux:
        """The structure of the module that a compiled function returns in this call."""
        ids = self.usual_ids
        for argument in self.chain:
            if argument.current:
                ids = None
        if ids is None:
            ids = tuple(map(_current_id, self.ids))
            if self.born:
                ids = _of_call(self.calls, ids)
        outside = self.outside
        if outside is None or (outside.ids is not ids and outside.ids != ids) or outside.traced:
            outside = self.outside = NodeAux(self.layout, self.mode, ids)
            outside.origin = self
        return outside


def _of_call(calls: dict[str, int], ids: tuple[Any, ...]) -> tuple[ParamId, ...]:
    """The ids in this call, which is counted in `calls`."""
    thread = name_of_thread()
    number = calls.get(thread, 0)
    calls[thread] = number + 1
    return tuple([id.of_call(number, thread) if isinstance(id, BornId) else id for id in ids])


def _chain_of(ids: tuple[Any, ...]) -> tuple[NodeAux, ...]:
    chain: list[NodeAux] = []
    while ids and ids[0].__class__ is TracedId:
        aux = ids[0].aux
        is_whole = len(aux.ids) == len(ids)
        if not is_whole or not all(
            id.__class__ is TracedId and id.aux is aux and id.number == n for n, id in enumerate(ids)
        ):
            return ()
        chain.append(aux)
        ids = aux.ids
    return tuple(chain)


def _comes_from(id: Any, aux: NodeAux) -> bool:
    """Does the id come from a parameter of this argument, as in the result of a loop's body?"""
    while id.__class__ is TracedId:
        if id.aux is aux:
            return True
        id = id.aux.ids[id.number]
    return False


def _id_in_call(id: Any) -> Any:
    """The id in the compiled function's argument that this id comes from; the id itself if there is none."""
    traced = id
    while traced.__class__ is TracedId:
        ids = traced.aux.current.get(get_ident())
        if ids is not None:
            return ids[traced.number]
        traced = traced.aux.ids[traced.number]
    return id


def _outermost_id(id: Any) -> Any:
    """The id of the parameter in the outermost trace."""
    while id.__class__ is TracedId:
        id = id.aux.ids[id.number]
    return id


def _current_id(id: Any) -> ParamId:
    while id.__class__ is TracedId:
        id = id.aux.current.get(get_ident(), id.aux.ids)[id.number]
    return id


# --- the ids in other nodes: gradients, optimizers


class _BornIds(tuple[ParamId, ...]):
    """Ids in a result, some of parameters that are created in the trace; each object counts its calls."""

    calls: dict[str, int]


def ids_for_calls(ids: tuple[ParamId, ...], traced: tuple[ParamId, ...] | None) -> tuple[ParamId, ...]:
    """The ids as the structure of a node has them.

    `traced` are the ids of the trace, if the node came from `ids_of_call`: JAX flattens a result to build the results
    of all later calls.
    """
    if traced is not None and keeping and get_ident() in keeping:
        return traced
    if any(isinstance(_outermost_id(id), BornId) for id in cast("tuple[str, ...]", ids)):
        ids = _BornIds(ids)
        ids.calls = {}
    return ids


def ids_of_call(ids: tuple[ParamId, ...]) -> tuple[ParamId, ...]:
    """The ids of this call in place of the ids of the trace; other ids stay."""
    if not any(isinstance(id, (TracedId, BornId)) for id in cast("tuple[str, ...]", ids)):
        return ids
    if transformation() is not None:
        return tuple(map(_id_in_call, ids))
    current_ids = tuple(map(_current_id, ids))
    return _of_call(ids.calls, current_ids) if isinstance(ids, _BornIds) else current_ids

"""Optimizers in notebooks: hyper-parameters, groups, and the sizes of their states. The states do not change."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from phlox.backend import Backend
from phlox.backend.kind import KINDS
from phlox.config import BaseConfig
from phlox.host.page import Cell, Page, Part, Row, Table, facts
from phlox.host.text import count, short, size
from phlox.optim.pytree import TreeStates
from phlox.optim.simple import title_of
from phlox.optim.state.records import ARRAY
from phlox.optim.state.tree import OBJECT, flatten, paths
from phlox.record import LazyTensor
from phlox.tensor import Tensor

if TYPE_CHECKING:
    from phlox.optim.groups import Group
    from phlox.optim.optimizer import Optimizer
    from phlox.optim.state.flat import FlatState

_SETTINGS = ("grad_clipping", "skip_nonfinite", "master_weights", "donate")


def name_of(optimizer: Optimizer) -> str:
    """The class of the optimizer of one tensor, or else of the optimizer itself."""
    return title_of(vars(optimizer).get("optimizer", optimizer))


def page_of_optimizer(optimizer: Optimizer) -> Page:
    """An optimizer of modules."""
    simple: Any = vars(optimizer).get("optimizer")  # of an `OptimizerAdaptor`
    entries = list(_entries(optimizer))
    states = optimizer._number_of_states()
    bytes_text = size(sum(nbytes for *_, nbytes in entries)) if states else ""
    settings = {key: value for key, value in vars(optimizer).items() if key in _SETTINGS}
    hidden = {"optimizer", "groups", "shares_counts", *_SETTINGS}
    others = {k: v for k, v in vars(optimizer).items() if not k.startswith("_") and k not in hidden}
    own = others if simple is None else _hyperparameters(simple)
    parts: list[Part] = [
        Row([_facts(own), _facts(settings)]),
        Page("groups", parts=[_groups(vars(optimizer).get("groups", ()))], is_open=True),
        Page("states", parts=[_states(entries)], is_open=True),
    ]
    badges = [("a step was cut short", "bad")] if optimizer._torn else []
    return Page(name_of(optimizer), [count(states, "state"), bytes_text], parts, badges)


def _facts(values: Mapping[str, Any]) -> Table:
    return facts([(name, Cell(short(value), code=True)) for name, value in values.items()])


def _hyperparameters(simple: Any) -> dict[str, Any]:
    """The fields of the optimizer's config or, without one, of the optimizer."""
    config = getattr(simple, "config", None)
    fields = cast("dict[str, Any]", vars(config) if isinstance(config, BaseConfig) else vars(simple))
    return {name: value for name, value in fields.items() if not name.startswith("_")}


def _groups(groups: Sequence[Group]) -> Table:
    rows: list[list[str | Cell]] = []
    for group in groups:
        which = ", ".join(short(selector) for selector in group.which)
        settings = ", ".join(f"{name}={short(value)}" for name, value in group.settings.items())
        other = "" if group.optimizer is None else short(group.optimizer)
        rows.append(
            [Cell(which, code=True), group.name or "", f"{group.lr_factor:g}", other, Cell(settings, code=True)]
        )
    return Table(["parameters", "name", "lr factor", "optimizer", "settings"], rows, {0, 1, 3, 4})


# --- states


def _entries(optimizer: Optimizer) -> Iterator[tuple[str, str, int]]:
    """The name, type and bytes of each entry of each state."""
    if optimizer._torn:
        return
    packed = optimizer._packed
    if isinstance(packed, TreeStates):
        yield from ((path, kind.lower(), getattr(leaf, "nbytes", 0)) for path, kind, leaf in packed.entries())
        return
    if packed is not None:
        yield from _packed_entries(packed)
        return
    for id, state in optimizer._states.items():
        slot = optimizer._slots.get(id)
        leaves: list[Any] = []
        skeleton = flatten(state if slot is None else slot.state(), leaves, saving=True)
        for (path, kind), leaf in zip(paths(skeleton), leaves, strict=True):
            yield path, *_leaf(kind, leaf)


def _leaf(kind: str, leaf: Any) -> tuple[str, int]:
    if isinstance(leaf, LazyTensor):
        return f"{leaf.dtype}, not read yet", leaf.nbytes
    if isinstance(leaf, Tensor):
        return _described(leaf.backend, leaf.primitive, leaf.kind.name)
    if kind == ARRAY:
        return str(leaf.dtype), leaf.nbytes
    return type(leaf).__name__ if kind == OBJECT else kind, 0


def _packed_entries(packed: FlatState) -> Iterator[tuple[str, str, int]]:
    """As `_entries`, for states as a compiled function left them; they are not unpacked for this."""
    form = packed.form
    sources, constants = iter(form.sources), iter(form.constants)
    seen: set[int] = set()
    for skeleton in form.skeletons:
        for path, kind in paths(skeleton):
            if kind == ARRAY:
                array = next(constants).array
                yield path, str(array.dtype), array.nbytes
            elif kind == "integer":
                yield path, kind, 0
            else:
                source = next(sources)
                backend = form.backends[source]
                dtype, nbytes = (kind, 0) if backend is None else _described(backend, packed.leaves[source], kind)
                yield path, dtype, 0 if source in seen else nbytes
                seen.add(source)


def _described(backend: Backend, array: Any, kind: str) -> tuple[str, int]:
    dtype = backend.host_dtype(KINDS[kind])
    return str(dtype), math.prod(backend.shape(array)) * dtype.itemsize


def _states(entries: Sequence[tuple[str, str, int]]) -> Table:
    """A row for each name of an entry: how many states have it, and the bytes of all of these."""
    sizes_by_entry: dict[tuple[str, str], list[int]] = {}
    for name, dtype, nbytes in entries:
        # Beside a copy of the weights at full precision, the state's own entries are under "state.".
        sizes_by_entry.setdefault((name.removeprefix("state."), dtype), []).append(nbytes)
    rows = [
        [Cell(name or "(the state)", code=True), dtype, f"{len(sizes):,}", size(sum(sizes)) if sum(sizes) else ""]
        for (name, dtype), sizes in sizes_by_entry.items()
    ]
    return Table(["entry", "type", "parameters", "bytes"], rows, 2, most=50)

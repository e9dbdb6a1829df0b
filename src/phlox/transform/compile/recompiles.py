"""Explaining why a compiled function is traced again: the changes among its arguments since the closest trace."""

from __future__ import annotations

import logging
import threading
import warnings
from collections import deque
from collections.abc import Generator, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

from phlox.backend.reproducible import InMode
from phlox.errors import CompileError
from phlox.host.signal_guard import scope
from phlox.module import GradientsParams, Module, ParamId
from phlox.module.statics import ByIdentity, Static, static_key
from phlox.module.structure import Container, Leaf, Part, Shared
from phlox.module.template import flatten
from phlox.optim import Optimizer, OptimizerAdaptor
from phlox.optim.state.flat import FlatState
from phlox.tensor import Tensor
from phlox.transform.compile.signature import CallArguments, StateIds, StepScalars, first_positions
from phlox.transform.tree import leaves_of, parts_of

_log = logging.getLogger("phlox.compile")
_KEPT = 64  # the number of traces of one function with which a new trace is compared
_MANY = 64  # the number of compilations that causes a warning
_MANY_VALUES = 8  # the number of values of one name from outside that causes a warning


class Facet(NamedTuple):
    """One thing that a program depends on: a key to compare, a description, and a remedy if it varies."""

    key: Hashable
    text: str
    remedy: str = ""


_LAYOUT = "every layout needs a program of its own: pass arrays of the same layout each time"
_SHAPE = "every shape needs a program of its own: pad to one shape, or drop smaller batches"
_CONSTANT = "a constant is part of the program; numbers and tensors are not"
_TRUTH = "True and False are constants; pass a Bool tensor, and choose with phlox.where"
_FIELD = "a field is part of the program; keep what changes in a Param that is not trained, or pass it as an argument"
_SETTING = "the settings of an optimizer are part of the program; pass what changes as the learning rate"
_ABSENT = Facet(None, "not there")


@dataclass(frozen=True)
class Change:
    """One difference: its path (`model.layers.2.rate`), the old value, and the new one."""

    path: str
    before: str
    after: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.path} was {self.before} and is {self.after}" + (f" ({self.remedy})" if self.remedy else "")


@dataclass(frozen=True)
class Recompile:
    """One compilation of a function after its first."""

    function: str
    number: int
    """The number of this compilation; the first that is explained is number 2."""
    changes: tuple[Change, ...]
    """The changes since the closest earlier trace; empty if Phlox sees none."""

    def __str__(self) -> str:
        shown, remedies = list[str](), set[str]()
        for change in self.changes[:5]:
            shown.append(str(replace(change, remedy="") if change.remedy in remedies else change))
            remedies.add(change.remedy)
        num_more = len(self.changes) - len(shown)
        text = "; ".join([*shown, *([f"and {num_more} more"] if num_more else [])])
        unseen = "none of its arguments has changed, so the cause is the engine's settings or its cache of programs"
        return f"{self.function} is compiled for the {_ordinal(self.number)} time: {text or unseen}"


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


_explained: ContextVar[list[Recompile] | None] = ContextVar("phlox_recompiles", default=None)


@contextmanager
def explain_recompiles() -> Generator[list[Recompile]]:
    """Within this scope, every recompilation is explained: the path in the arguments, the old value and the new one.

    The scope returns a list. For each trace of a function after its first, a `Recompile` is added to the list, and
    logged as a warning to the logger `phlox.compile`. Each trace is compared with the closest earlier one, even from
    before the scope. Calls that do not recompile cost the same as outside. With several devices, it also explains
    compilations for another layout of the arrays on the devices.

    >>> import phlox as px
    >>> from phlox.backend import Jax
    >>> scaled = px.compile(lambda x, mode: x * 2.0 if mode == "double" else x)
    >>> with px.debug.explain_recompiles() as recompiles:
    ...     for mode in ("double", "single", "double"):
    ...         _ = scaled(px.ones((2,), device=Jax()), mode)
    >>> len(recompiles), str(recompiles[0].changes[0])[:39]
    (1, "mode was 'double' and is 'single' (a co")
    """
    recompiles: list[Recompile] = []
    with scope(_explained, recompiles):
        yield recompiles


class History:
    """The traces of one compiled function, and what its engine compiled for other layouts."""

    def __init__(self, function: str) -> None:
        self.function = function
        self.traces = 0
        self.compilations = 0
        """The number of traces and of compilations without a trace."""
        self._past: deque[tuple[dict[str, Facet], dict[str, Facet]]] = deque(maxlen=_KEPT)
        """The facets of the last traces, and the layouts of their arrays on devices."""
        self._layouts: deque[tuple[Hashable, dict[str, Facet]]] = deque(maxlen=_KEPT)
        """The shapes of the last compilations, and the layouts of their arrays on devices."""
        self._outside: dict[str, set[Hashable]] = {}
        """For each name that was read from outside of the function, its values so far."""
        self._is_traced = False
        """Has there been a trace since layouts were last noted?"""
        self._lock = threading.Lock()

    def add(self, facets: dict[str, Facet], layouts: dict[str, Facet], outside: dict[str, Facet] | None = None) -> None:
        """Count a trace, and explain it within `explain_recompiles`.

        `outside` is what the function reads from outside; `layouts` is empty if there is one device.
        """
        facets = {**facets, **(outside or {})}
        many_values: list[str] = []
        with self._lock:
            for label, facet in (outside or {}).items():
                values = self._outside.setdefault(label, set())
                if facet.key not in values:
                    values.add(facet.key)
                    if len(values) == _MANY_VALUES:
                        many_values.append(f"{label} ({facet.remedy})")
            self.traces += 1
            self._is_traced = True
            many = self._count(
                [(*changes_between(old, facets), *changes_between(layout, layouts)) for old, layout in self._past]
                if _explained.get() is not None
                else []
            )
            self._past.append((facets, layouts))
        for label in many_values:
            text = f"{self.function} has been compiled for {_MANY_VALUES} values of {label}, and every program is kept"
            warnings.warn(text, RuntimeWarning, stacklevel=3)
        if many:
            self._warn()

    def add_layout(self, shapes: Hashable, layouts: dict[str, Facet]) -> None:
        """Note the layout of the arrays of a call that the engine compiled again.

        It is counted if there was no trace, and if there was a program for the same shapes with another layout.
        """
        with self._lock:
            is_traced, self._is_traced = self._is_traced, False
            # An argument that is a NumPy array in one call has a layout only in others.
            earlier = [
                {path: before.get(path, facet) for path, facet in layouts.items()}
                for same, before in self._layouts
                if same == shapes
            ]
            changes = [changes_between(before, layouts) for before in earlier]
            if not all(changes):
                return  # the engine compiled for reasons of its own
            self._layouts.append((shapes, layouts))
            if is_traced or not changes:
                return
            many = self._count(changes)
        if many:
            self._warn()

    def _count(self, changes: list[tuple[Change, ...]]) -> bool:
        """Count a compilation; of its changes from each earlier one, the fewest are the explanation.

        Returns whether there are now so many compilations that a warning is due.
        """
        self.compilations += 1
        explained = _explained.get()
        if explained is not None and changes:
            recompile = Recompile(self.function, self.compilations, min(reversed(changes), key=len))
            explained.append(recompile)
            _log.warning("%s", recompile)
        return self.compilations == _MANY

    def _warn(self) -> None:
        warnings.warn(
            f"{self.function} has been compiled {_MANY} times, and every program is kept; `with "
            "phlox.debug.explain_recompiles():` around its calls gives the cause of each compilation (a shape, a "
            "constant, a field, a layout, a value from outside), and how to avoid it",
            RuntimeWarning,
            stacklevel=3,
        )


def changes_between(before: dict[str, Facet], after: dict[str, Facet]) -> tuple[Change, ...]:
    """The differences, in the order of the arguments; without the contents of new or missing values."""
    changes: list[Change] = []
    reported: tuple[str, ...] = ()
    for path in {**before, **after}:
        old, new = before.get(path, _ABSENT), after.get(path, _ABSENT)
        if old.key == new.key or path.startswith(reported):
            continue
        changes.append(Change(path, old.text, new.text, new.remedy or old.remedy))
        reported = (*reported, f"{path}.", f"{path}[", f"{path},")
    return tuple(changes)


def facets_of(
    named: list[tuple[str, Any]], reader: CallArguments, checked: bool, rows: Hashable = None
) -> dict[str, Facet]:
    """Everything that the program of a call depends on, by path."""
    facets: dict[str, Facet] = {}
    for name, value in named:
        facets.update(_facets(value, name))
    positions = first_positions(owner.ids for owner in reader.owners)
    for argument in reader.optimizers:
        name = next((name for name, value in named if value is argument.optimizer), "an optimizer")
        key = argument.packed.form, tuple(positions[id] for id in argument.packed.ids)
        facets[f"{name}, its state"] = Facet(key, f"the state of {len(argument.packed.ids)} parameters")
    owned = [owner.ids for owner in reader.owners if not isinstance(owner, FlatState | StateIds)]
    positions = first_positions(owned)
    shared = tuple(tuple(positions[id] for id in ids) for ids in owned)
    num_shared = sum(position[0] != number for number, positions_of in enumerate(shared) for position in positions_of)
    facets["which parameters stand in several arguments"] = (
        Facet(shared, f"{num_shared} of them") if num_shared else Facet((), "none of them")
    )
    if checked:
        facets["phlox.debug.checks"] = Facet(True, "on", "programs with and without checks are kept beside each other")
    if isinstance(rows, InMode):
        facets["phlox.reproducible"] = Facet(
            True, "on", "programs with and without the mode are kept beside each other"
        )
        rows = rows.rows
    if rows is not None:
        facets["the rows of a global batch"] = Facet(
            rows, str(rows), "programs inside and outside of a mesh are kept apart"
        )
    return facets


def layouts_of(named: list[tuple[str, Any]], reader: CallArguments) -> tuple[Hashable, dict[str, Facet]]:
    """The shapes of the arrays of a call, and the layout of each on devices, by path, if its engine reports it."""
    backend = reader.backend
    arrays: list[tuple[str, Any]] = []
    names: dict[ParamId, str] = {}
    for name, value in named:
        for path, part in leaves_of(value, (Tensor, Module), name):
            if isinstance(part, Module):
                param_arrays, aux = flatten(part)
                arrays += [(f"{path}.{below}", x) for below, x in zip(aux.template.paths, param_arrays, strict=True)]
                names |= dict(zip(aux.ids, aux.template.paths, strict=True))
            else:
                tensor = cast("Tensor[Any, Any, Any]", part)
                arrays.append((path, tensor.backend.strip(tensor.primitive)))
    for argument in reader.optimizers:
        name = next((name for name, value in named if value is argument.optimizer), "an optimizer")
        arrays += [(f"{name}, {below}", x) for below, x in argument.packed.named_arrays(names)]
    layouts = {path: backend.layout_of(x) for path, x in arrays}
    facets = {path: Facet(*layout, _LAYOUT) for path, layout in layouts.items() if layout is not None}
    return tuple([(path, x.shape, x.dtype) for path, x in arrays]), facets


def _facets(value: Any, path: str) -> Iterator[tuple[str, Facet]]:
    kind = cast("type[Any]", type(value))
    if isinstance(value, Tensor):
        yield path, _tensor(cast("Tensor[Any, Any, Any]", value))
    elif isinstance(value, Module):
        yield from module_facets(value, path)
    elif isinstance(value, Optimizer):
        yield from _optimizer(value, path)
    elif isinstance(value, StepScalars):
        yield path, Facet((StepScalars, type(value.values[0])), f"{len(value.values)} numbers")
    elif (parts := parts_of(value)) is not None:
        labels = tuple(label for label, _ in parts)
        yield path, Facet((kind, labels), _container(kind, labels))
        for label, part in parts:
            yield from _facets(part, f"{path}{label}")
    elif kind is int or kind is float or getattr(value, "ndim", None) == 0:
        name = "an integer" if "int" in str(getattr(value, "dtype", kind.__name__)) else "a real"
        yield path, Facet(name, f"{name} number")
    else:
        yield path, Facet(_key(value), shown(value), _TRUTH if isinstance(value, bool) else _CONSTANT)


def _container(kind: type[Any], labels: tuple[str, ...]) -> str:
    inside = "" if issubclass(kind, GradientsParams) else f" of {', '.join(labels)}"
    return f"a {kind.__name__}{inside if len(inside) <= 100 else f' of {len(labels)}'}"


def _tensor(value: Tensor[Any, Any, Any]) -> Facet:
    key = value.kind, value.shape, value.backend
    return Facet(key, f"{value.kind.__name__} {value.shape} on {value.backend!r}", _SHAPE)


def _optimizer(value: Optimizer, path: str) -> Iterator[tuple[str, Facet]]:
    inner = value.optimizer if isinstance(value, OptimizerAdaptor) else value
    yield path, Facet(type(inner), type(inner).__name__)
    if isinstance(value, OptimizerAdaptor):
        for name, setting in {**vars(inner), "grad_clipping": value.grad_clipping}.items():
            yield f"{path}.{name}", Facet(_key(setting), shown(setting), _SETTING)
    else:
        yield f"{path}, which object it is", Facet(value.settings(), f"the one at {id(value):#x}", _SETTING)


@contextmanager
def fields_stay(name: str, modules: Iterable[tuple[str, Module]]) -> Generator[None]:
    """Raise `CompileError` if a function that is not compiled changes a field of a module, as one that is would."""
    before = [(path, module, dict(module_facets(module, path))) for path, module in modules]
    yield
    for path, module, facets in before:
        if changes := changes_between(facets, dict(module_facets(module, path))):
            raise field_error(name, type(module).__name__, changes)


def field_error(name: str, module: str, changes: Sequence[Change]) -> CompileError:
    """The error for a function that changed fields of its argument, a module of this class."""
    text = "; ".join(f"{change.path} was {change.before} and is {change.after}" for change in changes)
    return CompileError(
        f"{name}: the function changed a field of its argument, a {module} ({text}), and a compiled function would "
        "lose it when the call ends; return what changes, or keep it in a Param(trained=False)"
    )


def module_facets(module: Module, path: str) -> Iterator[tuple[str, Facet]]:
    """The facets of a module: its structure, and the shapes of its parameters."""
    arrays, aux = flatten(module)
    template = aux.template

    def walk(part: Part, path: str) -> Iterator[tuple[str, Facet]]:
        match part:
            case Leaf(number):
                ops, trained, trainable, full = template.marks[number]
                shape = ops.backend.shape(arrays[number])
                marks = "" if trained else ", frozen" if trainable else ", not trained"
                marks += ", kept at full precision" if full else ""
                text = f"a Param, {ops.kind.__name__} {shape} on {ops.backend!r}{marks}"
                yield path, Facet((ops, shape, trained, trainable, full, number), text)
            case Static(value):
                yield path, Facet(_key(value), shown(value), _FIELD)
            case Shared(number):
                yield path, Facet((Shared, number), "a module that occurs elsewhere too")
            case Container(cls, keys, children, _):
                names = [str(key) for key in keys]
                unnamed = issubclass(cls, (list, tuple)) or not issubclass(cls, Module)
                yield path, Facet((cls, len(keys)) if unnamed else cls, f"a {cls.__name__}")
                for name, child in zip(names, children, strict=True):
                    yield from walk(child, f"{path}.{name}")

    return walk(template.skeleton, path)


def _key(value: Any) -> Hashable:
    try:
        return static_key(value)
    except TypeError:
        return ByIdentity(value)


def shown(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."

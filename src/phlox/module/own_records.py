"""Children that save themselves: modules and objects with their own `into_record` and `load_record`.

The record of such a child is saved under its path in the module (in a field, or a list or dict in it). When the module
is loaded, the child gets the entries under that path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from phlox.errors import ModuleError, PhloxError, RecordError
from phlox.host.signal_guard import Prepared
from phlox.module.fields import Fields
from phlox.record import Record
from phlox.record.gather import trial_load, undoable
from phlox.record.loading.report import LACKING, NOT_MEANT, LoadReport, MisfitError
from phlox.record.patterns import Patterns, selected
from phlox.record.record import MissingEntryError

if TYPE_CHECKING:
    from phlox.module.module import Module


class Child(NamedTuple):
    """A child that saves and loads itself."""

    path: str
    part: Any
    before: int
    """The number of the module's parameters before it."""
    number: int | None = None
    """Its number among the containers; None if it is not a container."""
    others: tuple[str, ...] = ()
    """Further paths of the same child, where nothing is saved."""


@lru_cache(maxsize=4096)
def saves_itself(cls: type[Any]) -> bool:
    """Does a class define its own `into_record` and `load_record`?"""
    if not issubclass(cls, Fields):
        return callable(getattr(cls, "into_record", None)) and callable(getattr(cls, "load_record", None))
    from phlox.module.module import Module

    own: Any = cls
    return own.into_record is not Module.into_record or own.load_record is not Module.load_record


def record_of(child: Child) -> Record:
    """The record of a child; raises `ModuleError`, with its path, unless it is a record with names."""
    record: Any = child.part.into_record()
    if not isinstance(record, Record) or record.positional:
        kind = "a positional record" if isinstance(record, Record) else f"a {type(record).__name__}"
        raise ModuleError(f"{child.path}: {type(child.part).__name__}.into_record must give a Record, got {kind}")
    return record


def outside(paths: Iterable[str], roots: Iterable[str]) -> list[str]:
    """The paths that are neither one of the roots nor below one."""
    return [path for path in paths if not any(path == root or path.startswith(f"{root}.") for root in roots)]


def without(record: Record, children: list[Child]) -> Record:
    """The record without the entries of children; an alias of such an entry becomes an entry."""
    roots = [child.path for child in children]
    entries = {path: record[path] for path in outside(record, roots)}
    aliases: dict[str, str] = {}
    for alias in outside(record.aliases, roots):
        path = record.aliases[alias]
        if path in entries:
            aliases[alias] = path
        else:
            entries[alias] = record[path]
    return Record(entries, record.metadata, aliases=aliases, header=record.header)


@dataclass(slots=True)
class PreparedChildren:
    """The prepared loading of all children: the functions that load them, and their reports."""

    loads: list[Prepared[object]] = field(default_factory=list[Prepared[object]])
    matches: dict[str, str] = field(default_factory=dict[str, str])
    missing: list[str] = field(default_factory=list[str])
    unexpected: list[str] = field(default_factory=list[str])
    misshapen: list[Any] = field(default_factory=list[Any])
    wrong_kind: list[Any] = field(default_factory=list[Any])
    kept: dict[str, str] = field(default_factory=dict[str, str])
    ignored: dict[str, str] = field(default_factory=dict[str, str])
    refused: dict[str, str] = field(default_factory=dict[str, str])
    by_themselves: list[str] = field(default_factory=list[str])
    cause: Exception | None = None

    def add_to(self, own: LoadReport) -> LoadReport:
        """The report on the whole module; `own` is the report on its own parameters."""
        return replace(
            own,
            matches={**own.matches, **self.matches},
            missing=[*own.missing, *self.missing],
            unexpected=[*own.unexpected, *self.unexpected],
            misshapen=[*own.misshapen, *self.misshapen],
            wrong_kind=[*own.wrong_kind, *self.wrong_kind],
            kept={**own.kept, **self.kept},
            ignored={**own.ignored, **self.ignored},
            refused=self.refused,
            by_themselves=self.by_themselves,
        )


def prepare_children(children: list[Child], record: Record, strict: bool, meant: set[str] | None) -> PreparedChildren:
    """Let each child check its part of a record; only the paths in `meant` are loaded."""
    prepared = PreparedChildren()
    for child in children:
        part = record.select(child.path)
        child_paths = [f"{child.path}.{path}" for path in (*part, *part.aliases)]
        if meant is not None and not meant.issuperset([child.path, *child_paths]):
            if meant.isdisjoint([child.path, *child_paths]):
                prepared.kept[child.path] = NOT_MEANT
                prepared.ignored |= dict.fromkeys(child_paths, NOT_MEANT)
            else:
                prepared.refused[child.path] = _ONLY_AS_A_WHOLE
            continue
        try:
            if child.path in record:
                prepared.refused[child.path] = f"the record has {record[child.path]!r} there, and no entries below it"
            elif not child_paths and (missing := _own_paths(child)):
                prepared.missing += missing
                prepared.kept |= dict.fromkeys(missing, LACKING)
            else:
                prepared.loads.append(undoable(child.part, _prepare_part(child.part, part, strict)))
                prepared.matches |= {f"{child.path}.{path}": f"{child.path}.{path}" for path in part.tensors}
                prepared.by_themselves.append(child.path)
        except Exception as error:
            prepared.cause = prepared.cause or error
            _note_error(child, error, prepared)
    return prepared


_ONLY_AS_A_WHOLE = "it loads itself (it has its own load_record): select it as a whole or not at all"


def _own_paths(child: Child) -> list[str]:
    """The paths that a child would save."""
    if isinstance(child.part, Fields):
        paths = [path for path, _ in cast("Any", child.part).named_params()]
        if paths:  # known without creating the values
            return [f"{child.path}.{path}" for path in paths]
    return [f"{child.path}.{path}" for path in record_of(child)]


def _prepare_part(part: Any, record: Record, strict: bool) -> Callable[[], object]:
    if not strict and isinstance(part, Fields):
        module = cast("Module", part)
        if _takes_strict(type(module).load_record):
            module.map(lambda path, param: param).load_record(record, strict=False)
            return partial(module.load_record, record, strict=False)
    prepare = getattr(part, "prepare_load", None) or partial(trial_load, cast("Any", part))
    return prepare(record)


def _takes_strict(load: Callable[..., Any]) -> bool:
    parameters = signature(load).parameters
    return "strict" in parameters or any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values())


def _note_error(child: Child, error: Exception, prepared: PreparedChildren) -> None:
    """Add a child's error to the report, with the paths in the whole module."""
    if isinstance(error, MissingEntryError):
        prepared.missing.append(f"{child.path}.{error.path}")
    elif isinstance(error, MisfitError) and (report := error.report) is not None and not report.untied:
        if report.strict:
            prepared.missing += [f"{child.path}.{path}" for path in report.missing]
            prepared.unexpected += [f"{child.path}.{path}" for path in report.unexpected]
        for entries, new_entries in ((prepared.misshapen, report.misshapen), (prepared.wrong_kind, report.wrong_kind)):
            entries += [entry._replace(path=f"{child.path}.{entry.path}") for entry in new_entries]
        prepared.refused |= {f"{child.path}.{path}": problem for path, problem in report.refused.items()}
    else:
        problem = str(error) if isinstance(error, PhloxError) else f"{type(error).__name__}: {error}"
        prepared.refused[child.path] = problem.replace("\n", "\n  ")


def meant_paths(
    paths: Iterable[str], children: list[Child], record: Record, include: Patterns | None, exclude: Patterns | None
) -> set[str] | None:
    """The paths (of parameters, of children, of entries) that patterns select; None for all of them."""
    if include is None and exclude is None:
        return None
    names = list(dict.fromkeys([*paths, *[child.path for child in children], *record, *record.aliases]))
    meant = set(names) if include is None else selected(include, names)
    return meant if exclude is None else meant - selected(exclude, names)


def refuse_positional(children: list[Child]) -> RecordError:
    """The error for a record without names."""
    return RecordError(
        f"a positional record has no names, but `{children[0].path}` loads itself, and needs names to find its part; "
        "save the record with names"
    )

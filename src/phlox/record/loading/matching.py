"""`match`: check whether a record fits a module, and find all problems at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from phlox.record.dtypes import DType, Kind, canonical, kind_of
from phlox.record.entry import LazyTensor, TensorEntry
from phlox.record.loading.hints import positional_hint, prefix_hint, shift_hint, suggestions
from phlox.record.loading.renaming import Remap, Renamed, rename
from phlox.record.loading.report import DROPPED, LACKING, NOT_MEANT, SURPLUS, UNFIT, UNREADABLE, Difference, LoadReport
from phlox.record.names import fingerprint_of
from phlox.record.patterns import Patterns, selected
from phlox.record.record import Record

Expected: TypeAlias = "tuple[tuple[int, ...], Kind, DType | None]"
"""The shape, kind and dtype (None: any) of an expected tensor."""


def match(
    expected: Mapping[str, Expected],
    record: Record,
    *,
    strict: bool = True,
    aliases: Mapping[str, str] | None = None,
    include: Patterns | None = None,
    exclude: Patterns | None = None,
    remap: Remap | None = None,
) -> LoadReport:
    """Compare a record with what a module expects, without reading tensors (except as below).

    Args:
        expected: path -> (shape, kind, dtype or None), in the module's order.
        record: matched by name, or by order if it is positional.
        strict: whether missing and unexpected entries, and a positional record of another structure, are failures.
        aliases: alias of a tied parameter -> its path in `expected`.
        include, exclude: path patterns (see `phlox.record.patterns`). Only expected paths that match `include` and not
            `exclude` are matched. Other entries of the record are not reported as unexpected.
        remap: new names for the record's entries, see `phlox.record.renamed`; applied first.

    A tied parameter is found under any of its names, in the module or in the record. If the record has separate tensors
    under several of these names, they must be equal: only these tensors are read, and compared.

    Raises RecordError for a pattern that matches nothing, and for a remap that fails.

    >>> import numpy as np
    >>> record = Record({"weight": np.zeros((16, 4), np.float32)})
    >>> match({"weight": ((16, 5), "float", None)}, record).raise_if_failed("Linear")
    Traceback (most recent call last):
    phlox.record.loading.report.MisfitError: cannot load the record into Linear, 1 problem:
      weight: the record has shape (16, 4), the module expects (16, 5)
    """
    aliases = aliases or {}
    view = Renamed(record, {}, [], []) if remap is None else rename(record, remap)
    names, origin = view.record, view.origin
    entries = names._entries  # pyright: ignore[reportPrivateUsage]
    is_unfiltered = include is None and exclude is None
    passed_over = set[str]() if is_unfiltered else _excluded(expected, names, aliases, include, exclude)
    sources = _by_order(expected, names) if names.positional else _by_name(expected, names, aliases)
    others = {sources[path] for path in passed_over & sources.keys()} if names.positional else passed_over
    if passed_over:
        sources = {path: source for path, source in sources.items() if path not in passed_over}
    matches: dict[str, str] = {}
    misshapen: list[Difference] = []
    wrong_kind: list[Difference] = []
    cast: list[Difference] = []
    for path, source in sources.items():
        shape, kind, dtype = expected[path]
        entry = entries[names.aliases.get(source, source)]
        if not isinstance(entry, TensorEntry):
            wrong_kind.append(Difference(path, "value", kind))
        elif kind_of((tensor := entry.tensor).dtype) != kind:
            wrong_kind.append(Difference(path, tensor.kind, kind))
        elif tensor.shape != tuple(shape):
            misshapen.append(Difference(path, tensor.shape, tuple(shape)))
        else:
            matches[path] = origin.get(source, source)
            stored = tensor.dtype
            if dtype is not None and stored != dtype and stored != canonical(dtype, path):
                cast.append(Difference(path, stored, canonical(dtype, path)))
    unreadable = _unreadable(expected, names, sources, aliases, passed_over) if names.unreadable else {}
    missing = [path for path in expected if not (path in sources or path in passed_over or path in unreadable)]
    unused, untied = _surplus(sources, names, {} if names.positional else aliases)
    surplus = dict[str, str]()
    if names.unreadable:
        surplus = {path: why for path, why in names.unreadable.items() if path not in expected and path not in aliases}
    unexpected = [path for path in (*unused, *surplus) if path not in others]
    kept = {path: NOT_MEANT for path in expected if path in passed_over} if passed_over else {}
    unfit = [difference.path for difference in (*misshapen, *wrong_kind)]
    kept |= dict.fromkeys(missing, LACKING) | dict.fromkeys(unfit, UNFIT) | dict.fromkeys(unreadable, UNREADABLE)
    ignored = {origin.get(path, path): NOT_MEANT if path in others else SURPLUS for path in unused}
    ignored |= dict.fromkeys(view.dropped, DROPPED) | {
        path: f"it cannot be read ({why})" for path, why in surplus.items()
    }
    suggested, hint = dict[str, str](), None
    if missing or unexpected or misshapen:
        suggested, hint = _hints(expected, names, aliases, sources, missing, unexpected, bool(misshapen))
    if hint is None and view.unused and (missing or unexpected):
        hint = f"No path of the record matches {view.unused[0]!r}, a key of remap."
    return LoadReport(
        matches=matches,
        missing=missing,
        unexpected=unexpected,
        misshapen=misshapen,
        wrong_kind=wrong_kind,
        cast=cast,
        unreadable=unreadable,
        untied=untied,
        kept=kept,
        ignored=ignored,
        remapped={old: new for new, old in origin.items() if new != old} if origin else {},
        tied={alias: path for alias, path in aliases.items() if path in matches} if aliases else {},
        other_structure=names.fingerprint is not None and names.fingerprint != fingerprint_of(expected),
        suggestions=suggested,
        hint=hint,
        strict=strict,
    )


def _unreadable(
    expected: Mapping[str, Expected],
    record: Record,
    sources: Mapping[str, str],
    aliases: Mapping[str, str],
    passed_over: set[str],
) -> dict[str, str]:
    """Expected path -> why its entry is unreadable; a tied one is readable if any of its names is."""
    reasons: dict[str, str] = {}
    for name, why in record.unreadable.items():
        path = aliases.get(name, name)
        if path in expected and path not in sources and path not in passed_over:
            reasons.setdefault(path, why)
    return reasons


def _by_order(expected: Mapping[str, Expected], record: Record) -> dict[str, str]:
    return dict(zip(expected, record.tensors, strict=False))


def _by_name(expected: Mapping[str, Expected], record: Record, aliases: Mapping[str, str]) -> dict[str, str]:
    entries = record._entries  # pyright: ignore[reportPrivateUsage]
    sources = {path: path for path in expected if path in entries or path in record.aliases}
    for alias, path in aliases.items():
        if path in expected and alias in record:
            sources.setdefault(path, alias)
    return sources


def _excluded(
    expected: Mapping[str, Expected],
    record: Record,
    aliases: Mapping[str, str],
    include: Patterns | None,
    exclude: Patterns | None,
) -> set[str]:
    """The expected paths and the entries that match the patterns by none of their names."""
    names: dict[str, list[str]] = {path: [path] for path in expected}
    owner = {path: path for path in expected}
    for alias, path in aliases.items():
        if path in names:
            names[path].append(alias)
            owner[alias] = path
    if not record.positional:
        for alias, path in record.aliases.items():
            if alias in owner and path not in owner:  # the parameter's entry is stored under another name
                owner[path] = owner[alias]
                names[owner[alias]].append(path)
        for path in (*record, *record.unreadable):
            names.setdefault(owner.setdefault(path, path), [path])
        for alias, path in record.aliases.items():
            if alias not in owner:
                names[owner[path]].append(alias)
    meant = set(names) if include is None else selected(include, names)
    if exclude is not None:
        meant -= selected(exclude, names)
    others = set(names) - meant
    return {path for path in (*expected, *record, *record.unreadable) if owner.get(path) in others}


def _equal(first: object, second: object) -> bool:
    if not isinstance(first, TensorEntry) or not isinstance(second, TensorEntry):
        return False
    a, b = first.tensor, second.tensor
    return (a.shape, a.dtype) == (b.shape, b.dtype) and bool(np.array_equal(_bits(a), _bits(b)))


def _bits(tensor: LazyTensor) -> Any:
    return tensor.read().reshape(-1).view(np.uint8)  # so that equal NaNs match


def _surplus(
    sources: Mapping[str, str], record: Record, aliases: Mapping[str, str]
) -> tuple[list[str], list[Difference]]:
    used = set(sources.values())
    if record.aliases:
        used = {record.aliases.get(path, path) for path in used}
    unused: list[str] = []
    untied: list[Difference] = []
    entries = record._entries  # pyright: ignore[reportPrivateUsage]
    for path in entries:
        if path in used:
            continue
        tied = aliases.get(path)
        if tied is None or tied not in sources:
            unused.append(path)
        elif not _equal(record[path], record[sources[tied]]):
            untied.append(Difference(tied, path, sources[tied]))
    return unused, untied


def _hints(
    expected: Mapping[str, Expected],
    record: Record,
    aliases: Mapping[str, str],
    sources: Mapping[str, str],
    missing: list[str],
    unexpected: list[str],
    misshapen: bool,
) -> tuple[dict[str, str], str | None]:
    """Suggestions for single names, and a hint for the whole."""
    if record.positional:
        return {}, positional_hint(len(expected), record) if missing or unexpected else None
    if not missing and not misshapen:
        return suggestions(missing, unexpected), None
    shift = shift_hint(
        {path: (tuple(shape), kind) for path, (shape, kind, _) in expected.items()},
        {path: (entry.tensor.shape, entry.tensor.kind) for path, entry in record.tensors.items()},
    )
    if shift is not None:
        text, moved = shift
        pairs = {new: old for old, new in moved.items() if new in missing}
        return pairs | {old: new for old, new in moved.items() if old in unexpected}, text
    return suggestions(missing, unexpected), prefix_hint(missing, unexpected)

"""Applies the rules of an adapter to the entries of a record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from phlox.errors import RecordError
from phlox.host.text import shown
from phlox.interop.adapter.layout import Layout, Reversed, Same
from phlox.interop.adapter.pattern import Pattern
from phlox.interop.adapter.rules import Rule
from phlox.record import LazyTensor, Record, TensorEntry
from phlox.record.names import nearest
from phlox.record.record import Entry

_SHOWN = 40
_MAX_SUGGESTIONS = 20


@dataclass(frozen=True, eq=False, slots=True)
class Way:
    """A rule, applied in one of its two directions."""

    sources: tuple[Pattern, ...]
    targets: tuple[Pattern, ...]
    layout: Layout
    rule: Rule


def reading(rules: Iterable[Rule]) -> list[Way]:
    """Rules from theirs to ours."""
    return [Way(rule.theirs, rule.ours, rule.layout, rule) for rule in rules]


def writing(rules: Iterable[Rule]) -> list[Way]:
    """Rules from ours to theirs."""
    return [Way(rule.ours, rule.theirs, Reversed(rule.layout), rule) for rule in rules]


@dataclass(eq=False, slots=True)
class Group:
    """Entries that one rule converts together."""

    way: Way
    captures: tuple[str, ...]
    parts: dict[int, str]
    """Index of the pattern -> path."""

    @property
    def paths(self) -> list[str]:
        """The paths in the order of the rule."""
        return [self.parts[i] for i in sorted(self.parts)]

    def targets(self) -> list[str]:
        """The paths that they become."""
        return [pattern.filled(self.captures) for pattern in self.way.targets]


@dataclass(eq=False, slots=True)
class Assigned:
    """The entries grouped by rule, and those that match no rule."""

    groups: list[Group]
    unknown: list[str]
    problems: list[str]


def assigned(record: Record, ways: Sequence[Way]) -> Assigned:
    """Assign every name of every entry to the rule that matches it."""
    exact: dict[str, list[tuple[Way, int]]] = {}
    wild: list[tuple[Way, int, Pattern]] = []
    for way in ways:
        for i, pattern in enumerate(way.sources):
            if pattern.wildcards:
                wild.append((way, i, pattern))
            else:
                exact.setdefault(pattern.text, []).append((way, i))
    groups: dict[tuple[int, tuple[str, ...]], Group] = {}
    matched: set[str] = set()
    problems: list[str] = []
    for path in (*record, *record.aliases, *record.unreadable):
        matches: list[tuple[Way, int, tuple[str, ...]]] = [(way, i, ()) for way, i in exact.get(path, ())]
        for way, i, pattern in wild:
            if (captures := pattern.captures(path)) is not None:
                matches.append((way, i, captures))
        if len(matches) > 1:  # another rule has priority over a default
            matches = [match for match in matches if match[0].targets or match[0].rule.constant is None] or matches[:1]
        if len(matches) > 1:
            both = " and ".join(repr(way.sources[i].text) for way, i, _ in matches[:2])
            problems.append(f"{shown(path)}: two rules match it, {both}; make one of them more specific")
        for way, i, captures in matches[:1]:
            matched.add(record.aliases.get(path, path))
            groups.setdefault((id(way), captures), Group(way, captures, {})).parts[i] = path
    unknown = [path for path in (*record, *record.unreadable) if path not in matched]
    return Assigned(list(groups.values()), unknown, problems)


def adapted(record: Record, ways: Sequence[Way], strict: bool) -> Record:
    """The converted record; RecordError with all problems. See `Adapter.read`."""
    if record.positional:
        raise RecordError("cannot adapt a positional record: it has no names")
    assignment = assigned(record, ways)
    problems = assignment.problems
    result = _Result()
    kept = dict.fromkeys(assignment.unknown)
    for group in assignment.groups:
        way = group.way
        if len(group.parts) < len(way.sources):
            lacking = [p.filled(group.captures) for i, p in enumerate(way.sources) if i not in group.parts]
            kept.update(dict.fromkeys(record.aliases.get(path, path) for path in group.paths))
            if strict:
                others = ", ".join(map(shown, lacking))
                problems.append(f"{shown(group.paths[0])}: its rule also needs {others}, which is missing")
        elif lost := [path for path in group.paths if path in record.unreadable]:
            # Then no result of this rule can be read.
            result.unreadable |= {target: _lost(record, lost[0], target) for target in group.targets()}
        elif way.targets:
            problems += _put(record, group, result)
        elif not way.rule.theirs and not way.rule.is_default(record[group.paths[0]]):
            path = shown(group.paths[0])
            problems.append(f"{path}: theirs has no entry for it, and its value is not the default of its rule")
    if strict:
        problems += _unknown(assignment.unknown, ways)
    else:
        for path in kept:
            if path in record.unreadable:
                result.unreadable[path] = record.unreadable[path]
            else:
                problems += result.add(path, record[path], path, path)
        for alias, path in record.aliases.items():
            if path in kept and alias not in result:
                problems += result.add(alias, record[path], path, path)
    for way in ways:
        constant = way.rule.constant
        if not way.sources and constant is not None and (path := way.targets[0].text) not in result:
            problems += result.add(path, constant, path, None)
    if problems:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        further = [f"... and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
        raise RecordError(f"cannot adapt the record, {count}:\n  " + "\n  ".join([*problems[:_SHOWN], *further]))
    unreadable = {path: why for path, why in result.unreadable.items() if path not in result}
    return Record(result.entries, record.metadata, aliases=result.aliases, unreadable=unreadable)


def _lost(record: Record, path: str, target: str) -> str:
    why = record.unreadable[path]
    return why if path == target else f"{shown(path)}, from which it is made: {why}"


class _Result:
    """The entries of the new record, and the aliases among them that share a source."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.aliases: dict[str, str] = {}
        self.unreadable: dict[str, str] = {}
        self._origins: dict[str, str] = {}
        self._first_paths: dict[object, str] = {}

    def __contains__(self, path: str) -> bool:
        return path in self._origins

    def add(self, path: str, entry: Entry, origin: str, origin_key: object) -> list[str]:
        """Add an entry, or an alias if another entry has the same `origin_key`. Returns the problem, if any."""
        if path in self:
            return [f"{shown(origin)}: it becomes `{shown(path)}`, as does `{shown(self._origins[path])}`"]
        self._origins[path] = origin
        if origin_key is not None and (first := self._first_paths.setdefault(origin_key, path)) != path:
            self.aliases[path] = first
        else:
            self.entries[path] = entry
        return []


def _put(record: Record, group: Group, result: _Result) -> list[str]:
    paths, targets, layout = group.paths, group.targets(), group.way.layout
    entries = [record[path] for path in paths]
    stored = tuple(record.aliases.get(path, path) for path in paths)
    if group.way.rule.layout == Same():
        return result.add(targets[0], entries[0], paths[0], (stored, None, 0))
    tensors: list[LazyTensor] = []
    for path, entry in zip(paths, entries, strict=True):
        if not isinstance(entry, TensorEntry):
            return [f"{shown(path)}: it is a plain value; its rule is for tensors"]
        tensors.append(entry.tensor)
    try:
        results = layout.forward(tensors)
    except RecordError as error:
        return [f"{', '.join(map(shown, paths))}: {error}"]
    id = entries[0].id if len(paths) == len(targets) == 1 else None
    problems: list[str] = []
    for i, (target, tensor) in enumerate(zip(targets, results, strict=True)):
        problems += result.add(target, TensorEntry(tensor, id), paths[0], (stored, layout, i))
    return problems


def _unknown(paths: list[str], ways: Sequence[Way]) -> list[str]:
    patterns: Mapping[str, None] = dict.fromkeys(pattern.text for way in ways for pattern in way.sources)
    problems: list[str] = []
    for i, path in enumerate(paths):
        # Wildcards usually match numbers.
        pattern = ".".join("*" if segment.isdecimal() else segment for segment in path.split("."))
        near = (nearest(path, patterns) or nearest(pattern, patterns)) if i < _MAX_SUGGESTIONS else None
        problems.append(f"{shown(path)}: no rule matches it" + (f"; did you mean {near!r}?" if near else ""))
    return problems

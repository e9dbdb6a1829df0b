"""`LoadReport`: which entries fit, which do not and why, and which were loaded, as readable text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from phlox.errors import RecordError
from phlox.host.text import count, html_by, listed, shown

_MOST_LINES = 100
_MOST_NAMES = 6
_GROUP = 8
"""Minimum number of entries that are summarised as one."""
_MOST_LEVELS = 64

NOT_MEANT = "not meant"
LACKING = "the record lacks it"
UNFIT = "the record's does not fit"
SURPLUS = "the module has no such parameter"
UNREADABLE = "the record's cannot be read"
DROPPED = "dropped by remap"


class Difference(NamedTuple):
    """The found and the expected shape, kind or dtype at a path."""

    path: str
    found: Any
    expected: Any


class MisfitError(RecordError):
    """A record does not fit the module that it is loaded into."""

    def __init__(self, text: str, report: LoadReport | None = None) -> None:
        super().__init__(text)
        self.report = report


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """The result of `match` and, once `done`, of loading. `print` it: one line if everything is fine.

    `ok` is whether the record can be loaded; `matches` maps each tensor to its source. With `strict=False`, missing and
    unexpected entries are reported but are not failures. Entries that are `cast` are never failures.
    """

    matches: dict[str, str]
    """Expected path -> path in the record, for all entries that fit."""
    missing: list[str] = field(default_factory=list[str])
    """Expected paths that the record lacks."""
    unexpected: list[str] = field(default_factory=list[str])
    """Paths in the record (as remapped) that nothing expects."""
    misshapen: list[Difference] = field(default_factory=list[Difference])
    wrong_kind: list[Difference] = field(default_factory=list[Difference])
    """Tensors of another kind; a plain value in place of a tensor has the kind "value"."""
    cast: list[Difference] = field(default_factory=list[Difference])
    """Tensors that fit after a cast to the expected dtype."""
    unreadable: dict[str, str] = field(default_factory=dict[str, str])
    """Expected paths whose entry is unreadable (see `Record`) -> why; other unreadable entries are `ignored`."""
    untied: list[Difference] = field(default_factory=list[Difference])
    """Tied tensors of the module that are two different tensors in the record: at `found` and at `expected`."""
    kept: dict[str, str] = field(default_factory=dict[str, str])
    """Expected paths that keep their current value -> why."""
    ignored: dict[str, str] = field(default_factory=dict[str, str])
    """Ignored paths of the record -> why."""
    remapped: dict[str, str] = field(default_factory=dict[str, str])
    """Path in the record -> its new path by `remap`, if that differs."""
    tied: dict[str, str] = field(default_factory=dict[str, str])
    """Alias of a loaded tensor -> the path of the tensor."""
    by_themselves: list[str] = field(default_factory=list[str])
    """Children with their own `load_record`, which load the entries below their paths themselves."""
    refused: dict[str, str] = field(default_factory=dict[str, str])
    """Such children that reject their entries -> why."""
    other_structure: bool = False
    """Whether a positional record was written by a module of another structure."""
    suggestions: dict[str, str] = field(default_factory=dict[str, str])
    """Missing or unexpected path -> the name on the other side that was probably meant."""
    hint: str | None = None
    """A hint about the probable cause of all problems."""
    strict: bool = True
    done: bool = False
    """Whether it was loaded; False for a dry run."""

    @property
    def ok(self) -> bool:
        """Whether the record can be loaded."""
        return not self._problems(self.strict)

    @property
    def loaded(self) -> list[str]:
        """The paths that are loaded from the record; none if it cannot be loaded."""
        return list(self.matches) if self.ok else []

    def as_done(self) -> LoadReport:
        """This report, marked as done."""
        return replace(self, done=True)

    def raise_if_failed(self, where: str) -> None:
        """Raise RecordError with all problems unless `ok`; `where` names the target of the load."""
        if problems := self._problems(self.strict):
            raise MisfitError(
                self._ended(f"cannot load the record into {where}, {count(len(problems), 'problem')}:", problems), self
            )

    def __str__(self) -> str:
        if problems := self._problems(self.strict):
            return self._ended(
                f"the record does not fit, {count(len(problems), 'problem')}:", [*problems, *self._casts()]
            )
        total = len(self.matches) + len(self.kept)
        share = (
            f"{len(self.matches)} of {total} parameters" if self.kept else _ALL.get(total, f"all {total} parameters")
        )
        notes = self._casts()
        if self.by_themselves:
            notes.append("by themselves: " + _named(self.by_themselves))
        if self.tied:
            notes.append("tied: " + _named(f"{alias} is {path}" for alias, path in self.tied.items()))
        if self.remapped:
            notes.append("remapped: " + _named(f"{old} to {new}" for old, new in self.remapped.items()))
        head = "; ".join([f"{share} {'loaded' if self.done else 'fit'}", *notes])
        lines = [f"kept, {why}: {_summed_up(paths, self.kept, self.matches)}" for why, paths in _by_reason(self.kept)]
        sources = {*self.matches.values()}
        lines += [
            f"ignored in the record, {why}: {_summed_up(paths, self.ignored, sources)}"
            for why, paths in _by_reason(self.ignored)
        ]
        hints = [f"did you mean `{shown(meant)}` by `{shown(path)}`?" for path, meant in self.suggestions.items()]
        lines += hints[:_MOST_NAMES]
        if self.other_structure:
            lines.append(_OTHER_STRUCTURE)
        return self._ended(head, lines)

    _repr_html_ = html_by("phlox.record.pages", "page_of_report")

    def _ended(self, head: str, lines: list[str]) -> str:
        if len(lines) > _MOST_LINES:
            note = f"... and {len(lines) - _MOST_LINES} more, which the fields of load_report(...) name"
            lines = [*lines[:_MOST_LINES], note]
        hints = self.hint.split("\n") if self.hint else []
        return "\n  ".join([head, *hints, *lines])

    def _casts(self) -> list[str]:
        ways: dict[str, list[str]] = {}
        for d in self.cast:
            ways.setdefault(f"cast from {d.found} to {d.expected}", []).append(d.path)
        return [f"{way}: {_named(paths)}" for way, paths in ways.items()]

    def _problems(self, strict: bool) -> list[str]:
        unfit = self.misshapen or self.wrong_kind or self.unreadable or self.untied or self.refused
        if not (unfit or (strict and (self.other_structure or self.missing or self.unexpected))):
            return []
        lines = [_OTHER_STRUCTURE] if self.other_structure and strict else []
        lines += [
            f"{shown(d.path)}: the record has shape {d.found}, the module expects {d.expected}" for d in self.misshapen
        ]
        lines += [
            f"{shown(d.path)}: the record has {_with_article(d.found)}, the module expects {_with_article(d.expected)}"
            for d in self.wrong_kind
        ]
        lines += [f"{shown(path)}: the record's cannot be read: {why}" for path, why in self.unreadable.items()]
        lines += [
            f"{shown(d.path)}: the record has another tensor at {shown(d.found)}, but in the module both are one "
            f"parameter; drop the wrong one with remap"
            for d in self.untied
        ]
        lines += [f"{shown(path)}: {why}" for path, why in self.refused.items()]
        if strict and (self.missing or self.unexpected):
            fit = {*self.matches, *(d.path for d in (*self.misshapen, *self.wrong_kind)), *self.unreadable}
            lines += self._lines(self.missing, fit, "missing from the record")
            present = {*self.matches.values(), *fit, *self.tied, *self.remapped.values()} - {*self.unexpected}
            lines += self._lines(self.unexpected, present, "in the record, but not in the module")
        return lines

    def _lines(self, paths: list[str], others: set[str], problem: str) -> Iterable[str]:
        """One line per path or group of paths; a path with its own suggestion gets its own line."""
        alone = [] if self.hint else [path for path in paths if path in self.suggestions]
        for label, number in grouped(paths, {*others, *alone}):
            size = f"{number} entries" if number > 1 else ""
            yield f"{shown(label)}: {size}{' ' if size else ''}{problem}{self._suggestion(label)}"

    def _suggestion(self, path: str) -> str:
        return f"; did you mean `{shown(self.suggestions[path])}`?" if path in self.suggestions else ""


_ALL = {0: "no parameters to be", 1: "the one parameter"}
_OTHER_STRUCTURE = (
    "the record has no names, and was written by a module of another structure: tensors would be loaded into the wrong "
    "parameters; save it with names, or load it into a module of that structure (strict=False loads them in order)"
)


def _named(paths: Iterable[str]) -> str:
    return listed([shown(path) for path in paths], _MOST_NAMES)


def _summed_up(paths: list[str], candidates: Iterable[str], others: Iterable[str]) -> str:
    """The names of some paths, with groups summarised."""
    others_ = {*candidates, *others} - {*paths}
    return _named(f"{label} ({number} entries)" if number > 1 else label for label, number in grouped(paths, others_))


def grouped(paths: list[str], others: Iterable[str]) -> list[tuple[str, int]]:
    """`paths` in order, each with count 1; many paths below one module are summarised as "module.**" with their number.

    A group is as large as possible without containing any of `others`, so its pattern matches exactly the group.

    >>> grouped([f"optimizer.{i}.m" for i in range(240)] + ["bias"], ["weight"])
    [('optimizer.**', 240), ('bias', 1)]
    """
    occupied = {path[:end] for path in (*others,) for end in _ends(path)}
    groups: dict[str, list[str]] = {}
    for path in paths:
        # The outermost level without other paths.
        start = next((path[:end] for end in _ends(path) if path[:end] not in occupied), path)
        groups.setdefault(path if path in occupied else start, []).append(path)
    result: list[tuple[str, int]] = []
    for start, members in groups.items():
        if len(members) >= _GROUP:
            result.append((f"{start}.**", len(members)))
        else:
            result += [(path, 1) for path in members]
    return result


def _ends(path: str) -> Iterable[int]:
    """The end positions of the levels above a path, outermost first; limited, since paths may be untrusted."""
    end = -1
    for _ in range(_MOST_LEVELS):
        if (end := path.find(".", end + 1)) < 0:
            return
        yield end


def _by_reason(reasons: Mapping[str, str]) -> Iterable[tuple[str, list[str]]]:
    by_reason: dict[str, list[str]] = {}
    for path, why in reasons.items():
        by_reason.setdefault(why, []).append(path)
    return by_reason.items()


def _with_article(kind: str) -> str:
    return "a plain value" if kind == "value" else f"{'an' if kind == 'int' else 'a'} {kind} tensor"

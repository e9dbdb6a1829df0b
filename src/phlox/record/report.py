"""Does a record fit what is to be loaded? `match` finds everything that is amiss at once, `LoadReport` tells it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from phlox.errors import RecordError
from phlox.record.dtypes import DType, Kind, canonical
from phlox.record.entry import LazyTensor, TensorEntry
from phlox.record.names import nearest
from phlox.record.record import Record

Expected: TypeAlias = "tuple[tuple[int, ...], Kind, DType | None]"
"""Of a tensor to be loaded: its shape, its kind, and its element type (None: whichever comes)."""

_MAX_SUGGESTIONS = 20


class Difference(NamedTuple):
    """What the record has at a path and what was expected there: two shapes, two kinds, or two element types."""

    path: str
    found: Any
    expected: Any


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What `match` found. `ok` says whether the record may be loaded; `matches` says from where each tensor comes.

    With `strict=False`, missing and unexpected entries are told but do not make it fail. Entries that are `cast` never
    do.
    """

    matches: dict[str, str]
    """Path expected -> path in the record, for all that is found and fits."""
    missing: list[str]
    """Paths expected that the record lacks."""
    unexpected: list[str]
    """Paths in the record that nothing expects."""
    misshapen: list[Difference]
    wrong_kind: list[Difference]
    """Tensors of another kind; a plain value in place of a tensor is of the kind "value"."""
    cast: list[Difference]
    """Tensors that fit once cast to the expected element type."""
    untied: list[Difference]
    """One tensor to whoever loads, two different ones in the record: at `found` and at `expected`."""
    suggestions: dict[str, str]
    """Missing or unexpected path -> the name on the other side that was probably meant."""
    hint: str | None
    """What probably went wrong as a whole."""
    strict: bool

    @property
    def ok(self) -> bool:
        """Whether nothing speaks against loading."""
        return not self._problems(self.strict)

    def raise_if_failed(self, where: str) -> None:
        """Raises RecordError with every problem unless `ok`; `where` names what the record was to be loaded into."""
        if problems := self._problems(self.strict):
            count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
            hint = f"\n{self.hint}" if self.hint else ""
            raise RecordError(f"cannot load the record into {where}, {count}:\n  " + "\n  ".join(problems) + hint)

    def __str__(self) -> str:
        total = len(self.matches) + len(self.missing) + len(self.misshapen) + len(self.wrong_kind)
        lines = [f"{len(self.matches)} of {total} tensors found and fitting", *self._problems(strict=True)]
        lines += [f"{d.path}: cast from {d.found} to {d.expected}" for d in self.cast]
        return "\n  ".join(lines) + (f"\n{self.hint}" if self.hint else "")

    def _problems(self, strict: bool) -> list[str]:
        lines = [f"{d.path}: the record has shape {d.found}, the module expects {d.expected}" for d in self.misshapen]
        lines += [
            f"{d.path}: the record has {_with_article(d.found)}, the module expects {_with_article(d.expected)}"
            for d in self.wrong_kind
        ]
        lines += [
            f"{d.path}: the record has another tensor at {d.found}, but in the module both are one parameter"
            for d in self.untied
        ]
        if strict:
            lines += [f"{path}: missing from the record{self._meant(path)}" for path in self.missing]
            lines += [f"{path}: in the record, but not in the module{self._meant(path)}" for path in self.unexpected]
        return lines

    def _meant(self, path: str) -> str:
        return f"; did you mean `{self.suggestions[path]}`?" if path in self.suggestions else ""


def match(
    expected: Mapping[str, Expected],
    record: Record,
    *,
    strict: bool = True,
    aliases: Mapping[str, str] | None = None,
) -> LoadReport:
    """Compares a record with what a module expects, reading no tensor (save two that should be one, see below).

    Args:
        expected: path -> (shape, kind, element type or None), in the module's order.
        record: matched by name, or in order where it is positional.
        strict: whether missing and unexpected entries are failures.
        aliases: further name of a tied parameter -> its path in `expected`.

    A tied parameter is found under any of its names, be they the module's aliases or the record's. A record that has
    separate tensors under several of them must have equal ones: these, and only these, are read and compared.

    >>> import numpy as np
    >>> record = Record({"weight": np.zeros((16, 4), np.float32)})
    >>> match({"weight": ((16, 5), "float", None)}, record).raise_if_failed("Linear")
    Traceback (most recent call last):
    phlox.errors.RecordError: cannot load the record into Linear, 1 problem:
      weight: the record has shape (16, 4), the module expects (16, 5)
    """
    aliases = aliases or {}
    found = _by_order(expected, record) if record.positional else _by_name(expected, record, aliases)
    matches: dict[str, str] = {}
    misshapen: list[Difference] = []
    wrong_kind: list[Difference] = []
    cast: list[Difference] = []
    for path in found:
        shape, kind, dtype = expected[path]
        entry = record[found[path]]
        if not isinstance(entry, TensorEntry):
            wrong_kind.append(Difference(path, "value", kind))
        elif entry.tensor.kind != kind:
            wrong_kind.append(Difference(path, entry.tensor.kind, kind))
        elif entry.tensor.shape != tuple(shape):
            misshapen.append(Difference(path, entry.tensor.shape, tuple(shape)))
        else:
            matches[path] = found[path]
            if dtype is not None and entry.tensor.dtype != canonical(dtype, path):
                cast.append(Difference(path, entry.tensor.dtype, canonical(dtype, path)))
    missing = [path for path in expected if path not in found]
    unexpected, untied = _left_over(found, record, {} if record.positional else aliases)
    if record.positional:
        suggestions, hint = {}, _positional_hint(len(expected), record) if missing or unexpected else None
    else:
        suggestions, hint = _suggestions(missing, unexpected), _prefix_hint(missing, unexpected)
    return LoadReport(matches, missing, unexpected, misshapen, wrong_kind, cast, untied, suggestions, hint, strict)


def _by_order(expected: Mapping[str, Expected], record: Record) -> dict[str, str]:
    return dict(zip(expected, record.tensors, strict=False))


def _by_name(expected: Mapping[str, Expected], record: Record, aliases: Mapping[str, str]) -> dict[str, str]:
    found = {path: path for path in expected if path in record}
    for alias, path in aliases.items():
        if path in expected and alias in record:
            found.setdefault(path, alias)
    return found


def _equal(first: object, second: object) -> bool:
    if not isinstance(first, TensorEntry) or not isinstance(second, TensorEntry):
        return False
    a, b = first.tensor, second.tensor
    return (a.shape, a.dtype) == (b.shape, b.dtype) and bool(np.array_equal(_bits(a), _bits(b)))


def _bits(tensor: LazyTensor) -> Any:
    return tensor.read().reshape(-1).view(np.uint8)  # so that NaN equals itself


def _left_over(
    found: Mapping[str, str], record: Record, aliases: Mapping[str, str]
) -> tuple[list[str], list[Difference]]:
    used = {record.aliases.get(path, path) for path in found.values()}
    unexpected: list[str] = []
    untied: list[Difference] = []
    for path in record:
        if path in used:
            continue
        tied = aliases.get(path)
        if tied is None or tied not in found:
            unexpected.append(path)
        elif not _equal(record[path], record[found[tied]]):
            untied.append(Difference(tied, path, found[tied]))
    return unexpected, untied


def _suggestions(missing: list[str], unexpected: list[str]) -> dict[str, str]:
    suggestions: dict[str, str] = {}
    for names, others in ((missing, unexpected), (unexpected, missing)):
        for name in names[:_MAX_SUGGESTIONS]:
            if (meant := nearest(name, others)) is not None:
                suggestions[name] = meant
    return suggestions


def _positional_hint(expected: int, record: Record) -> str:
    return (
        f"The record is positional: {len(record.tensors)} tensors without names, matched in order; the module expects "
        f"{expected}. It was written by a module of another structure."
    )


def _prefix_hint(missing: list[str], unexpected: list[str]) -> str | None:
    if not missing or not unexpected:
        return None
    first, lacking, surplus = missing[0], set(missing), set(unexpected)
    for path in unexpected:
        prefix = path.removesuffix("." + first)
        if prefix != path and all(f"{prefix}.{name}" in surplus for name in missing):
            return f"The record has all that is missing below {prefix!r}: load record.select({prefix!r})."
    for path in missing:
        prefix = path.removesuffix("." + unexpected[0])
        if prefix != path and all(f"{prefix}.{name}" in lacking for name in unexpected):
            return f"The record lacks the prefix {prefix!r}: load Record.merge({{{prefix!r}: record}})."
    return None


def _with_article(kind: str) -> str:
    return "a plain value" if kind == "value" else f"{'an' if kind == 'int' else 'a'} {kind} tensor"

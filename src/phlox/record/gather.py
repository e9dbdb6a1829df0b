"""`gather` and `restore`: one record with the state of a whole program, restored completely or not at all."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import ModuleType
from typing import Any, Protocol, cast, runtime_checkable

from phlox.errors import PhloxError, RecordError
from phlox.host.signal_guard import Prepared, SignalGuard
from phlox.record.names import nearest
from phlox.record.record import Entry, Record
from phlox.record.values import Value, checked_value

_PARTS = "parts"
"""The metadata key for the names of the parts: a part without state has no entry."""


@runtime_checkable
class Recordable(Protocol):
    """The protocol of objects that can be saved as a record and loaded from one: modules, optimizers, your classes.

    An object may also have `prepare_load(record)`, which checks everything that can fail, changes nothing, and returns
    a function that does the load. `restore` prefers it, since it then needs no trial load. If that function has an
    attribute `undo`, also a function, `restore` calls it to revert the load after Ctrl-C or the failure of another
    part; otherwise it loads the previous record.
    """

    def into_record(self) -> Record:
        """The state as a record. Copies are not required, but later changes must not affect it."""
        ...

    def load_record(self, record: Record, /) -> object:
        """Load the state from a record. If it does not fit: RecordError, and the old state is kept."""
        ...


@runtime_checkable
class Stateful(Protocol):
    """An object whose state is a dict of plain values: random streams, samplers, counters.

    An optional `prepare_restore(state)` works like `prepare_load` of a `Recordable`.
    """

    def state(self) -> Mapping[str, Any]:
        """The state."""
        ...

    def restore(self, state: Any, /) -> object:
        """Restore such a state. If it does not fit: an error, and the old state is kept."""
        ...


def gather(parts: Mapping[str, Any] | None = None, /, **more: Any) -> Record:
    """Combine several parts in one record, each under its name; tensors are not copied.

    Args:
        parts: by name: `Recordable` objects (modules, optimizers, schedules), `Stateful` objects (random streams),
            plain values, records, and nested dicts of these.
        more: the same, by keyword.

    Raises RecordError, naming the part, for any other object, and for a name that is empty or has a dot.

    >>> from phlox.random import Stream
    >>> record = gather(random=Stream((0, 7), position=3), progress={"epoch": 2, "best": 0.5})
    >>> record.paths(), record["random"]["position"]
    (['random', 'progress'], 3)
    >>> stream = Stream((0, 0))
    >>> restore(record, random=stream, progress={})["progress"]["epoch"], stream.position
    (2, 3)
    """
    return _gather(_merge_names(parts, more), "")


def _gather(parts: Mapping[str, Any], prefix: str) -> Record:
    entries: dict[str, Entry] = {}
    records: dict[str, Record] = {}
    for name, part in parts.items():
        path = _path(name, prefix)
        if isinstance(part, Record):
            records[name] = part
        elif isinstance(part, Recordable):
            records[name] = part.into_record()
        elif isinstance(part, Stateful):
            entries[name] = _plain(part.state(), path, "its state() holds something else than plain values: ")
        elif _is_nested(part):
            records[name] = _gather(part, path)
        else:
            entries[name] = _plain(part, path, "no part that can be saved: ")
    merged = Record.merge(records)
    all_entries: dict[str, Entry] = {**{path: merged[path] for path in merged}, **entries}
    order = {name: number for number, name in enumerate(parts)}
    all_entries = dict(sorted(all_entries.items(), key=lambda item: order[item[0].partition(".")[0]]))
    metadata = {**merged.metadata, _PARTS: json.dumps(list(parts))}
    return Record(all_entries, metadata, aliases=merged.aliases, unreadable=merged.unreadable)


def restore(record: Record, parts: Mapping[str, Any] | None = None, /, **more: Any) -> dict[str, Any]:
    """Restore the state of all parts from a record of `gather`: all of them, or none.

    Args:
        record: the gathered record, saved and loaded in any format.
        parts, more: the parts, by the names under which they were gathered. For a plain value give any value of its
            type, or None for any type.

    Returns the plain values of the record by name, nested like the parts; plain values cannot be changed in place. A
    part given as None that is not a plain value is returned as a record.

    Raises RecordError if a part is missing from the record, is unexpected, or does not fit. It lists all problems of
    all parts, and nothing is changed. To load a single part use `record.select("model")`.

    >>> record = gather(progress={"epoch": 2})
    >>> restore(record, progress={"epoch": 0})
    {'progress': {'epoch': 2}}
    """
    if record.positional:
        raise RecordError("restore: a positional record has no names for its parts; save it with names")
    problems: list[str] = []
    commits: list[tuple[Any, Callable[[], object]]] = []
    values = _prepare(record, _merge_names(parts, more), "", problems, commits)
    if problems:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise RecordError(f"cannot restore, {count}; nothing was changed:\n  " + "\n  ".join(problems))
    _change([undoable(part, change) for part, change in commits])
    return values


def undoable(part: Any, change: Callable[[], object]) -> Prepared[object]:
    """The change of a part, with a function that reverts it."""
    if isinstance(change, Prepared):
        return cast("Prepared[object]", change)
    undo = getattr(change, "undo", None)
    if undo is not None:
        return Prepared(change, lambda: undo)
    save, load = (part.into_record, part.load_record) if isinstance(part, Recordable) else (part.state, part.restore)
    return Prepared(change, lambda: _undo_of(part, save, load))


def _change(changes: list[Prepared[object]]) -> None:
    """Apply all changes or none. Ctrl-C is delayed; then the changes are reverted, if possible."""
    done: list[Prepared[object]] = []

    def undo() -> None:
        while done:
            done.pop().undo()

    # Changes that cannot be reverted come first: if one fails, the others were not applied yet.
    changes = sorted(changes, key=lambda change: change.can_be_undone)
    with SignalGuard(undo=undo if all(change.can_be_undone for change in changes) else None):
        try:
            for change in changes:
                done.append(change)
                change()
        except BaseException:
            undo()
            raise


def _prepare(
    record: Record,
    parts: Mapping[str, Any],
    prefix: str,
    problems: list[str],
    commits: list[tuple[Any, Callable[[], object]]],
) -> dict[str, Any]:
    """The plain values; changes are appended to `commits`, errors to `problems`."""
    values: dict[str, Any] = {}
    saved_names = _part_names(record)
    problems += _name_problems(list(parts), saved_names, prefix)
    for name, part in parts.items():
        path = _path(name, prefix)
        if name not in saved_names:
            continue
        is_value = name in record.values
        try:
            if _is_nested(part) and not is_value:
                values[name] = _prepare(record.select(name), part, path, problems, commits)
            elif isinstance(part, Recordable) and not isinstance(part, Record):
                if is_value or name in record.tensors:
                    raise RecordError(f"the record has {record[name]!r}, where {_described(part)} was expected")
                prepare = getattr(part, "prepare_load", None) or partial(trial_load, part)
                commits.append((part, prepare(record.select(name))))
            elif isinstance(part, Stateful):
                if not is_value:
                    raise RecordError(f"the record has no state of {_described(part)} there, but entries below it")
                prepare = getattr(part, "prepare_restore", None) or partial(_trial, part, part.state, part.restore)
                commits.append((part, prepare(record[name])))
            elif part is None and not is_value:
                values[name] = record[name] if name in record else record.select(name)
            elif not is_value:
                raise RecordError(f"the record has entries below it, where a plain value was expected: {part!r}")
            else:
                values[name] = _same_type(record[name], part)
        except Exception as error:
            problems.append(f"{path}: " + _reason(error).replace("\n", "\n  "))
    return values


def trial_load(part: Recordable, record: Record) -> Prepared[object]:
    """`prepare_load` for a part without it: the record is loaded, and the load is reverted at once."""
    return _trial(part, part.into_record, part.load_record, record)


def _trial(part: object, save: Callable[[], Any], load: Callable[[Any], object], source: Any) -> Prepared[object]:
    undo = _undo_of(part, save, load)
    with SignalGuard():
        try:
            load(source)
        finally:
            undo()
    return Prepared(lambda: load(source), lambda: undo)


def _undo_of(part: object, save: Callable[[], Any], load: Callable[[Any], object]) -> Callable[[], None]:
    """A function that restores the current state of a part."""
    before, fields = save(), dict(getattr(part, "__dict__", {}))

    def undo() -> None:
        # Twice: first to restore the contents of lists and the like, then because loading may have side effects.
        with contextlib.suppress(Exception):
            load(before)
        if fields and not isinstance(part, ModuleType):
            vars(part).clear()
            vars(part).update(fields)

    return undo


def _name_problems(names: list[str], saved: list[str], prefix: str) -> Iterator[str]:
    missing = [name for name in names if name not in saved]
    unexpected = [name for name in saved if name not in names]
    has = f"; it has {', '.join(saved[:10])}" if saved else ""
    for name in missing:
        yield f"{_path(name, prefix)}: the record has no such part{_suggestion(name, unexpected or saved) or has}"
    for name in unexpected:
        hint = _suggestion(name, missing) or "; give it too"
        yield f"{_path(name, prefix)}: the record has this part, but it was not given{hint}"


def _suggestion(name: str, others: list[str]) -> str:
    match = nearest(name, others)
    return f"; did you mean `{match}`?" if match else ""


def _part_names(record: Record) -> list[str]:
    """The names of the parts of a record."""
    try:
        names = json.loads(record.metadata[_PARTS])
    except (KeyError, ValueError, RecursionError):
        names = []
    listed = [name for name in cast("list[Any]", names) if isinstance(name, str)] if isinstance(names, list) else []
    return list(dict.fromkeys([*listed, *(path.partition(".")[0] for path in (*record, *record.aliases))]))


def _merge_names(parts: Mapping[str, Any] | None, more: Mapping[str, Any]) -> dict[str, Any]:
    if parts is not None and not isinstance(parts, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise RecordError(f"expected the parts by name, as in model=..., or a dict of them; got {_described(parts)}")
    for name in more.keys() & (parts or {}).keys():
        raise RecordError(f"the part {name!r} is given twice")
    return {**(parts or {}), **more}


def _path(name: object, prefix: str) -> str:
    if not isinstance(name, str) or not name or "." in name:
        raise RecordError(f"{prefix or 'parts'}: {name!r} is not a name for a part: a str, not empty, without a dot")
    return f"{prefix}.{name}" if prefix else name


def _is_nested(part: object) -> bool:
    """Is it a dict that contains parts, and not only plain values?"""
    if not isinstance(part, Mapping) or not part:
        return False
    try:
        checked_value(dict(cast("Mapping[Any, Any]", part)), "")
    except RecordError:
        return True
    return False


def _plain(value: object, path: str, issue: str) -> Value:
    try:
        return checked_value(dict(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else value, path)
    except RecordError as error:
        raise RecordError(
            f"{path}: {issue}{_reason(error).removeprefix(f'{path}: ')}; or give it methods into_record and load_record"
        ) from None


def _same_type(value: Value, example: object) -> Value:
    is_number = isinstance(value, (int, float)) and isinstance(example, float) and not isinstance(value, bool)
    if example is None or type(value) is type(example) or is_number:
        return value
    raise RecordError(f"the record has {value!r}, where {_described(example)} was expected; give None for any value")


def _described(part: object) -> str:
    return f"a value of type {type(part).__name__}"


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, PhloxError) else f"{type(error).__name__}: {error}"

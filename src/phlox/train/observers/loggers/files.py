"""`Logger`, the base of callbacks that only watch, and loggers that write rows to a file."""

from __future__ import annotations

import contextlib
import csv
import errno
import io
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, cast
from urllib.parse import quote

import numpy as np

from phlox.errors import KindError, RunError
from phlox.record.io.files import atomic_write
from phlox.train.events import flattened, kept
from phlox.train.observers.callback import AnyLearner, Callback
from phlox.train.observers.callbacks.monitor import is_count
from phlox.train.values import Histogram, Image, from_plain, is_picture, row_values, to_plain

Row = dict[str, Any]
"""Numbers by name; and histograms and images, for loggers that show them."""

_FORMER = {
    "start": "begin(self, learner)",
    "step": "write(self, row), with every_steps=1",
    "epoch": "write(self, row)",
    "stop": "close(self)",
}
"""The methods of the former interface, and the methods that replace them."""


class Logger(Callback):
    """The base of callbacks that only log: it calls `write` with rows of scalars.

    Override `write`, and `begin` and `close` if you need them. `write` gets a row at the end of each epoch, after each
    validation within an epoch, every `every_steps` steps, and when the training ends within an epoch; at most one row
    for a step. A row within an epoch is written after the next step, or when the training ends. It has

    - `epoch`, the number of the epoch, from 1, and `step`,
    - `train/...`, the loss and metrics of this epoch so far, and `validation/...` if there was a validation at this
      step,
    - `lr`, or `lr/...` for each group,
    - `seconds`, the time of this epoch's steps so far, and `rows_per_second`,
    - the values that callbacks have put into `learner.extra`: numbers, in each row from then on; of an array of up to
      100 numbers each (`name/0`, `name/1`, ...), and of a larger one its `Histogram`. A histogram or an `Image` is in
      one row, the next; give a new one for a further row.

    A logger that shows no histograms gets four numbers of each, `name/mean`, `name/std`, `name/min` and `name/max` (and
    `name/nonfinite`, how many are NaN or infinite, where some are); images are left out of its rows. For anything else
    in `learner.extra` the learner is warned once.

    If `write` raises one of the exceptions in `tolerated`, the learner is warned once, and the training goes on.

    Args:
        every_steps: the number of steps after which to write a further row; None writes none.

    Attributes:
        shows: the classes, of `Histogram` and `Image`, whose values may be in the rows that `write` gets; by default
            rows have numbers only.
        failed: when `close` is called, the exception that ended the training, or None.

    Raises `RunError` if `every_steps` is not an integer of at least 1, and `KindError`, a `TypeError`, for a subclass
    with a method of the former interface (`start`, `step`, `epoch`, `stop`).

    >>> class Shout(Logger):
    ...     def write(self, row):
    ...         print(f"EPOCH {row['epoch']}!")
    """

    tolerated: ClassVar[tuple[type[Exception], ...]] = (OSError,)
    shows: ClassVar[tuple[type[Any], ...]] = ()

    # Class attributes, so that a subclass with its own __init__ need not call the one of this class.
    every_steps: int | None = None
    failed: BaseException | None = None
    _pending: Row | None = None  # not written yet
    _last = _step = 0
    _began = _elapsed = _paused = 0.0
    _is_open = _warned = _restored = False
    _extra: Mapping[str, Any] = {}
    # The values of the learner's `extra` whose histograms or images are in the pending row, and those that were in an
    # earlier row; and the names of both in a resumed training.
    _new: Mapping[str, Any] = {}
    _shown: Mapping[str, Any] = {}
    _before: tuple[Sequence[str], Sequence[str]] | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, now in _FORMER.items():
            if callable(vars(cls).get(name)):
                raise KindError(
                    f"{cls.__name__}.{name}: a Logger is a Callback, and gets rows; write this method as {now}"
                )

    def __init__(self, every_steps: int | None = None) -> None:
        if every_steps is not None and not is_count(every_steps):
            raise RunError(
                f"{type(self).__name__}: every_steps must be a whole number of at least one, or None, got "
                f"{every_steps!r}"
            )
        self.every_steps = every_steps

    # --- for subclasses

    def begin(self, learner: AnyLearner) -> None:
        """Called before the first row."""

    def write(self, row: Row) -> None:
        """Called with each row."""
        raise NotImplementedError(f"{type(self).__name__}: implement write(row)")

    def close(self) -> None:
        """Called after the last row, however the training ends."""

    @property
    def last_step(self) -> int:
        """The step of the last row that was written.

        When `begin` is called in a resumed training, it is the last one before the checkpoint; `write` gets the later
        rows again.
        """
        return self._last

    # --- as a callback

    def on_fit_start(self, learner: AnyLearner) -> None:
        if not (learner.is_resumed and self._restored):
            self._pending, self._elapsed, self._last = None, 0.0, learner.step
            self._new = {}
        self._extra = learner.extra
        if self._before is not None:
            self._new, self._shown = ({name: self._extra.get(name) for name in names} for names in self._before)
            self._before = None
        self._step = learner.step
        self._began = learner.seconds - self._elapsed
        self._warned, self.failed = False, None
        self.begin(learner)
        self._is_open, self._restored = True, False

    def on_epoch_start(self, learner: AnyLearner) -> None:
        self._began = learner.seconds

    def on_step_end(self, learner: AnyLearner) -> None:
        self._flush(learner)
        before, self._step, self._elapsed = self._step, learner.step, learner.seconds - self._began
        if self.every_steps is not None and learner.step // self.every_steps > before // self.every_steps:
            self._pending = self._row(learner, {})

    def on_validation_start(self, learner: AnyLearner) -> None:
        self._paused = learner.seconds

    def on_validation_end(self, learner: AnyLearner) -> None:
        self._began += learner.seconds - self._paused  # the validation is no time of the steps
        self._pending = self._row(learner, learner.validation)  # replaces the row of the step

    def on_epoch_end(self, learner: AnyLearner) -> None:
        report, last = learner.history[-1], self._last
        self._pending = self._with_extra(learner, report.flat())
        self._flush(learner)
        if report.complete:
            self._elapsed = 0.0
        else:
            self._last = last  # a resumed training continues the epoch, and writes another row at its end

    def on_exception(self, learner: AnyLearner, error: BaseException) -> None:
        self.failed = error

    def on_fit_end(self, learner: AnyLearner) -> None:
        if self._is_open:
            self._is_open = False
            try:
                self._flush(learner)
            finally:
                self.close()

    def state(self) -> Mapping[str, Any]:
        pending = None if self._pending is None else {name: to_plain(value) for name, value in self._pending.items()}
        new, shown = (
            [*kept({name: value for name, value in values.items() if value is self._extra.get(name)})]
            for values in (self._new, self._shown)
        )  # fmt: skip
        return {"last": self._last, "pending": pending, "seconds": self._elapsed, "new": new, "shown": shown}

    def restore(self, state: Mapping[str, Any], /) -> None:
        pending = state.get("pending")
        self._pending = None if pending is None else {name: from_plain(value) for name, value in pending.items()}
        self._before = [*state.get("new", ())], [*state.get("shown", ())]
        self._last, self._elapsed = int(state.get("last", 0)), float(state.get("seconds", 0.0))
        self._restored = True

    def _row(self, learner: AnyLearner, validation: Mapping[str, Any]) -> Row:
        seconds = learner.seconds - self._began
        return self._with_extra(learner, {
            "epoch": learner.epoch + 1, "step": learner.step, **flattened("lr", learner.lr),
            **flattened("train", learner.means()), **flattened("validation", validation), "seconds": seconds,
            "rows_per_second": learner.rows / seconds if seconds > 0.0 else math.nan,
        })  # fmt: skip

    def _with_extra(self, learner: AnyLearner, numbers: Mapping[str, float]) -> Row:
        """A row of these numbers and of the values of callbacks."""
        row: Row = dict(numbers)
        new = dict[str, Any]()
        # Sorted, because a resumed training may have set some of them in another order.
        for name, value in sorted(learner.extra.items(), key=lambda item: str(item[0])):
            if value is self._shown.get(name, row):
                continue
            try:
                entries = row_values(name, value)
            except RunError as error:
                text = f"learner.extra: {error}"
                if not any(said == text for _, said in learner.events):
                    learner.warn(text)
                continue
            row |= entries
            if any(map(is_picture, entries.values())):
                new[name] = value
        self._extra, self._new = learner.extra, new
        return {name: value if is_picture(value) else _number(value) for name, value in row.items()}

    def _flush(self, learner: AnyLearner) -> None:
        row, self._pending = self._pending, None
        if row is None:
            return
        self._last = int(row["step"])
        self._shown, self._new = {**self._shown, **self._new}, {}
        row = dict(part for name, value in row.items() for part in self._as_shown(name, value))
        try:
            self.write(row)
        except self.tolerated as error:
            if not self._warned:
                self._warned = True
                learner.warn(f"{self!r}: a row could not be written ({error}); the training goes on")

    def _as_shown(self, name: str, value: Any) -> list[tuple[str, Any]]:
        """The entries of a row for a value that this logger may not show."""
        if not is_picture(value) or isinstance(value, self.shows):
            return [(name, value)]
        numbers = value.numbers() if isinstance(value, Histogram) else {}
        return [(f"{name}/{part}", number) for part, number in numbers.items()]

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class FileLogger(Logger):
    """The base of loggers that write rows to one file: `JsonlLogger` and `CsvLogger`.

    Args:
        path: the file; missing folders are created.
        every_steps: see `Logger`.
        append: whether rows may be added to an existing file.
        overwrite: whether an existing file may be replaced. A resumed training continues its own file in any case.

    A resumed training removes the rows after the checkpoint, so that the file ends as it would have without the
    interruption. The file has complete lines at any moment. Rows that cannot be written (a full disk, a missing folder)
    are kept, and written together with a later row. An image becomes a PNG file in the folder `NAME_images` beside the
    file `NAME.jsonl`, and the row has its path from there.

    Raises `RunError`, when the training begins, if the file exists and neither `append` nor `overwrite` is set, or if
    it cannot be written.
    """

    writes: ClassVar[bool] = True
    shows: ClassVar[tuple[type[Any], ...]] = (Image,)

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        every_steps: int | None = None,
        append: bool = False,
        overwrite: bool = False,
    ) -> None:
        super().__init__(every_steps)
        if append and overwrite:
            raise RunError(f"{type(self).__name__}: append= and overwrite= exclude each other; give one of them")
        self.path, self.append, self.overwrite = Path(path), append, overwrite
        self._unsaved: list[Row] = []
        self._first = 0  # the number of rows before the first one of this training
        self._is_own = False

    # --- the format, for subclasses

    def read_rows(self, data: bytes) -> list[Any]:
        """Read the rows of a file, with all that `to_bytes` needs to write them again, except an incomplete line."""
        raise NotImplementedError

    def step_of(self, row: Any) -> int | None:
        """The step of a row that `read_rows` has read; None if it has none."""
        raise NotImplementedError

    def to_bytes(self, rows: Sequence[Any]) -> bytes:
        """The bytes of a whole file of such rows."""
        raise NotImplementedError

    def lines(self, rows: Sequence[Row]) -> bytes | None:
        """The lines to append to the file; None if the file has to be rewritten."""
        return self.to_bytes(self.added(rows))

    def added(self, rows: Sequence[Row]) -> list[Any]:
        """New rows in the form that `read_rows` returns."""
        raise NotImplementedError

    # --- as a logger

    def begin(self, learner: AnyLearner) -> None:
        self._unsaved = []
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            data = self.path.read_bytes() if self.path.exists() else None
            goes_on = learner.is_resumed and (self._restored or _is_inside(self.path, learner.folder))
            replaces = self.overwrite or learner.starts_over
            if data is None or (not goes_on and replaces and not self.append and not (self._is_own and learner.step)):
                self._first = 0
                self._write(self.to_bytes([]))
            elif goes_on:
                rows = self.read_rows(data)
                own = [row for row in rows[self._first :] if (self.step_of(row) or 0) <= self.last_step]
                self._replace(data, [*rows[: self._first], *own])
            elif self.append or (self._is_own and learner.step):
                rows = self.read_rows(data)
                self._first = self._first if self._is_own and learner.step else len(rows)
                self._replace(data, rows)
            else:
                raise RunError(
                    f"{type(self).__name__}: {self.path} exists; give another path, overwrite=True to replace it, or "
                    "append=True to add to it"
                )
            self._is_own = True
        except (UnicodeDecodeError, csv.Error) as error:
            raise RunError(f"{type(self).__name__}: {self.path} is no file of this logger ({error})") from error
        except OSError as error:
            raise RunError(
                f"{type(self).__name__}: {self.path} cannot be written ({error.strerror or error}); give another path"
            ) from error

    def write(self, row: Row) -> None:
        self._unsaved.append(row)
        self._save()

    def _with_files(self, row: Row) -> Row:
        """Write the images of a row to files, and return the row with their paths."""
        new = dict(row)
        for name, image in row.items():
            if isinstance(image, Image):
                folder = self.path.with_name(f"{self.path.stem}_images")
                folder.mkdir(exist_ok=True)
                path = (
                    folder / f"{quote(name, safe=' ')}-{row['step']:08}.png"
                )  # quoted, so that no part of the name is a folder
                with atomic_write(path, durable=False, follow_links=False) as file:
                    file.write(image.png)
                new[name] = f"{folder.name}/{path.name}"
        return new

    def close(self) -> None:
        if self._unsaved:
            with contextlib.suppress(OSError):  # the learner was warned of this already
                self._save()

    def _save(self) -> None:
        exists, new = self.path.exists(), [self._with_files(row) for row in self._unsaved]
        lines = self.lines(new) if exists else None
        if lines is None:
            rows = self.read_rows(self.path.read_bytes()) if exists else []
            self._write(self.to_bytes([*rows, *self.added(new)]))
        else:
            _add(self.path, lines)
        self._unsaved = []

    def state(self) -> Mapping[str, Any]:
        return {**super().state(), "first": self._first}

    def restore(self, state: Mapping[str, Any], /) -> None:
        super().restore(state)
        self._first = int(state.get("first", 0))

    def _replace(self, data: bytes, rows: Sequence[Any]) -> None:
        new = self.to_bytes(rows)
        if new != data:
            self._write(new)

    def _write(self, data: bytes) -> None:
        with atomic_write(self.path, durable=False) as file:
            file.write(data)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"


class JsonlLogger(FileLogger):
    """Writes a line of JSON for each row (https://jsonlines.org).

    JSON has no NaN and no infinity: they become `null`, which pandas and Polars read as a missing value. A histogram is
    an object with `counts`, the `range` from the first to the last edge of its bins, which have one width, `mean`,
    `std`, `min` and `max`.

    See `FileLogger` for the arguments.

    >>> import tempfile
    >>> JsonlLogger(tempfile.mkdtemp() + "/metrics.jsonl", every_steps=100)
    JsonlLogger('...metrics.jsonl')
    """

    shows: ClassVar[tuple[type[Any], ...]] = (Histogram, Image)

    def read_rows(self, data: bytes) -> list[Any]:
        return [line + b"\n" for line in data.split(b"\n")[:-1] if line.strip()]

    def step_of(self, row: Any) -> int | None:
        try:
            entry: Any = json.loads(row)
        except ValueError:
            return None
        step: Any = cast("dict[str, Any]", entry).get("step") if isinstance(entry, dict) else None
        return step if isinstance(step, int) else None

    def to_bytes(self, rows: Sequence[Any]) -> bytes:
        return b"".join(rows)

    def added(self, rows: Sequence[Row]) -> list[Any]:
        return [json.dumps({name: _as_json(value) for name, value in row.items()}).encode() + b"\n" for row in rows]


class CsvLogger(FileLogger):
    """Writes a table of comma-separated values: a header, a column for each name, and a line for each row.

    If a row has new names, the file is replaced, atomically, by one with the new columns added. A value that a row
    lacks is an empty cell; NaN and infinities are `nan`, `inf` and `-inf`. A histogram has columns of four numbers, see
    `Logger`.

    See `FileLogger` for the arguments.

    >>> import tempfile
    >>> CsvLogger(tempfile.mkdtemp() + "/metrics.csv")
    CsvLogger('...metrics.csv')
    """

    _columns: Sequence[str] = ()  # of the file

    def read_rows(self, data: bytes) -> list[Any]:
        text = data[: data.rfind(b"\n") + 1].decode()
        names, *rows = [*csv.reader(io.StringIO(text, newline=""))] or [[]]
        return [{name: cell for name, cell in zip(names, row, strict=False) if cell} for row in rows]

    def step_of(self, row: Any) -> int | None:
        step = str(row.get("step", ""))
        return int(step) if step.isdecimal() else None

    def to_bytes(self, rows: Sequence[Any]) -> bytes:
        # In the order in which they appear; columns of only removed rows are removed, too.
        self._columns = [*dict.fromkeys(name for row in rows for name in row)]
        if not self._columns:
            return b""
        return _csv([self._columns, *([row.get(name, "") for name in self._columns] for row in rows)])

    def lines(self, rows: Sequence[Row]) -> bytes | None:
        cells = self.added(rows)
        if not all(name in self._columns for row in cells for name in row):
            return None
        return _csv([[row.get(name, "") for name in self._columns] for row in cells])

    def added(self, rows: Sequence[Row]) -> list[Any]:
        return [{name: value if isinstance(value, str) else repr(value) for name, value in row.items()} for row in rows]


def _number(value: Any) -> float:
    """The number as a Python number."""
    return int(cast("int", value)) if isinstance(value, (int, np.integer)) else float(value)


def _as_json(value: Any) -> Any:
    if isinstance(value, Histogram):
        return {name: _as_json(part) for name, part in value.to_plain().items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _csv(rows: Sequence[Sequence[str]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _add(path: Path, data: bytes) -> None:
    """Append to a file, all or nothing."""
    with path.open("ab", buffering=0) as file:
        end = file.tell()
        try:
            if file.write(data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        except OSError:
            file.truncate(end)
            raise


def _is_inside(path: Path, folder: Path | None) -> bool:
    return folder is not None and path.resolve().is_relative_to(Path(folder).resolve())

"""`Loader`: the batches of a source, each a function of the seed, the epoch and its number in the epoch."""

from __future__ import annotations

import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from math import inf
from threading import Event
from typing import Any, Self, cast

from phlox.backend import Device, DeviceLike, as_device
from phlox.data.maker import BatchResult, Collate, Maker, SkippedRow, Task, Transform, placed, stages_of
from phlox.data.order import VERSION, InOrder, Order, Rows, Shuffled, check_number
from phlox.data.sources import as_source
from phlox.data.workers import KINDS, Threads, Workers, in_order
from phlox.errors import DataError, DataWarning
from phlox.other_names import answering

_LAST_SEED = 2**64 - 1
_LAST_EPOCH = 2**32 - 1


class Loader:
    """Loads batches of rows from a source, epoch after epoch, and can resume at any batch.

    A batch depends only on the seed, the epoch and its number. It is the same with any number of worker threads,
    processes or hosts, and whether or not the batches before it were made. To resume, save the epoch and the number of
    the next batch.

    Args:
        source: arrays in any nesting, a path, a list of rows, or a data set of another library: see `as_source`.
        batch_size: the number of rows in a batch.
        shuffle: whether each epoch has its own random order; otherwise it has the order of the source.
        seed: the seed of the order and the transforms, from 0 to `2**64 - 1`.
        transform: a function of a batch, `(batch)` or `(batch, draws)`, or a list of several; `draws` has the numbers
            of the rows and random numbers for each row, see `Draws`.
        collate: a function from a list of rows to a batch, such as `Pad()`. By default rows, of one shape, are stacked.
        drop_last: whether to leave out a last batch with fewer rows.
        order: in place of `shuffle`: `Weighted`, `ClassBalanced`, `ByLength`, or your own `Order`.
        workers: the number of threads or processes that make batches in the background; with 0 a batch is made when it
            is needed.
        worker_type: `"thread"`, for NumPy, files and decoders; or `"process"`, for transforms in plain Python.
        prefetch: the number of batches that are made ahead; by default 2 for each worker. Without workers, one thread
            makes them.
        device: the device for the arrays, as tensors, also put there in the background; without it, batches are NumPy
            arrays.
        on_error: for a row that cannot be read: `"raise"` an error that names it, or `"skip"` it and list it in
            `skipped`.
        timeout: the seconds after which a worker that makes no batch is replaced.

    Raises:
        DataError: an argument is invalid, or there are no rows.

    >>> import numpy as np
    >>> loader = Loader({"x": np.arange(10), "y": np.arange(10) % 2}, batch_size=4)
    >>> [batch["x"].tolist() for batch in loader]
    [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    >>> shuffled = Loader(np.arange(1000), batch_size=8, shuffle=True, seed=3)
    >>> whole = list(shuffled.epoch(5))
    >>> bool((next(shuffled.epoch(5, start=7)) == whole[7]).all())
    True
    """

    @answering
    def __init__(
        self,
        source: Any,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        transform: Transform | Sequence[Transform] | None = None,
        collate: Collate | None = None,
        drop_last: bool = False,
        order: Order | None = None,
        workers: int = 0,
        worker_type: str = "thread",
        prefetch: int | None = None,
        device: DeviceLike | None = None,
        on_error: str = "raise",
        timeout: float = 300.0,
    ) -> None:
        check_number("Loader: batch_size", batch_size, 1)
        check_number("Loader: workers", workers, 0)
        check_number("Loader: seed", seed, 0, _LAST_SEED)
        if prefetch is not None:
            check_number("Loader: prefetch", prefetch, 0)
        if worker_type not in KINDS:
            raise DataError(f"Loader: worker_type is {worker_type!r}; give 'thread' or 'process'")
        if on_error not in ("raise", "skip"):
            raise DataError(f"Loader: on_error is {on_error!r}; give 'raise' or 'skip'")
        if not timeout > 0.0:
            raise DataError(f"Loader: timeout is {timeout}; give a number of seconds above 0")
        if order is not None and shuffle:
            raise DataError("Loader: shuffle=True and an order were given; give one of them")
        if not isinstance(cast("Any", order), (Order, type(None))):
            raise DataError(f"Loader: order is {order!r}; give an Order, such as Weighted(weights)")
        if collate is not None and not callable(collate):
            raise DataError(f"Loader: collate is {collate!r}; give a function of a list of rows")
        self.source = as_source(source)
        self.batch_size, self.shuffle, self.seed, self.drop_last = batch_size, shuffle, seed, drop_last
        self.workers, self.worker_type, self.timeout = workers, worker_type, float(timeout)
        self.prefetch = 2 * workers if prefetch is None else prefetch
        chosen = order if order is not None else Shuffled() if shuffle else InOrder()
        length = chosen.length(len(self.source))
        if drop_last:
            length -= length % batch_size
        if not length:
            raise DataError(
                f"Loader: {chosen.length(len(self.source))} rows make no batch of {batch_size}; give more rows, a "
                "smaller batch_size, or drop_last=False"
            )
        self._maker = Maker(
            self.source, chosen, batch_size, length, seed, stages_of(transform), collate, on_error == "skip",
        )  # fmt: skip
        self._device = None if device is None else as_device(device)
        self._pool: Workers | None = None
        self._is_open = False
        self._position = (0, 0)
        self.skipped: list[SkippedRow] = []
        """The rows that could not be read so far, with `on_error="skip"`."""

    # --- what there is

    def __len__(self) -> int:
        """The number of batches in an epoch."""
        return -(-self._maker.length // self.batch_size)

    @property
    def num_rows(self) -> int:
        """The number of rows in an epoch, over all processes."""
        return self._maker.length

    @property
    def order(self) -> Order:
        """The order of the rows."""
        return self._maker.order

    def rows(self, epoch: int, number: int) -> Rows:
        """The numbers of the rows in this process's part of a batch, int64 [rows]."""
        self._check_position(epoch, number)
        return self._maker.rows(Task(epoch, number))

    def rows_in(self, number: int) -> int:
        """The number of rows in batch `number`, over all processes."""
        return min(self.batch_size, self._maker.length - number * self.batch_size)

    @property
    def part(self) -> tuple[int, int]:
        """The part of each batch that it returns, and the number of parts: (0, 1) is the whole; see `shard`."""
        return self._maker.part

    @property
    def is_in_order(self) -> bool:
        """Does an epoch have all rows of the source, in their order, over all processes?

        >>> import numpy as np
        >>> Loader(np.arange(5), 2).is_in_order, Loader(np.arange(5), 2, drop_last=True).is_in_order
        (True, False)
        """
        return isinstance(self.order, InOrder) and self._maker.length == len(self.source)

    @property
    def is_open(self) -> bool:
        """Are workers kept from one epoch to the next (`with loader:`)?"""
        return self._is_open

    @property
    def skips_rows(self) -> bool:
        """Are unreadable rows left out (`on_error="skip"`)?"""
        return self._maker.skips

    def with_part(self, part: int, parts: int) -> Loader:
        """A loader of this part of each batch, like `shard`, but some parts may be empty.

        A loader that is already a part is replaced by the new part of the whole batch.
        """
        check_number("Loader: parts", parts, 1)
        check_number("Loader: part", part, 0, parts - 1)
        return self._with(replace(self._maker, part=(part, parts), block=[]))

    def shard(self, part: int, parts: int) -> Loader:
        """A loader of one part of each batch, for one of several processes; together the parts are the batch, in order.

        Args:
            part: the index of the part, from 0.
            parts: the number of parts.

        Raises:
            DataError: a batch, or the last one, has fewer rows than there are parts.
        """
        check_number("Loader: parts", parts, 1)
        check_number("Loader: part", part, 0, parts - 1)
        first, count = self._maker.part
        least = min(self.batch_size, self.rows_in(len(self) - 1))
        if least < count * parts:
            raise DataError(
                f"Loader.shard: a batch of {least} rows has none for some of {count * parts} processes; give a larger "
                "batch_size, or drop_last=True"
            )
        return self._with(replace(self._maker, part=(first * parts + part, count * parts), block=[]))

    def on_device(self, device: DeviceLike | None) -> Loader:
        """A loader of the same batches as tensors on a device, put there in the background; None gives NumPy arrays."""
        twin = self._with(self._maker)
        twin._device, twin.skipped = None if device is None else as_device(device), self.skipped  # it has the same rows
        return twin

    def _with(self, maker: Maker) -> Loader:
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin._maker, twin._pool, twin._is_open, twin.skipped = maker, None, False, []
        return twin

    # --- iterating

    def epoch(self, epoch: int = 0, start: int = 0, stop: int | None = None) -> Iterator[Any]:
        """Iterate over the batches of an epoch, from batch `start` on.

        Args:
            epoch: the number of the epoch, from 0; without a shuffle or a random transform all epochs are the same.
            start: the first batch, counted from 0; `len(self)` gives none.
            stop: the batch before which to end; None is the end of the epoch.

        Raises:
            DataError: a number is out of range; or, during the iteration, a row cannot be read.
        """
        return self._batches(self.numbered(epoch, start, stop))

    def numbered(
        self, epoch: int = 0, start: int = 0, stop: int | None = None, *, device: DeviceLike | None = None
    ) -> Iterator[tuple[int, Any]]:
        """Like `epoch`, but each batch comes with its number.

        With `on_error="skip"`, a batch without any readable row is left out.

        Args:
            epoch, start, stop: see `epoch`.
            device: the device for the arrays, in place of the loader's own. They are put on it in the background;
                worker processes make NumPy arrays and import no engine, and a thread of this process puts these on
                the device.

        Raises:
            DataError: as `epoch`; and if no row of a whole epoch could be read.

        >>> import numpy as np
        >>> [(number, batch.tolist()) for number, batch in Loader(np.arange(4), 2).numbered(start=1)]
        [(1, [2, 3])]
        """
        self._check_position(epoch, start, beyond=1)
        if stop is not None:
            check_number("Loader: stop", stop, 0)
        target = self._device if device is None else as_device(device)
        return self._numbered(epoch, start, len(self) if stop is None else min(stop, len(self)), target)

    @staticmethod
    def _batches(numbered: Iterator[tuple[int, Any]]) -> Iterator[Any]:
        with closing(cast("Any", numbered)):
            for _, batch in numbered:
                yield batch

    def _numbered(self, epoch: int, start: int, stop: int, device: Device | None) -> Iterator[tuple[int, Any]]:
        has_yielded = False
        with closing(self._results(epoch, start, stop, device)) as results:
            for task, result in results:
                self._note(result.skipped)
                if result.rows or not result.skipped:
                    has_yielded = True
                    yield task.number, result.batch
        if not has_yielded and start == 0 < stop == len(self):
            row, error = self.skipped[-1]
            raise DataError(f"Loader: no row of epoch {epoch} can be read; row {row}: {error}")

    def _results(self, epoch: int, start: int, stop: int, device: Device | None) -> Generator[tuple[Task, BatchResult]]:
        in_background = bool(self.workers or self.prefetch)
        by_processes = in_background and self.worker_type == "process"
        tasks = (Task(epoch, number, None if by_processes else device) for number in range(start, stop))
        if not in_background:
            for task in tasks:
                yield task, self._maker(task)
            return
        pool, self._pool = self._pool or KINDS[self.worker_type](self._maker, max(1, self.workers)), None
        finished, leaving, device_thread = False, Event(), None
        results = in_order(pool, tasks, max(1, self.prefetch), self.timeout, leaving.is_set)
        batches = results
        if by_processes and device is not None:
            # One thread receives the batches of the processes in order, and puts one ahead on the device.
            device_thread = Threads(lambda _: _on_device(next(results), device), 1)
            batches = (result for _, result in in_order(device_thread, iter(range(start, stop)), 1, inf))
        try:
            yield from batches
            finished = True
        finally:
            leaving.set()
            if device_thread is not None:
                device_thread.close()
            # A pool that stops in the middle of an epoch is still making batches that nobody needs.
            if finished and self._is_open and self._pool is None:
                self._pool = pool
            else:
                pool.close()

    def _note(self, skipped: list[SkippedRow]) -> None:
        first = not self.skipped
        self.skipped.extend(skipped)
        if skipped and first:
            row, error = skipped[0]
            warnings.warn(
                f"row {row} of the source cannot be read and is left out: {error}; the loader's `skipped` has all",
                DataWarning,
                stacklevel=4,
            )

    def __iter__(self) -> Iterator[Any]:
        """The batches from the loader's position: the rest of one epoch; the next `for` begins the next epoch."""
        epoch, start = self._position
        for number, batch in self.numbered(epoch, start):
            self._position = (epoch, number + 1) if number + 1 < len(self) else (epoch + 1, 0)
            yield batch
        self._position = (epoch + 1, 0)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of a `for` loop over this loader, as plain values; `load_state_dict` continues there."""
        epoch, number = self._position
        return {
            "epoch": epoch, "batch": number, "seed": self.seed, "batch_size": self.batch_size,
            "rows": self._maker.length, "order": type(self.order).__name__, "version": VERSION,
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at the position that `state_dict` of a loader of the same batches returned.

        Raises:
            DataError: the other loader had other batches: another seed, batch size, order or number of rows.
        """
        expected = self.state_dict()
        for name, value in expected.items():
            if name not in state:
                raise DataError(f"Loader: the state has no {name!r}; give what state_dict() of a Loader returned")
            if name not in ("epoch", "batch") and state[name] != value:
                raise DataError(
                    f"Loader: the state is of a loader whose {name} is {state[name]!r}, but here it is {value!r}; "
                    "the batches would differ. Make the loader with the old arguments, or begin a new epoch"
                )
        epoch, number = int(state["epoch"]), int(state["batch"])
        self._check_position(epoch, number)
        self._position = epoch, number

    # --- workers

    def __enter__(self) -> Self:
        """Within this scope the workers are kept from one epoch to the next."""
        self._is_open = True
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers that wait for the next epoch."""
        self._is_open = False
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def __repr__(self) -> str:
        return (
            f"Loader({len(self)} batches of {self.batch_size}, {self._maker.length} rows, "
            f"{type(self.order).__name__}, seed {self.seed})"
        )

    def _check_position(self, epoch: int, number: int, beyond: int = 0) -> None:
        check_number("Loader: epoch", epoch, 0, _LAST_EPOCH)
        if not 0 <= number < len(self) + beyond:
            raise DataError(f"Loader: there is no batch {number}; an epoch has batches 0 to {len(self) - 1}")


def _on_device(item: tuple[Task, BatchResult], device: Device) -> tuple[Task, BatchResult]:
    task, result = item
    return (task, result._replace(batch=placed(result.batch, device))) if result.rows else item


__all__ = ["Collate", "Loader", "SkippedRow", "Task", "Transform", "placed"]

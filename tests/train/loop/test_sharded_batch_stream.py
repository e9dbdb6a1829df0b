"""Which loaders several processes refuse, before anything is trained; the rows themselves are in test_lock_step.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from phlox.data import Loader
from phlox.errors import DataError
from phlox.train.loop.sharded_batch_stream import ShardedBatchStream


def stream(loader: Loader, processes: int, **options: Any) -> ShardedBatchStream:
    mesh = SimpleNamespace(part=(processes - 1, processes), batch_axis="data")
    team: Any = SimpleNamespace(mesh=mesh, parts=processes, cuts=processes, partitions=False)
    return ShardedBatchStream(loader, team, "training", **{"training": True, **options})


@pytest.mark.parametrize("training", [True, False])
def test_only_one_process_may_skip_rows(training: bool) -> None:
    for processes, on_error in ((1, "raise"), (1, "skip"), (2, "raise")):
        loader: Any = Loader(np.arange(8), 4, on_error=on_error)
        assert stream(loader, processes, training=training).name == "training"
    with pytest.raises(DataError, match=r"^training: with on_error='skip' a process could have fewer rows"):
        stream(Loader(np.arange(8), 4, on_error="skip"), 2, training=training)


def test_every_process_needs_a_row_of_each_batch() -> None:
    for rows, size, message in ((8, 2, "batches of 2 rows are"), (10, 4, "the last batch of 2 rows is")):
        with pytest.raises(DataError, match=f"{message} too few for 3 processes"):
            stream(Loader(np.arange(rows), size), 3)
        stream(Loader(np.arange(rows), size), 3, training=False)
    stream(Loader(np.arange(11), 4), 3)
    with pytest.raises(DataError, match="a batch of 4 rows cannot be divided equally over 3 processes"):
        stream(Loader(np.arange(11), 4), 3, weighted=False)
    with pytest.raises(DataError, match="a batch of 4 rows cannot be divided equally over 3 processes"):
        stream(Loader(np.arange(10), 6), 3, weighted=False)
    stream(Loader(np.arange(9), 6), 3, weighted=False)

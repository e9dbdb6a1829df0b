"""What several processes have measured is what one would have measured of all rows."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from phlox import metrics
from phlox.backend import NumPy
from phlox.train.step.data_parallel import DataParallel
from phlox.train.step.metric_state import MetricState
from phlox.train.step.sums import reduce_metrics

HostArray = np.ndarray[Any, Any]


class Processes:
    """The other processes have these numbers."""

    def __init__(self, *others: HostArray) -> None:
        self.others, self.own = others, np.zeros(0)

    def gathered(self, own: HostArray) -> HostArray:
        self.own = own
        return np.stack([own, *self.others])


def measured(rows: tuple[HostArray, HostArray] | None) -> MetricState:
    kinds: dict[str, Any] = {"r2": metrics.R2(), "pearson": metrics.Pearson(), "mse": metrics.MeanSquaredError()}
    metric_state = MetricState(kinds, NumPy().device())
    if rows is not None:
        metric_state.measure_batch(rows, metric_state.totals)
    return metric_state


def test_metrics_of_processes_meet_as_those_of_batches() -> None:
    rng = np.random.default_rng(0)
    p = (1e8 + 100.0 * rng.normal(size=40)).astype(np.float32)
    t = (p + 30.0 * rng.normal(size=40)).astype(np.float32)
    every: list[HostArray] = []
    for part in (slice(0, 11), slice(11, 12), None):  # the last process has no rows
        team = Processes()
        reduce_metrics(cast("DataParallel", team), measured(None if part is None else (p[part], t[part])), means=False)
        every.append(team.own)
    metric_state = measured((p[12:], t[12:]))
    found = metric_state.values(reduce_metrics(cast("DataParallel", Processes(*every)), metric_state, means=False))
    wide, target = p.astype(np.float64), t.astype(np.float64)
    errors = ((wide - target) ** 2).sum()
    np.testing.assert_allclose(found["mse"], errors / 40, rtol=1e-6)
    np.testing.assert_allclose(found["r2"], 1.0 - errors / ((target - target.mean()) ** 2).sum(), rtol=1e-6)
    np.testing.assert_allclose(found["pearson"], np.corrcoef(wide, target)[0, 1], rtol=1e-6)

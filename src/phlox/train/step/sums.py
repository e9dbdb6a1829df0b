"""Reduce the measurements of all processes, each of its own rows, for reading and saving.

Only engines that do not partition need this; with the others, each process measures the global batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from phlox.backend import Device
from phlox.metrics.base import Rows, State
from phlox.metrics.sums import AnyTensor, Sum
from phlox.module import Param
from phlox.module.param import set_together
from phlox.record import Record
from phlox.tensor import tensor
from phlox.train.step.metric_state import KeptRows, Mean, MetricState, Totals

if TYPE_CHECKING:
    from phlox.train.step.data_parallel import DataParallel

HostArray = np.ndarray[Any, Any]
SHARES = "shares"
"""The name, in a record, of the measurements of each process."""
_ROWS = "rows"


class ReducedMetrics(NamedTuple):
    """The measurements of all processes together, the same in each process."""

    means: dict[str, Mean]
    sums: dict[str, State]
    rows: dict[str, State]
    counts: list[list[int]]
    """By part of `rows`, the number of rows of each process."""


def reduce_metrics(team: DataParallel, local: MetricState, *, means: bool) -> ReducedMetrics:
    """Reduce the measurements of all processes. Call it in all of them.

    Args:
        team: the processes.
        local: the measurements of this process; all steps must have been read.
        means: are the means of this process's rows only? The means of a training are over all rows already.
    """
    own = local.sums()
    parts = [x for state in own.values() for pair in state.values() for x in pair]
    flat = np.concatenate([x.numpy().astype(np.float64).reshape(-1) for x in parts]) if parts else np.zeros(0)
    sums: dict[str, State] = {}
    for numbers in team.gathered(flat) if flat.size else ():
        ends = iter(np.cumsum([x.size for x in parts]).tolist())
        for name, state in own.items():
            process_state = {part: Sum(*[_tensor_ending_at(numbers, next(ends), x, local.device) for x in pair])
                      for part, pair in state.items()}  # fmt: skip
            sums[name] = local.metrics[name].merge(sums.get(name, {}), process_state)
    return ReducedMetrics(_reduce_means(local) if means else dict(local.means), sums, *_gather_rows(team, local))


def _tensor_ending_at(numbers: HostArray, end: int, like: AnyTensor, device: Device) -> AnyTensor:
    """The slice of the numbers that ends at `end`, as a tensor of the shape of `like`."""
    return tensor(numbers[end - like.size : end].reshape(like.shape), device=device)


def _reduce_means(local: MetricState) -> dict[str, Mean]:
    from phlox.distributed import gather_objects

    means: dict[str, Mean] = {}
    for process_means in gather_objects({name: mean.to_plain() for name, mean in local.means.items()}):
        for name, pair in process_means.items():
            before, process_mean = means.get(name, Mean()), Mean.from_plain(pair)
            means[name] = Mean(before.total + process_mean.total, before.weight + process_mean.weight)
    return means


def _gather_rows(team: DataParallel, local: MetricState) -> tuple[dict[str, State], list[list[int]]]:
    """The rows that metrics keep, of one process after the other; and by part, the number of rows of each process."""
    from phlox.distributed import gather_objects

    names = [name for name, metric in local.metrics.items() if metric.gathers]
    if not names:
        return {}, []
    own = {
        (name, part): np.concatenate([np.asarray(chunk) for chunk in rows.chunks])
        for name in names
        for part, rows in local.gathered.get(name, {}).items()
    }
    kinds: dict[tuple[str, str], tuple[str, list[int]]] = {}
    own_layouts: list[Any] = [[*key, array.dtype.str, list(array.shape[1:])] for key, array in own.items()]
    for layouts in gather_objects(own_layouts):
        kinds |= {(name, part): (dtype, shape) for name, part, dtype, shape in layouts}
    states: dict[str, State] = {}
    counts: list[list[int]] = []
    for (name, part), (dtype, shape) in sorted(kinds.items()):
        array = own.get((name, part), np.zeros((0, *shape), dtype))
        all_rows, counts_by_process = team.gathered_rows(array)
        states.setdefault(name, {})[part] = Rows((all_rows,))
        counts.append(counts_by_process)
    return states, counts


# --- records


def record_parts(team: DataParallel, local: MetricState) -> dict[str, Any]:
    """As `MetricState.parts`, for all processes together, with the share of each. Call it in all processes.

    The record has the total of each sum, as with one process, so that any number of processes can resume; and the
    share of each process, so that the same number of processes resumes bit for bit.
    """
    measured = reduce_metrics(team, local, means=False)
    params = [param for params in local.totals.sums.values() for param in params]
    shares: dict[str, Any] = {
        f"sum{number:04}": team.gathered(param.val().numpy()) for number, param in enumerate(params)
    }
    if measured.counts:
        shares[_ROWS] = np.asarray(measured.counts, np.int64)
    totals = Totals(
        {name: [Param(x, trained=False, full_precision=True) for pair in state.values() for x in pair]
         for name, state in measured.sums.items()}
    )  # fmt: skip
    parts = {**local.parts(), "totals": totals, "rows": KeptRows(local, measured.rows)}
    return {**parts, SHARES: Record(shares)} if shares else parts


def load_share(team: DataParallel, local: MetricState, record: Record | None) -> None:
    """Keep this process's share of the loaded totals; if the number of processes differs, process 0 keeps them all."""
    params = [param for params in local.totals.sums.values() for param in params]
    stacks = None if record is None else [record.tensors[path].tensor.read() for path in record if path != _ROWS]
    same = stacks is not None and len(stacks) == len(params) and all(len(stack) == team.size for stack in stacks)
    if same and stacks is not None:
        own = [stack[team.rank] for stack in stacks]
    else:
        own = [param.val().numpy() * (1.0 if team.is_main else 0.0) for param in params]
    set_together([(param, tensor(array, device=param.device)) for param, array in zip(params, own, strict=True)])
    keys = sorted((name, part) for name, state in local.gathered.items() for part in state)
    counts = record.tensors[_ROWS].tensor.read() if record is not None and _ROWS in record.tensors else None
    for number, (name, part) in enumerate(keys):
        array = np.concatenate([np.asarray(chunk) for chunk in local.gathered[name][part].chunks])
        if counts is not None and len(counts) == len(keys) and counts.shape[1] == team.size:
            first = int(counts[number, : team.rank].sum())
            array = array[first : first + int(counts[number, team.rank])]
        elif not team.is_main:
            array = array[:0]
        local.gathered[name][part] = Rows((array,))

"""The measurements of all processes, each of its own rows, combined for reading and saving.

It is needed only for engines that do not partition; others measure the global batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from phlox.backend import Device
from phlox.metrics.base import Rows
from phlox.metrics.base import State as MetricState
from phlox.metrics.sums import AnyTensor, Sum
from phlox.module import Param
from phlox.module.param import set_together
from phlox.record import Record
from phlox.tensor import tensor
from phlox.train.step.meter import KeptRows, Mean, Meter, Totals

if TYPE_CHECKING:
    from phlox.train.step.team import Team

HostArray = np.ndarray[Any, Any]
SHARES = "shares"
"""The name, in a record, of the measurements of each process."""
_ROWS = "rows"


class Together(NamedTuple):
    """The measurements of all processes together, the same in each of them."""

    means: dict[str, Mean]
    sums: dict[str, MetricState]
    rows: dict[str, MetricState]
    counts: list[list[int]]
    """How many rows each process has of each part of these states."""


def together(team: Team, meter: Meter, *, means: bool) -> Together:
    """The measurements of a meter in all processes. Call it in all of them.

    Args:
        team: the processes.
        meter: the meter; all its steps must have been read.
        means: are its means those of this process only? The means of a training are over all rows already.
    """
    own = meter.sums()
    parts = [x for state in own.values() for pair in state.values() for x in pair]
    flat = np.concatenate([x.numpy().astype(np.float64).reshape(-1) for x in parts]) if parts else np.zeros(0)
    sums: dict[str, MetricState] = {}
    for each in team.gathered(flat) if flat.size else ():
        ends = iter(np.cumsum([x.size for x in parts]).tolist())
        for name, state in own.items():
            of_one = {part: Sum(*[_ending(each, next(ends), x, meter.device) for x in pair])
                      for part, pair in state.items()}  # fmt: skip
            sums[name] = meter.metrics[name].merge(sums.get(name, {}), of_one)
    return Together(_means_together(meter) if means else dict(meter.means), sums, *_rows_together(team, meter))


def _ending(numbers: HostArray, end: int, like: AnyTensor, device: Device) -> AnyTensor:
    """The part of these numbers that ends there, as a tensor of the shape of another."""
    return tensor(numbers[end - like.size : end].reshape(like.shape), device=device)


def _means_together(meter: Meter) -> dict[str, Mean]:
    from phlox.distributed import gather_objects

    found: dict[str, Mean] = {}
    for one in gather_objects({name: mean.to_plain() for name, mean in meter.means.items()}):
        for name, pair in one.items():
            before, here = found.get(name, Mean()), Mean.from_plain(pair)
            found[name] = Mean(before.total + here.total, before.weight + here.weight)
    return found


def _rows_together(team: Team, meter: Meter) -> tuple[dict[str, MetricState], list[list[int]]]:
    """The rows that metrics keep, of all processes one after the other; and how many of each, by part."""
    from phlox.distributed import gather_objects

    names = [name for name, metric in meter.metrics.items() if metric.gathers]
    if not names:
        return {}, []
    here = {
        (name, part): np.concatenate([np.asarray(chunk) for chunk in rows.chunks])
        for name in names
        for part, rows in meter.gathered.get(name, {}).items()
    }
    kinds: dict[tuple[str, str], tuple[str, list[int]]] = {}
    told: list[Any] = [[*key, array.dtype.str, list(array.shape[1:])] for key, array in here.items()]
    for each in gather_objects(told):
        kinds |= {(name, part): (dtype, shape) for name, part, dtype, shape in each}
    found: dict[str, MetricState] = {}
    counts: list[list[int]] = []
    for (name, part), (dtype, shape) in sorted(kinds.items()):
        array = here.get((name, part), np.zeros((0, *shape), dtype))
        every, of_each = team.gathered_rows(array)
        found.setdefault(name, {})[part] = Rows((every,))
        counts.append(of_each)
    return found, counts


# --- records


def saved(team: Team, meter: Meter) -> dict[str, Any]:
    """As `Meter.parts`, for all processes together, and besides what each has. All call it.

    Of the sums all processes save the total, as one process does, so that any number of processes goes on from them;
    and their shares, so that the same number goes on bit for bit.
    """
    measured = together(team, meter, means=False)
    params = [param for params in meter.totals.sums.values() for param in params]
    shares: dict[str, Any] = {
        f"sum{number:04}": team.gathered(param.val().numpy()) for number, param in enumerate(params)
    }
    if measured.counts:
        shares[_ROWS] = np.asarray(measured.counts, np.int64)
    totals = Totals(
        {name: [Param(x, trained=False, full_precision=True) for pair in state.values() for x in pair]
         for name, state in measured.sums.items()}
    )  # fmt: skip
    parts = {**meter.parts(), "totals": totals, "rows": KeptRows(meter, measured.rows)}
    return {**parts, SHARES: Record(shares)} if shares else parts


def take_share(team: Team, meter: Meter, record: Record | None) -> None:
    """After the totals of all have been loaded: keep what was this process's, or, of other processes, the first all."""
    params = [param for params in meter.totals.sums.values() for param in params]
    stacks = None if record is None else [record.tensors[path].tensor.read() for path in record if path != _ROWS]
    same = stacks is not None and len(stacks) == len(params) and all(len(stack) == team.size for stack in stacks)
    if same and stacks is not None:
        own = [stack[team.rank] for stack in stacks]
    else:
        own = [param.val().numpy() * (1.0 if team.is_main else 0.0) for param in params]
    set_together([(param, tensor(array, device=param.device)) for param, array in zip(params, own, strict=True)])
    keys = sorted((name, part) for name, state in meter.gathered.items() for part in state)
    counts = record.tensors[_ROWS].tensor.read() if record is not None and _ROWS in record.tensors else None
    for number, (name, part) in enumerate(keys):
        array = np.concatenate([np.asarray(chunk) for chunk in meter.gathered[name][part].chunks])
        if counts is not None and len(counts) == len(keys) and counts.shape[1] == team.size:
            first = int(counts[number, : team.rank].sum())
            array = array[first : first + int(counts[number, team.rank])]
        elif not team.is_main:
            array = array[:0]
        meter.gathered[name][part] = Rows((array,))

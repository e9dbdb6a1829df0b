"""Runs a file where mistakes are likely: at the borders of its open sizes, and with zeros, infinities and NaN."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import zip_longest
from typing import Any, NamedTuple, cast

import numpy as np

from phlox.backend import Device, Float
from phlox.errors import ExportError
from phlox.export.arguments import Arguments
from phlox.export.comparison import Limit, case, differences, outputs_of
from phlox.module import Module
from phlox.transform.abstract import Work, counted
from phlox.transform.summary.evaluate import blank, undisturbed, without_values

Run = Callable[[Sequence[Any]], Sequence[Any]]
"""The outputs of a file for values of its inputs."""

BUDGET = 1 << 33
"""The floating-point operations that the model may take for all comparisons at borders together."""
_CALL = 1 << 22
"""The least cost of a call, in floating-point operations."""


def work_of(model: Module, arguments: Arguments, sizes: Mapping[str, int], device: Device) -> int:
    """The floating-point operations of the model at these sizes, computed without values.

    For a model that needs the values, it is an estimate from the number of elements of the inputs.
    """
    args, kwargs = arguments.filled(lambda entry: blank(entry.spec.with_sizes(sizes).shape, entry.spec.kind, device))
    twin, work = cast("Callable[..., Any]", without_values(model)), Work()
    try:
        with undisturbed(), counted(work):
            twin(*args, **kwargs)
    except Exception:
        return 1000 * max(math.prod(entry.spec.with_sizes(sizes).shape) for entry in arguments.inputs)
    return work.total


@contextmanager
def _quietly() -> Generator[None]:
    """A scope without warnings, which NumPy and PyTorch give for empty axes and for infinities."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


def sizes_at_borders(names: Sequence[str], base: Mapping[str, int], bounds: Iterable[int]) -> list[dict[str, int]]:
    """Sizes that differ from `base` in one axis: small, one less and one more, large, and those around `bounds`.

    >>> sizes_at_borders(["n"], {"n": 7}, [4])
    [{'n': 0}, {'n': 1}, {'n': 2}, {'n': 6}, {'n': 8}, {'n': 500}, {'n': 3}, {'n': 4}, {'n': 5}]
    """
    around = [size for bound in sorted({abs(b) for b in bounds}) for size in (bound - 1, bound, bound + 1)]
    columns = [[0, 1, 2, base[name] - 1, base[name] + 1, 500, *around, *range(3, 6)] for name in names]
    return [
        {**base, name: size}
        for row in zip_longest(*[dict.fromkeys(sizes) for sizes in columns])
        for name, size in zip(names, row, strict=True)
        if size is not None and size >= 0 and size != base[name]
    ]


class BorderReport(NamedTuple):
    """The results of the runs at borders."""

    sizes: list[dict[str, int]]
    """The sizes at which the file and the model agree."""
    refused: dict[str, list[int]]
    """The sizes that the model takes and the file refuses, by axis."""
    remarks: list[str]
    """Other differences between the file and the model."""

    def constraints(self) -> list[str]:
        """The conditions on sizes that the file refuses."""
        conditions: list[str] = []
        for name, sizes in self.refused.items():
            least = min([passed[name] for passed in self.sizes if passed[name] not in sizes], default=math.inf)
            below = max(sizes) < least
            conditions.append(
                f"{name} >= {max(sizes) + 1}" if below else f"{name} is not {', '.join(map(str, sorted(sizes)))}"
            )
        return conditions


def at_borders(
    call: str,
    models: tuple[Module, Device, Module, Device],
    arguments: Arguments,
    outputs: Sequence[str],
    sizes: Sequence[Mapping[str, int]],
    base: Mapping[str, int],
    run: Run,
    limit: Limit,
    most: int,
    assumes: int = 0,
) -> BorderReport:
    """Run the file at these sizes, as many as fit into the budget and `most`, and with special values at `base`.

    `models` are the model in f64, which is the reference, and the model itself, each with its device. Raises
    `ExportError` if the results of file and model differ at one of the sizes; at a size below `assumes`, the report
    gets a remark instead.
    """
    twin, twin_device, model, device = models
    report = BorderReport([], {}, [])
    left = BUDGET
    whole = work_of(model, arguments, base, device)
    for trial in sizes:
        (name,) = [name for name in trial if trial[name] != base[name]]
        work = max(_CALL, whole * trial[name] // max(base[name], 1))
        if work > left or not most:
            continue
        with _quietly():
            try:
                values_and_outputs = case(twin, arguments, trial, twin_device, [])
            except Exception:  # a model may raise any exception at a size that it does not take
                values_and_outputs = None
            if values_and_outputs is None:
                continue
            left, most = left - work, most - 1
            values, expected = values_and_outputs
            try:
                got = run(values)
            except Exception:
                report.refused.setdefault(name, []).append(trial[name])
                continue

            def own_outputs(values: Sequence[Any] = values) -> list[Any]:
                return outputs_of(model, arguments, values, device)

            try:
                differences(call, trial, outputs, expected, got, limit, own_outputs)
            except ExportError as error:
                if trial[name] >= assumes:
                    raise ExportError(f"{error}. With sizes=... only those sizes are tried") from None
                report.remarks.append(f"it is wrong where {name} = {trial[name]}, which PyTorch's exporter rules out")
                continue
        report.sizes.append(dict(trial))
    if left > whole:
        with _quietly():
            report.remarks.extend(_special(arguments, outputs, base, (model, device), run, limit))
    return report


_SPECIAL = {"zeros and infinities": (0.0, math.inf, -math.inf), "NaN": (math.nan,)}


def _special(
    arguments: Arguments,
    outputs: Sequence[str],
    base: Mapping[str, int],
    own: tuple[Module, Device],
    run: Run,
    limit: Limit,
) -> list[str]:
    """Remarks about outputs that differ if some elements of the inputs are special; runtimes differ there."""
    remarks: list[str] = []
    model, device = own
    example = None
    with suppress(Exception):  # the model does not take such values
        example = case(model, arguments, base, device, []) if any(map(_may_be_special, arguments.inputs)) else None
    if example is None:
        return remarks
    for title, values in _SPECIAL.items():
        try:
            planted = [
                _with_special(value, values) if _may_be_special(entry) else value
                for entry, value in zip(arguments.inputs, example[0], strict=True)
            ]
            expected = outputs_of(model, arguments, planted, device)
        except Exception:  # the model does not take such values
            continue
        try:
            got = run(planted)
        except Exception as error:
            remarks.append(
                f"with {title} in its inputs the file fails: {str(error).strip().partition(chr(10))[0][:200]}"
            )
            continue
        for name, want, have in zip(outputs, expected, got, strict=True):
            worst = _first_difference(np.asarray(want), np.asarray(have), limit)
            if worst is not None:
                remarks.append(
                    f"with {title} in its inputs {name} differs from the model, as at {worst}: "
                    f"{float(have[worst]):.6g} and {float(want[worst]):.6g}"
                )
    return remarks


def _may_be_special(entry: Any) -> bool:
    return entry.spec.kind is Float and entry.example is None


def _with_special(values: np.ndarray[Any, Any], special: Sequence[float]) -> np.ndarray[Any, Any]:
    """The values, with a special value in place of every seventh element."""
    flat: np.ndarray[Any, Any] = values.astype(np.float32).reshape(-1)
    indices = np.arange(0, flat.size, 7)
    flat[indices] = np.resize(np.array(special, np.float32), indices.size)
    return flat.reshape(values.shape)


def _first_difference(want: np.ndarray[Any, Any], have: np.ndarray[Any, Any], limit: Limit) -> tuple[int, ...] | None:
    """The first element that differs by more than rounding; NaN and infinities must be the same."""
    if want.shape != have.shape or not want.size:
        return None
    want, have = want.astype(np.float64), have.astype(np.float64)
    largest = np.abs(want[np.isfinite(want)]).max(initial=0.0)
    same = (want == have) | (np.isnan(want) & np.isnan(have))
    same |= np.abs(want - have) <= limit.relative * largest + limit.absolute
    if same.all():
        return None
    return tuple(int(index) for index in np.unravel_index(int(np.argmin(same)), same.shape))

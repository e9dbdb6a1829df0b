"""A file is run where mistakes hide: at the borders of its open sizes, and with zeros, infinities and NaN."""

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
"""What a call costs at least, in floating-point operations."""


def work_of(model: Module, arguments: Arguments, sizes: Mapping[str, int], place: Device) -> int:
    """The floating-point operations of the model at these sizes, computed without values.

    Of a model that needs the values it is a guess, by the elements of its inputs.
    """
    args, kwargs = arguments.filled(lambda one: blank(one.spec.with_sizes(sizes).shape, one.spec.kind, place))
    twin, work = cast("Callable[..., Any]", without_values(model)), Work()
    try:
        with undisturbed(), counted(work):
            twin(*args, **kwargs)
    except Exception:
        return 1000 * max(math.prod(one.spec.with_sizes(sizes).shape) for one in arguments.inputs)
    return work.total


@contextmanager
def _quietly() -> Generator[None]:
    """A scope without warnings: of an empty axis, or of infinities, NumPy and PyTorch have much to say."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


def sizes_at_borders(names: Sequence[str], base: Mapping[str, int], bounds: Iterable[int]) -> list[dict[str, int]]:
    """Sizes that differ from `base` in one axis: few, one less and more than it, many, and those around `bounds`.

    >>> sizes_at_borders(["n"], {"n": 7}, [4])
    [{'n': 0}, {'n': 1}, {'n': 2}, {'n': 6}, {'n': 8}, {'n': 500}, {'n': 3}, {'n': 4}, {'n': 5}]
    """
    around = [size for bound in sorted({abs(one) for one in bounds}) for size in (bound - 1, bound, bound + 1)]
    wanted = [[0, 1, 2, base[name] - 1, base[name] + 1, 500, *around, *range(3, 6)] for name in names]
    return [
        {**base, name: size}
        for row in zip_longest(*[dict.fromkeys(sizes) for sizes in wanted])
        for name, size in zip(names, row, strict=True)
        if size is not None and size >= 0 and size != base[name]
    ]


class Found(NamedTuple):
    """What the runs at borders have found."""

    sizes: list[dict[str, int]]
    """At these sizes the file gives what the model gives."""
    refused: dict[str, list[int]]
    """The sizes that the model takes and the file refuses, by axis."""
    remarks: list[str]
    """What else the file does not do as the model does."""

    def constraints(self) -> list[str]:
        """The conditions on sizes that the file refuses."""
        found: list[str] = []
        for name, sizes in self.refused.items():
            least = min([one[name] for one in self.sizes if one[name] not in sizes], default=math.inf)
            below = max(sizes) < least
            found.append(
                f"{name} >= {max(sizes) + 1}" if below else f"{name} is not {', '.join(map(str, sorted(sizes)))}"
            )
        return found


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
) -> Found:
    """Run the file at these sizes, as many as fit into the budget and `most`, and with special values at `base`.

    `models` are the model in f64, which is the reference, and the model itself, each with its device. Raises
    `ExportError` if the file gives another result than the model at one of the sizes; below `assumes` that is a remark.
    """
    twin, there, model, place = models
    found = Found([], {}, [])
    left = BUDGET
    whole = work_of(model, arguments, base, place)
    for one in sizes:
        (name,) = [name for name in one if one[name] != base[name]]
        work = max(_CALL, whole * one[name] // max(base[name], 1))
        if work > left or not most:
            continue
        with _quietly():
            try:
                taken = case(twin, arguments, one, there, [])
            except Exception:  # a model may raise what it likes at a size that it does not take
                taken = None
            if taken is None:
                continue
            left, most = left - work, most - 1
            values, wanted = taken
            try:
                got = run(values)
            except Exception:
                found.refused.setdefault(name, []).append(one[name])
                continue

            def own(values: Sequence[Any] = values) -> list[Any]:
                return outputs_of(model, arguments, values, place)

            try:
                differences(call, one, outputs, wanted, got, limit, own)
            except ExportError as error:
                if one[name] >= assumes:
                    raise ExportError(f"{error}. With sizes=... no sizes are tried but those") from None
                found.remarks.append(f"it is not right where {name} = {one[name]}, which PyTorch's exporter rules out")
                continue
        found.sizes.append(dict(one))
    if left > whole:
        with _quietly():
            found.remarks.extend(_special(arguments, outputs, base, (model, place), run, limit))
    return found


_SPECIAL = {"zeros and infinities": (0.0, math.inf, -math.inf), "NaN": (math.nan,)}


def _special(
    arguments: Arguments,
    outputs: Sequence[str],
    base: Mapping[str, int],
    own: tuple[Module, Device],
    run: Run,
    limit: Limit,
) -> list[str]:
    """The outputs that differ where some elements of the inputs are special. Runtimes have ways of their own there."""
    remarks: list[str] = []
    model, place = own
    taken = None
    with suppress(Exception):  # the model does not take such values
        taken = case(model, arguments, base, place, []) if any(map(_is_planted, arguments.inputs)) else None
    if taken is None:
        return remarks
    for title, values in _SPECIAL.items():
        try:
            given = [
                _planted(value, values) if _is_planted(one) else value
                for one, value in zip(arguments.inputs, taken[0], strict=True)
            ]
            wanted = outputs_of(model, arguments, given, place)
        except Exception:  # the model does not take such values
            continue
        try:
            got = run(given)
        except Exception as error:
            remarks.append(
                f"with {title} in its inputs the file fails: {str(error).strip().partition(chr(10))[0][:200]}"
            )
            continue
        for name, want, have in zip(outputs, wanted, got, strict=True):
            worst = _unlike(np.asarray(want), np.asarray(have), limit)
            if worst is not None:
                remarks.append(
                    f"with {title} in its inputs {name} differs from the model, as at {worst}: "
                    f"{float(have[worst]):.6g} and {float(want[worst]):.6g}"
                )
    return remarks


def _is_planted(one: Any) -> bool:
    return one.spec.kind is Float and one.example is None


def _planted(values: np.ndarray[Any, Any], special: Sequence[float]) -> np.ndarray[Any, Any]:
    """Every seventh element is a special one."""
    flat: np.ndarray[Any, Any] = values.astype(np.float32).reshape(-1)
    places = np.arange(0, flat.size, 7)
    flat[places] = np.resize(np.array(special, np.float32), places.size)
    return flat.reshape(values.shape)


def _unlike(want: np.ndarray[Any, Any], have: np.ndarray[Any, Any], limit: Limit) -> tuple[int, ...] | None:
    """The first element that differs by more than rounding; NaN and infinities must be the same."""
    if want.shape != have.shape or not want.size:
        return None
    want, have = want.astype(np.float64), have.astype(np.float64)
    largest = np.abs(want[np.isfinite(want)]).max(initial=0.0)
    same = (want == have) | (np.isnan(want) & np.isnan(have))
    same |= np.abs(want - have) <= limit.relative * largest + limit.absolute
    if same.all():
        return None
    return tuple(int(one) for one in np.unravel_index(int(np.argmin(same)), same.shape))

# pyright: standard
"""Compare compiled with eager results: rows of the table on special values, eagerly and in programs of many rows.

    python -m phlox.testing.compiled torch f32 special activation --gradients

compares the named families (by default all) and prints differences. A program may give the eager value, or one that is
equally close to NumPy's in float64. PyTorch's compiler takes about ten seconds per hundred rows.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import ml_dtypes
import numpy as np

import phlox as px
from phlox.backend import Backend, NumPy, load_backend
from phlox.errors import PhloxError
from phlox.host.dtypes import HOST_DTYPES
from phlox.testing.conformance import running
from phlox.testing.conformance.row import Row, Sample

FLOATS = ("f32", "f64", "bf16", "f16")
_TOGETHER = 60
"""The number of rows in one program."""
_ULPS = 24
"""The tolerated difference in units in the last place; 3 for half precision."""

# --- values


def awkward(element: str) -> np.ndarray[Any, Any]:
    """Floats of both signs that are hard for formulas, rounded to a dtype; not a multiple of the SIMD width."""
    info = ml_dtypes.finfo(HOST_DTYPES[element])
    tiny, largest, eps, least = (float(x) for x in (info.tiny, info.max, info.eps, info.smallest_subnormal))
    sizes = [0.0, least, tiny / 4, tiny, tiny * 3, tiny**0.5, tiny**0.5 / 2, eps / 2, eps, 1 - eps / 2, 1.0, 1 + eps]
    sizes += [10.0**-n for n in (30, 20, 12, 8, 7, 6, 5, 4, 3, 2, 1)] + [0.25, 0.3, 0.49999997, 0.5, 0.7, 0.9, 1.1, 1.5]
    sizes += [2.0, 2.5, 3.0, 3.5, 4.0, 5.5, 6.0, 7.0, 8.0, 9.3, 10.0, 12.0, 20.0, 40.0, 41.0, np.pi / 2, np.pi]
    sizes += [87.0, 88.0, 88.72, 89.0, 100.0, 103.0, 104.0, 128.0, 200.0, 255.0, 300.0, 709.0, 709.7, 745.0, 4096.0]
    sizes += [2.0**23 - 1, 2.0**23, 2.0**24, 2.0**31, 2.0**32, 2.0**63, 1e5, 1e10, 1e15, 1e20, 1e25, 1e30, 1e38]
    sizes += [largest**0.5, largest**0.5 * 2, largest / 2, largest * (1 - eps), largest, np.inf, np.nan]
    with np.errstate(all="ignore"):
        return np.asarray(sizes + [-x for x in sizes], HOST_DTYPES[element]).astype(np.float64)


def _few_floats(element: str) -> np.ndarray[Any, Any]:
    """A subset of `awkward`, to form pairs."""
    every = awkward(element)
    return np.concatenate([every[:: max(1, len(every) // 37)], [np.inf, -np.inf, np.nan, 0.0, -0.0, 41.0, 0.1]])


INTS = np.array(
    [1, -1, 2, -2, 3, -3, 5, 7, -7, 10, 31, 32, 33, 63, 64, 100, -100, 255, 46340, 46341, 65536, 2**24 + 1, 2**30,
     2**31 - 2, 2**31 - 1, -(2**31), -(2**31) + 1], np.int32
)  # fmt: skip
"""Integers at the bounds of dtypes; no zero, because of division."""


def _is_elementwise(row: Row, sample: Sample) -> bool:
    """Does the result have one element per element of the arguments?"""
    arrays = [a for a in sample if isinstance(a, np.ndarray)]
    if not arrays or arrays[0].ndim == 0 or arrays[0].size < 2 or any(a.shape != arrays[0].shape for a in arrays):
        return False
    moved = tuple(a.copy() if isinstance(a, np.ndarray) else a for a in sample)
    for a in moved:
        if isinstance(a, np.ndarray):
            a.reshape(-1)[0] = a.reshape(-1)[-1]
    try:
        values = [_value(row.call(*running.tensors(s, NumPy(float="f64")))) for s in (sample, moved)]
    except PhloxError:
        return False
    return all(y is not None and y.shape == arrays[0].shape for y in values) and np.array_equal(
        values[0].reshape(-1)[1:], values[1].reshape(-1)[1:], equal_nan=values[0].dtype.kind == "f"
    )


def _with_special_values(sample: Sample, element: str) -> Sample:
    """Replace a sample's values by special ones: all values, all pairs of a few, or many random triples."""
    kinds = [a.dtype.kind for a in sample if isinstance(a, np.ndarray)]
    all_values: dict[str, Any] = {"f": awkward(element), "i": INTS, "b": np.array([True, False] * 9)}
    few_values: dict[str, Any] = {**all_values, "f": _few_floats(element)}
    if len(kinds) == 1:
        columns: list[Any] = [all_values[kinds[0]]]
    elif len(kinds) == 2:
        columns = [grid.reshape(-1) for grid in np.meshgrid(*(few_values[kind] for kind in kinds), indexing="ij")]
    else:
        columns = [np.random.default_rng(index).choice(few_values[kind], 515) for index, kind in enumerate(kinds)]
    remaining = iter(columns)
    return tuple(next(remaining) if isinstance(a, np.ndarray) else a for a in sample)


def samples(row: Row, element: str) -> Iterator[tuple[Sample, bool]]:
    """The samples of a row, its own and special ones, and whether the row is elementwise on each."""
    full = [s for s in row.samples + row.specials if any(isinstance(a, np.ndarray) and a.size for a in s)]
    elementwise = next((s for s in full if _is_elementwise(row, s)), None)
    if elementwise is not None:
        yield _with_special_values(elementwise, element), True
        return
    for sample in full[:2]:
        yield sample, False
        floats = [i for i, a in enumerate(sample) if isinstance(a, np.ndarray) and a.dtype.kind == "f" and a.ndim]
        for scale in (1e-30, 1e15) if floats else ():
            yield tuple(a * scale if i in floats else a for i, a in enumerate(sample)), False
        for value, step in ((np.nan, 5), (np.inf, 7)) if floats else ():
            spoilt = [a.copy() if i in floats else a for i, a in enumerate(sample)]
            spoilt[floats[0]].reshape(-1)[::step] = value
            yield tuple(spoilt), False


# --- cases


@dataclass(frozen=True, eq=False)
class CompiledCase:
    """A row, or its gradient with respect to an argument, on a sample."""

    row: Row
    sample: Sample
    elementwise: bool
    towards: int | None = None

    def __str__(self) -> str:
        gradient = "" if self.towards is None else f", gradient towards argument {self.towards}"
        return f"{self.row.name}({running.described(self.sample)}){gradient}"

    def call(self, backend: Backend, arguments: list[Any]) -> Any:
        """The result on a backend."""
        if self.towards is None:
            return self.row.call(*arguments)
        tracked = [px.Tensor.from_inner(a) if isinstance(a, px.Tensor) else a for a in arguments]
        leaf = tracked[self.towards] = tracked[self.towards].require_grad()
        y = self.row.call(*tracked)
        g = leaf.grad(y.backward(px.tensor(running.cotangent(y.shape), device=backend)))
        return px.zeros_like(arguments[self.towards]) if g is None else g


def cases(rows: Iterable[Row], element: str, *, gradients: bool = False) -> Iterator[CompiledCase]:
    """The cases of rows at a precision."""
    for row in rows:
        for sample, elementwise in samples(row, element):
            rounded = running.rounded_sample(sample, element)
            if rounded is None:
                continue
            arguments: list[int | None] = list(running.differentiable(row, rounded)) if gradients else [None]
            yield from (CompiledCase(row, rounded, elementwise, argument) for argument in arguments)


def _value(y: Any) -> Any:
    return y.numpy() if isinstance(y, px.Tensor) else None


def _eager(case: CompiledCase, backend: Backend) -> Any:
    """The value, or None if there is an error."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return _value(case.call(backend, running.tensors(case.sample, backend)))
        except Exception:
            return None


def differences(cases: Iterable[CompiledCase], backend: Backend, *, together: int = _TOGETHER) -> Iterator[str]:
    """One line, with an example, for every case whose compiled result differs from the eager one."""
    waiting: list[tuple[CompiledCase, Any]] = []
    for case in cases:
        eager = _eager(case, backend)
        if eager is not None:
            waiting.append((case, eager))
        if len(waiting) == together:
            yield from _compare_all(waiting, backend)
            waiting = []
    if waiting:
        yield from _compare_all(waiting, backend)


def _compare_all(cases: list[tuple[CompiledCase, Any]], backend: Backend) -> Iterator[str]:
    try:
        values = _compiled([case for case, _ in cases], backend)
    except Exception:
        # A program cannot contain a case whose shape depends on values: find it by bisection.
        if len(cases) > 1:
            half = len(cases) // 2
            yield from _compare_all(cases[:half], backend)
            yield from _compare_all(cases[half:], backend)
        return
    for (case, eager), got in zip(cases, values, strict=True):
        yield from _compare(case, eager, got, backend)


def _compiled(cases: list[CompiledCase], backend: Backend) -> list[np.ndarray[Any, Any]]:
    arguments = [running.tensors(case.sample, backend) for case in cases]
    indices = [[index for index, a in enumerate(args) if isinstance(a, px.Tensor)] for args in arguments]

    def program(tensors: list[list[Any]]) -> list[Any]:
        results: list[Any] = []
        for case, args, positions, tensors_of_case in zip(cases, arguments, indices, tensors, strict=True):
            copy = list(args)
            for position, tensor in zip(positions, tensors_of_case, strict=True):
                copy[position] = tensor
            results.append(case.call(backend, copy))
        return results

    inputs = [[args[index] for index in positions] for args, positions in zip(arguments, indices, strict=True)]
    return [y.numpy() for y in px.compile(program)(inputs)]


def _compare(case: CompiledCase, eager: Any, got: Any, backend: Backend) -> Iterator[str]:
    if got.dtype != eager.dtype or got.shape != eager.shape:
        yield f"{case}: {got.dtype} {got.shape}, eagerly {eager.dtype} {eager.shape}"
        return
    exact = _eager(case, NumPy(float="f64"))
    exact = eager if exact is None or exact.shape != eager.shape else exact
    if eager.dtype.kind != "f" and eager.dtype.name != "bfloat16":
        wrong = (got != eager) & (got != exact.astype(got.dtype))
    else:
        wrong = ~(_near(got, eager, case, backend) | _near(got, exact, case, backend))
    for at in [tuple(index) for index in np.argwhere(wrong)][:1]:
        fits = [a[at] if isinstance(a, np.ndarray) and a.shape == eager.shape else "..." for a in case.sample]
        yield (
            f"{case}: {wrong.sum()} of {wrong.size} differ, as of {', '.join(map(str, fits))}: {got[at]}, eagerly "
            f"{eager[at]}, right {exact[at]}"
        )


def _near(got: Any, expected: Any, case: CompiledCase, backend: Backend) -> Any:
    """Where two arrays are equal up to rounding, relative to each element, or to the largest if sums may cancel."""
    info = ml_dtypes.finfo(got.dtype)
    ulps = 3 if backend.float_element in running.HALVES else _ULPS
    with np.errstate(all="ignore"):
        got, expected = got.astype(np.float64), expected.astype(got.dtype).astype(np.float64)
        size = np.abs(expected)
        if not case.elementwise:
            ulps, size = 16 * ulps, np.maximum(size, size[np.isfinite(size)].max(initial=0.0))
        if case.towards is not None:
            size = np.maximum(size, 1.0)  # for formulas such as 1 - x^2 with x near 1
        close = np.abs(got - expected) <= ulps * float(info.eps) * size + 2 * float(info.tiny)
        return close | (got == expected) | (np.isnan(got) & np.isnan(expected))


def main() -> None:
    """Read the command line and compare."""
    from phlox.testing.conformance.rows import FAMILIES

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backend")
    parser.add_argument("element", choices=FLOATS)
    parser.add_argument("families", nargs="*", metavar="family", help=", ".join(FAMILIES))
    parser.add_argument("--gradients", action="store_true", help="compare gradients, not values")
    options = parser.parse_args()
    backend: Backend = cast("Any", load_backend(options.backend))(float=options.element)
    for name in options.families or FAMILIES:
        sys.stdout.write(f"{name}:\n")
        for line in differences(cases(FAMILIES[name], options.element, gradients=options.gradients), backend):
            sys.stdout.write(f"  {line}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()

"""`check_backend`: run the whole conformance suite on a backend."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator
from typing import Literal, NamedTuple, TypeAlias, get_args

from phlox.backend import Autodiff, Backend
from phlox.backend.contract.catalogue import DERIVED, REQUIRED, provision
from phlox.errors import BackendError
from phlox.testing.report import Failure, Report

Part: TypeAlias = Literal[
    "contract", "values", "gradients", "second derivatives", "accumulation", "empty tensors", "draws", "edges"
]
PARTS: tuple[Part, ...] = get_args(Part)
"""The parts of the suite, in order of execution."""


class Case(NamedTuple):
    """One comparison to make."""

    part: Part
    operation: str
    run: Callable[[], None]
    """Raises `AssertionError` if the backend is wrong, `NotCompared` if there is nothing to compare with."""


def check_backend(
    backend: Backend,
    *,
    only: str | None = None,
    parts: Collection[Part] = PARTS,
    raises: bool = True,
    progress: Callable[[Case], None] | None = None,
) -> Report:
    """Run the conformance suite on a backend; raises `AssertionError`, with a summary of all failures, if it is wrong.

    Every operation of the contract is called on a table of samples: plain, on views, and under `Autodiff` with constant
    and tracked arguments. The suite compares:

    - values, shapes, kinds and dtypes, with NumPy and SciPy in float64;
    - gradients, with PyTorch and finite differences, and second derivatives;
    - accumulation of many and of large values, which half precision must do in f32;
    - results for empty tensors;
    - random draws, bit by bit with the reference generator;
    - every line of the edge-case contract.

    Operations that the backend does not support, and comparisons that need a missing library (SciPy, PyTorch), are
    skipped and listed in the report.

    Args:
        backend: the backend to check. It has one float dtype: check each supported dtype separately.
        only: run only cases with this text in their name.
        parts: the parts of the suite to run, from `PARTS`.
        raises: whether to raise for failures; with False the report is returned in any case.
        progress: called before each comparison.

    >>> from phlox.backend import NumPy
    >>> print(check_backend(NumPy(), only="softplus", parts=["values", "gradients"]))
    NumPy(): ... values, ... gradients), none failed.
    Operations: ...
    """
    from phlox.testing.conformance.checks import NotCompared, lacking

    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        raise ValueError(f"check_backend: unknown part {unknown[0]!r}; the parts are {', '.join(PARTS)}")
    report = Report(repr(backend), _provisions(backend))
    for case in cases(backend):
        if case.part not in parts or (only is not None and only not in case.operation):
            continue
        if progress is not None:
            progress(case)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                case.run()
        except NotCompared as reason:
            report.left_out[case.part, str(reason)] += 1
        except Exception as error:
            reason = lacking(error)
            if reason is None:
                text = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
                report.failures.append(Failure(case.part, case.operation, text))
            else:
                report.left_out[case.part, reason] += 1
        else:
            report.passed[case.part] += 1
    if raises:
        report.check()
    return report


def cases(backend: Backend) -> Iterator[Case]:
    """Every comparison of the suite, in order of `PARTS`."""
    from phlox.testing.conformance import accumulation, checks, running
    from phlox.testing.conformance.edges import EDGES, check_edge
    from phlox.testing.conformance.rows import ROWS
    from phlox.testing.conformance.rows.accumulation import ROWS as SUMS

    for name in sorted(REQUIRED):
        yield Case("contract", name, lambda n=name: _check_provided(backend, n))
    half = backend.float_element in running.HALVES
    rows = [row for row in ROWS if row.half or not half]
    for row in rows:
        for n in range(len(row.samples) + len(row.specials)):
            yield Case("values", row.name, lambda r=row, n=n: checks.values(r, backend, n))
    smooth = [(r, n) for r in rows for n, sample in enumerate(r.samples) if running.differentiable(r, sample)]
    for row, n in smooth:
        yield Case("gradients", row.name, lambda r=row, n=n: checks.first_gradients(r, backend, n))
    for row, n in smooth:
        if row.second and n < 2:
            run: Callable[[], None] = lambda r=row, n=n: checks.second_gradients(r, backend, n)  # noqa: E731
            yield Case("second derivatives", row.name, run)
    for sums in SUMS if backend.float_element != "f64" else ():  # f64 is the reference of the others
        yield Case("accumulation", sums.name, lambda r=sums: accumulation.check(r, backend))
    for row in rows:
        yield Case("empty tensors", row.name, lambda r=row: checks.empty_tensors(r, backend))
    for name in checks.DRAWS:
        yield Case("draws", name, lambda n=name: checks.draw(n, backend))
    for edge in EDGES:
        for variant in (backend,) if backend.differentiates else (backend, Autodiff(backend)):
            yield Case("edges", edge.section, lambda e=edge, b=variant: check_edge(e, b))


def _check_provided(backend: Backend, name: str) -> None:
    try:
        getattr(backend, name)
    except BackendError:
        raise AssertionError(f"{name} is required of every backend, and {backend!r} does not have it") from None


def _provisions(backend: Backend) -> dict[str, int]:
    kinds = [provision(backend, name) for name in (*REQUIRED, *DERIVED)]
    return {kind: kinds.count(kind) for kind in ("native", "derived", "unsupported")}

"""The conformance kit on every backend, on `Autodiff` of each, and at each precision.

Serves: phlox/backend/contract/{arithmetic,decompositions,elementwise,indexing,linalg,matrices}.py
Serves: phlox/backend/contract/{reduction,shape,signal,sorting,special}.py, phlox/backend/contract/nn/
Serves: phlox/backend/torch/ops/
Serves: phlox/backend/numpy/{backend,activation,attention,conv,elementwise,linear}.py
Serves: phlox/backend/numpy/{loss,norm,pooling,reduction,sorting,erf,sums}.py
Serves: phlox/backend/torch/{backend,autograd_bridge}.py
Serves: phlox/backend/jax/{backend,attention,conv,elementwise,indexing,linalg,linear,loss}.py
Serves: phlox/backend/jax/{pooling,recurrent,reduction,shape,signal,sorting,fused}.py
Serves: phlox/autodiff/{precision,taping,build}.py, phlox/autodiff/rules/, phlox/tensor/functional/
Serves: phlox/tensor/{activation,arithmetic,at,einsum,fourier,functions,matrixvalues,multiplication}.py
Serves: phlox/tensor/{products,spectrogram}.py, phlox/testing/conformance/rows/
Serves: phlox/testing/conformance/{checks,edges,edges_of_floats,row}.py

`make test` has one row of each name on each engine, `make test-all` all of them.

Where a comparison is dear (XLA compiles each operation for each shape) or says little more (half precision), fewer
samples are taken; `python -m phlox.testing` takes all. A backend of required operations alone is compared by
tests/backend/contract/test_required.py as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

import phlox as px
from phlox.backend import Autodiff, Backend, EngineBackend, Jax, NumPy, Torch
from phlox.errors import PhloxError
from phlox.host.dtypes import FloatElement
from phlox.testing.conformance import checks, running
from phlox.testing.conformance.edges import EDGES, Edge, check_edge
from phlox.testing.conformance.row import Row, Sample
from phlox.testing.conformance.rows import COMPOSITES, ROWS
from tests.backend.plain import Plain


def at(engine: type[EngineBackend], *elements: FloatElement) -> list[Backend]:
    """The engine at those of these precisions that it has."""
    return [engine(float=element) for element in elements if element in engine.floats]


WHOLE: dict[str, list[Backend]] = {
    "NumPy": at(NumPy, "f32", "f64"),
    "Plain": at(Plain, "f64"),
    "Torch": at(Torch, "f32", "f64"),
    "Jax": at(Jax, "f32"),
}
"""Compared on every sample."""
ELSEWHERE = {name: backends for name, backends in WHOLE.items() if name != "Jax"}
HALF: dict[str, list[Backend]] = {"NumPy": at(NumPy, "bf16", "f16"), "Torch": at(Torch, "bf16", "f16")}
"""Compared on the first two."""
BRIEF = at(Jax, "f64", "bf16", "f16")
"""Compared on the first, by value: the first row of each name on one of them, in turn."""
BACKENDS = [backend for family in (WHOLE, HALF) for backends in family.values() for backend in backends] + BRIEF
WHOLE_ONES = [backend for backends in WHOLE.values() for backend in backends]

FIRST = set({str(row).split()[0]: row for row in reversed(ROWS)}.values())
"""The first row of each name."""


def table(rows: list[Row], *families: dict[str, list[Backend]]) -> Any:
    """Parameters: each row with the backends of an engine; all of them in one test, for there are thousands."""
    engines: dict[str, list[Backend]] = {}
    for family in families:
        for name, backends in family.items():
            engines.setdefault(name, []).extend(backends)
    pairs = [(row, backends) for row in rows for backends in engines.values()]
    names = [f"{row}-{name}" for row in rows for name in engines]
    return pytest.mark.parametrize("row, backends", pairs, ids=names)


def each(check: Callable[[Row, Backend, int], None], row: Row, backends: list[Backend], samples: Sequence[int]) -> None:
    """The check on each backend and sample: one error for all that is wrong, a skip if nothing could be compared."""
    wrong: list[str] = []
    left_out: list[str] = []
    made = 0
    for backend in backends:
        if backend.float_element in running.HALVES and not row.half:
            continue
        for n in samples if backend in WHOLE_ONES else samples[:2]:
            try:
                check(row, backend, n)
                made += 1
            except checks.NotCompared as reason:
                left_out.append(str(reason))
            except AssertionError as error:
                wrong.append(f"{backend!r}: {error}")
    assert not wrong, "\n".join(wrong)
    if not made:
        pytest.skip("; ".join(left_out) or "not compared at half precision")


JAX = Jax()


def smooth(row: Row) -> list[int]:
    """The samples that have something to differentiate."""
    return [n for n, sample in enumerate(row.samples) if running.differentiable(row, sample)]


DIFFERENTIABLE = [row for row in ROWS if smooth(row)]


TWICE = [row for row in DIFFERENTIABLE if row.second]


def specials(row: Row) -> range:
    return range(len(row.samples), len(row.samples) + len(row.specials))


@pytest.mark.covering(2)
@table(ROWS, ELSEWHERE, HALF)
def test_value(row: Row, backends: list[Backend]) -> None:
    each(checks.values, row, backends, [*range(len(row.samples)), *specials(row)])


@pytest.mark.full
@pytest.mark.parametrize("row", [row for row in ROWS if row in FIRST], ids=str)
def test_value_on_jax(row: Row) -> None:
    check = partial(checks.values, views=False)  # JAX has arrays of one order only
    each(check, row, [JAX], [*range(min(3, len(row.samples))), *specials(row)])


TOGETHER = 24
FIRSTS, OTHERS = (
    [group[at : at + TOGETHER] for at in range(0, len(group), TOGETHER)]
    for group in ([row for row in ROWS if row in FIRST], [row for row in ROWS if row not in FIRST])
)
PROGRAMS: list[Any] = [
    *[(rows, JAX) for rows in FIRSTS],
    *[
        pytest.param(rows, BRIEF[n % len(BRIEF)], marks=pytest.mark.full if n % 2 else [])
        for n, rows in enumerate(FIRSTS)
    ],
    *[pytest.param(rows, JAX, marks=pytest.mark.full) for rows in OTHERS],
]


def run_together(cases: list[tuple[Row, Sample]], backend: Backend) -> list[tuple[px.Tensor, px.Tensor, Any] | None]:
    """In one program: each row on its sample, plain, on the tape, and its gradients.

    None where only values tell a shape; no gradients of the rows that are not the first of their name.
    """
    arguments = [running.tensors(sample, backend) for _, sample in cases]

    @px.compile
    def program(arguments: list[list[Any]]) -> list[Any]:
        found: list[Any] = []
        for (row, sample), plain in zip(cases, arguments, strict=True):
            tracked = [px.Tensor.from_inner(a) if isinstance(a, px.Tensor) else a for a in plain]
            places = running.differentiable(row, sample)
            for place in places:
                tracked[place] = tracked[place].require_grad()
            try:
                y, taped, gradients = row.call(*plain), row.call(*tracked), None
                if row in FIRST and places and taped.is_require_grad():
                    grads = taped.backward(px.tensor(running.cotangent(taped.shape), device=backend))
                    gradients = [tracked[place].grad(grads) for place in places]
                found.append((y, taped.inner(), gradients))
            except PhloxError:
                found.append(None)
        return found

    return program(arguments)


@pytest.mark.parametrize("rows, backend", PROGRAMS, ids=lambda one: f"from {one[0]}" if isinstance(one, list) else None)
def test_on_jax_in_one_program(rows: list[Row], backend: Backend) -> None:
    """Values and gradients: XLA takes longer for many small programs than for a large one."""
    cases = [(row, n) for row in rows if row.half or backend.float_element not in running.HALVES
             for n in [*range(min(1, len(row.samples))), *specials(row)]]  # fmt: skip
    samples = [running.rounded_sample(running.sample_at(row, n), backend.float_element) for row, n in cases]
    held = [(row, n, sample) for (row, n), sample in zip(cases, samples, strict=True) if sample is not None]
    found = run_together([(row, sample) for row, _, sample in held], backend)
    wrong: list[str] = []
    for (row, n, sample), results in zip(held, found, strict=True):
        try:
            if results is None:
                each(partial(checks.values, views=False), row, [backend], [n])
                continue
            wanted = running.reference_at(row, n, running.key(row, n, backend.float_element))
            for y, way in zip(results, ("", ", on the tape"), strict=False):
                checks.check_value(row, y, wanted, f"{row.name}, sample {n}{way}")
            if results[2] is not None and n < len(row.samples):
                got = running.as_arrays(row, sample, backend, results[2])
                checks.first_gradients(row, backend, n, got)
        except AssertionError as error:
            wrong.append(f"{backend!r}: {error}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.full
@pytest.mark.parametrize("row", [row for row in ROWS if row in FIRST], ids=str)
def test_value_in_brief(row: Row) -> None:
    each(checks.value, row, [BRIEF[ROWS.index(row) % len(BRIEF)]], [0])


@pytest.mark.covering(2)
@table(DIFFERENTIABLE, ELSEWHERE, HALF)
def test_gradient(row: Row, backends: list[Backend]) -> None:
    each(checks.first_gradients, row, backends, smooth(row))


@pytest.mark.full
@table([row for row in DIFFERENTIABLE if row in FIRST], {"Jax": at(Jax, "f32")})
def test_gradient_on_jax(row: Row, backends: list[Backend]) -> None:
    each(checks.first_gradients, row, backends, smooth(row)[:2])


@pytest.mark.covering(1)
@table(TWICE, {"NumPy": at(NumPy, "f64")})
def test_second_derivative(row: Row, backends: list[Backend]) -> None:
    each(checks.second_gradients, row, backends, smooth(row)[:2])


@pytest.mark.covering(1)
@table([row for row in TWICE if row in COMPOSITES], {"Torch": at(Torch, "f64")})
def test_second_derivative_of_composites(row: Row, backends: list[Backend]) -> None:
    each(checks.second_gradients, row, backends, smooth(row)[:1])


@pytest.mark.covering(2)
@table(ROWS, ELSEWHERE)
def test_empty_tensors(row: Row, backends: list[Backend]) -> None:
    each(lambda row, backend, n: checks.empty_tensors(row, backend), row, backends, [0])


@pytest.mark.full
@pytest.mark.parametrize("row", [row for row in ROWS if row in FIRST], ids=str)
def test_empty_tensors_on_jax(row: Row) -> None:
    checks.empty_tensors(row, JAX)


@pytest.mark.covering(2)
@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
@pytest.mark.parametrize("name", checks.DRAWS)
def test_draws(name: str, backend: Backend) -> None:
    checks.draw(name, backend)


AUTODIFF = [Autodiff(backend) for backend in WHOLE_ONES]


@pytest.mark.covering(2)
@pytest.mark.parametrize("backend", BACKENDS + AUTODIFF, ids=repr)
@pytest.mark.parametrize("edge", EDGES, ids=lambda edge: edge.statement[:60])
def test_edge_cases(edge: Edge, backend: Backend) -> None:
    try:
        check_edge(edge, backend)
    except checks.NotCompared as reason:
        pytest.skip(str(reason))

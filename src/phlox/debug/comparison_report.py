"""`Comparison`: how far each layer of a model is from the same layer on another engine, as text, page and rows."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np

from phlox.debug.recordings import Host, Recorded, Recording
from phlox.errors import ModuleError
from phlox.host.html import document
from phlox.host.page import Cell, Line, Page, Part, Table
from phlox.host.text import Report, count, listed

Kind: TypeAlias = Literal["value", "gradient", "parameter"]
Measure: TypeAlias = Literal["relative", "absolute", "cosine"]

_SHOWN = 12
"""The number of gradients of parameters that the text shows; the page and `rows` have all of them."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of one tensor from the reference's."""

    kind: Kind
    """A layer's result, the gradient of the loss towards that result, or towards a parameter."""
    path: str
    """The path of the layer or the parameter; the empty string is the model itself."""
    layer: str
    """The class of the layer."""
    call: int
    """The index of the layer's call, from zero."""
    output: int
    """The index of the result, if the call has several."""
    backend: str
    """The label of the engine, module or file that is compared."""
    shape: tuple[int, ...]
    absolute: float
    """The largest difference of an element; infinite if shapes differ, or if only one of two elements is finite."""
    relative: float
    """The absolute difference over the largest magnitude of the reference in the tensor (for parameters, the layer)."""
    cosine: float
    """The cosine of the angle between both tensors as vectors; 1 if they point in the same direction."""
    note: str = ""
    """A remark, if shapes or finite elements differ."""

    def by(self, measure: Measure) -> float:
        """The difference by one of the measures; for the cosine, 1 - cosine."""
        return 1.0 - self.cosine if measure == "cosine" else getattr(self, measure)

    def __str__(self) -> str:
        subject = {"value": "the value of", "gradient": "the gradient at", "parameter": "the gradient of"}[self.kind]
        name = f"`{self.path}`" if self.path else "the model"
        call = f" (call {self.call + 1})" if self.call else ""
        note = f"; {self.note}" if self.note else ""
        return (
            f"{subject} {name}{call}, {self.layer}, on {self.backend}: largest difference {self.absolute:.3g}, "
            f"relative {self.relative:.3g}, cosine {self.cosine:.6f}{note}"
        )


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(Report):
    """The result of `compare`: print it, show it in a notebook, or write it with `to_html`."""

    reference: str
    """The label of the reference."""
    backends: tuple[str, ...]
    """The labels of the backends that are compared with it."""
    rows: list[Difference]
    """The values in the order in which layers return, the gradients in backward order, then those of parameters."""
    tolerance: float
    """The largest accepted difference, relative to the largest magnitude of a layer."""
    missing: dict[str, tuple[str, ...]] = field(default_factory=dict[str, "tuple[str, ...]"])
    """By backend, the layers of the reference that it does not have."""
    losses: dict[str, float] = field(default_factory=dict[str, float])
    """The loss on each backend, if `compare` was given one."""

    def beyond(
        self, tolerance: float | None = None, *, measure: Measure = "relative", backend: str | None = None
    ) -> Iterator[Difference]:
        """The rows whose difference is larger than a tolerance (by default that of the comparison), in order."""
        bound = self.tolerance if tolerance is None else tolerance
        if backend is not None and backend not in self.backends:
            raise ModuleError(f"compare: there is no {backend!r} in it; there are {', '.join(self.backends)}")
        for row in self.rows:
            if (backend is None or row.backend == backend) and not row.by(measure) <= bound:
                yield row

    def first_beyond(
        self, tolerance: float | None = None, *, measure: Measure = "relative", backend: str | None = None
    ) -> Difference | None:
        """The first row beyond the tolerance, where the results begin to differ; None if there is none."""
        return next(self.beyond(tolerance, measure=measure, backend=backend), None)

    @property
    def ok(self) -> bool:
        """Are all differences within the tolerance?"""
        return self.first_beyond() is None

    def _page(self, most: int | None = None) -> Page:
        """`most`: the number of gradients of parameters to show for each engine, those that differ most."""
        parts: list[Part] = []
        for backend in self.backends:
            rows = self._parameters(backend)
            heads = ["gradient of the parameter", "shape", "largest", "relative", "cosine"]
            gradients = Page(
                f"gradients of {count(len(rows), 'parameter')}, the largest difference first",
                parts=[Table(heads, rows, 2, most)],
                is_open=len(rows) <= _SHOWN,
            )
            kind = "within" if self.first_beyond(backend=backend) is None else "beyond"
            verdict = Line(self._verdict(backend), kind)
            inner = [self._table(backend), gradients, *self._remarks(backend), verdict]
            parts.append(Page(f"{backend} against {self.reference}", parts=inner, is_open=True))
        return Page("", parts=parts)

    def __str__(self) -> str:
        return self._page(_SHOWN).text()

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """Write the comparison as one self-contained HTML file, for light and dark screens; returns its text."""
        return document(f"{', '.join(self.backends)} against {self.reference}", self._page(), path)

    # --- the tables

    def _verdict(self, backend: str) -> str:
        first = self.first_beyond(backend=backend)
        if first is None:
            return f"all within {self.tolerance:g}, relative to the largest magnitude of each layer"
        return f"first beyond {self.tolerance:g}: {first}"

    def _layers(self, backend: str) -> list[tuple[Difference, Difference | None]]:
        """The value and the gradient of each call, for the result that differs most."""
        by_call: dict[tuple[str, int], list[Difference | None]] = {}
        for row in self.rows:
            if row.backend != backend or row.kind == "parameter":
                continue
            pair = by_call.setdefault((row.path, row.call), [None, None])
            index = int(row.kind == "gradient")
            row_so_far = pair[index]
            if row_so_far is None or row.relative > row_so_far.relative:
                pair[index] = row
        return [(value, gradient) for value, gradient in by_call.values() if value is not None]

    def _cells(self, row: Difference | None) -> list[Cell]:
        if row is None:
            return [Cell("")] * 3
        shade = _shade(row.relative, self.tolerance)
        return [
            Cell(f"{row.absolute:.2e}", title=row.note),
            Cell(f"{row.relative:.2e}", shade=shade),
            Cell(f"{row.cosine:.6f}"),
        ]

    def _table(self, backend: str) -> Table:
        rows: list[list[str | Cell]] = []
        for value, gradient in self._layers(backend):
            name = (value.path or "(the model)") + (f" #{value.call + 1}" if value.call else "")
            first = [Cell(name, code=True), value.layer, _shape(value.shape)]
            rows.append([*first, *self._cells(value), *self._cells(gradient)])
        heads = ["layer", "class", "shape", "value: largest", "relative", "cosine"]
        return Table([*heads, "gradient: largest", "relative", "cosine"], rows, 3, spare=(8, 5, 1))

    def _parameters(self, backend: str) -> list[list[str | Cell]]:
        rows = [row for row in self.rows if row.backend == backend and row.kind == "parameter"]
        rows.sort(key=lambda row: -row.relative)
        return [[Cell(row.path, code=True), _shape(row.shape), *self._cells(row)] for row in rows]

    def _remarks(self, backend: str) -> list[str]:
        lines = [f"loss: {self.losses[self.reference]:.8g} and {self.losses[backend]:.8g}"] if (
            backend in self.losses and self.reference in self.losses
        ) else []  # fmt: skip
        missing = self.missing.get(backend, ())
        if missing:
            lines.append(f"without a counterpart: {listed([path or '(the model)' for path in missing], 8)}")
        return lines


def _shape(shape: Sequence[int]) -> str:
    return str(tuple(shape))


def _shade(relative: float, tolerance: float) -> float:
    """The strength of a mark, from 0 for a hundredth of the tolerance to 1 for a hundred times the tolerance."""
    if not relative > 0.0:
        return 0.0
    if not np.isfinite(relative) or tolerance <= 0.0:
        return 1.0
    return float(np.clip((np.log10(relative / tolerance) + 2.0) / 4.0, 0.0, 1.0))


# --- from two recordings to rows


def differences(reference: Recording, other: Recording) -> tuple[list[Difference], list[Difference], list[str]]:
    """Rows of values, rows of gradients in the order of their arrival, and the layers that `other` lacks."""
    other_calls = {(c.path, c.call): c for c in other.calls}
    values: list[Difference] = []
    gradients: list[tuple[int, Difference]] = []
    missing: dict[str, None] = {}
    for call in reference.calls:
        other_call = other_calls.get((call.path, call.call))
        if other_call is None or (call.values and not other_call.values):
            missing[call.path] = None
            continue
        for index, value in enumerate(call.values):
            if index >= len(other_call.values):
                continue
            values.append(_difference("value", call, index, other.label, value, other_call.values[index]))
            gradient = call.gradients[index]
            other_gradient = other_call.gradients[index]
            if gradient is not None and other_gradient is not None:
                row = _difference("gradient", call, index, other.label, gradient, other_gradient)
                gradients.append((call.arrived[index], row))
    rows = [row for _, row in sorted(gradients, key=lambda pair: pair[0])]
    return values, [*rows, *_of_parameters(reference, other)], list(missing)


def _of_parameters(reference: Recording, other: Recording) -> Iterator[Difference]:
    classes = {c.path: c.layer for c in reference.calls}
    scales: dict[str, float] = {}
    for path, gradient in reference.parameters.items():
        layer = path.rpartition(".")[0]
        scales[layer] = max(scales.get(layer, 0.0), _magnitude(gradient))
    for path, gradient in reference.parameters.items():
        other_gradient = other.parameters.get(path)
        if other_gradient is not None:
            layer = path.rpartition(".")[0]
            call = Recorded(path, 0, classes.get(layer, ""), [])
            yield _difference("parameter", call, 0, other.label, gradient, other_gradient, scales[layer])


def _magnitude(x: Host) -> float:
    wide = np.asarray(x, np.float64)
    finite = np.abs(wide[np.isfinite(wide)])
    return float(finite.max()) if finite.size else 0.0


def _difference(
    kind: Kind, call: Recorded, output: int, backend: str, expected: Host, actual: Host, scale: float | None = None
) -> Difference:
    a, b = np.asarray(expected, np.float64), np.asarray(actual, np.float64)
    where = (kind, call.path, call.layer, call.call, output, backend, a.shape)
    if a.size != b.size:
        return Difference(*where, np.inf, np.inf, 0.0, f"the shapes are {a.shape} and {b.shape}")
    notes = [] if a.shape == b.shape else [f"the shapes are {a.shape} and {b.shape}"]
    a, b = a.reshape(-1), b.reshape(-1)
    alike = (a == b) | (np.isnan(a) & np.isnan(b))  # the same infinity, or NaN in both
    bad = ~alike & ~(np.isfinite(a) & np.isfinite(b))
    if bad.any():
        notes.append(f"{np.count_nonzero(bad)} elements are finite in only one of them")
    with np.errstate(invalid="ignore"):
        absolute = np.inf if bad.any() else float(np.abs(np.where(alike, 0.0, a - b)).max(initial=0.0))
    magnitude = _magnitude(a) if scale is None else scale
    relative = absolute / magnitude if magnitude else (0.0 if absolute == 0.0 else np.inf)
    finite = np.isfinite(a) & np.isfinite(b)
    return Difference(*where, absolute, float(relative), _cosine(a[finite], b[finite]), "; ".join(notes))


def _cosine(a: Host, b: Host) -> float:
    largest = max(_magnitude(a), _magnitude(b))
    if not largest:
        return 1.0
    a, b = a / largest, b / largest  # so squares of small values do not underflow
    norms = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(np.clip(np.dot(a, b) / norms, -1.0, 1.0)) if norms else 0.0

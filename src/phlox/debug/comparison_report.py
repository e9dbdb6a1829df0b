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
        what = {"value": "the value of", "gradient": "the gradient at", "parameter": "the gradient of"}[self.kind]
        name = f"`{self.path}`" if self.path else "the model"
        call = f" (call {self.call + 1})" if self.call else ""
        note = f"; {self.note}" if self.note else ""
        return (
            f"{what} {name}{call}, {self.layer}, on {self.backend}: largest difference {self.absolute:.3g}, "
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
        """`most`: of each engine at most so many gradients of parameters, those that differ most."""
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
        """The value and the gradient of each call, each of the result that differs most."""
        found: dict[tuple[str, int], list[Difference | None]] = {}
        for row in self.rows:
            if row.backend != backend or row.kind == "parameter":
                continue
            pair = found.setdefault((row.path, row.call), [None, None])
            place = int(row.kind == "gradient")
            known = pair[place]
            if known is None or row.relative > known.relative:
                pair[place] = row
        return [(value, gradient) for value, gradient in found.values() if value is not None]

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
        those = [row for row in self.rows if row.backend == backend and row.kind == "parameter"]
        those.sort(key=lambda row: -row.relative)
        return [[Cell(row.path, code=True), _shape(row.shape), *self._cells(row)] for row in those]

    def _remarks(self, backend: str) -> list[str]:
        found = [f"loss: {self.losses[self.reference]:.8g} and {self.losses[backend]:.8g}"] if (
            backend in self.losses and self.reference in self.losses
        ) else []  # fmt: skip
        gone = self.missing.get(backend, ())
        if gone:
            found.append(f"without a counterpart: {listed([path or '(the model)' for path in gone], 8)}")
        return found


def _shape(shape: Sequence[int]) -> str:
    return str(tuple(shape))


def _shade(relative: float, tolerance: float) -> float:
    """How strongly a difference is marked, from 0 at a hundredth of the tolerance to 1 at a hundred times it."""
    if not relative > 0.0:
        return 0.0
    if not np.isfinite(relative) or tolerance <= 0.0:
        return 1.0
    return float(np.clip((np.log10(relative / tolerance) + 2.0) / 4.0, 0.0, 1.0))


# --- from two recordings to rows


def differences(reference: Recording, other: Recording) -> tuple[list[Difference], list[Difference], list[str]]:
    """Rows of values, rows of gradients in the order in which they come, and the layers that the other has not."""
    theirs = {(one.path, one.call): one for one in other.calls}
    values: list[Difference] = []
    gradients: list[tuple[int, Difference]] = []
    missing: dict[str, None] = {}
    for mine in reference.calls:
        found = theirs.get((mine.path, mine.call))
        if found is None or (mine.values and not found.values):
            missing[mine.path] = None
            continue
        for place, one in enumerate(mine.values):
            if place >= len(found.values):
                continue
            values.append(_difference("value", mine, place, other.label, one, found.values[place]))
            gradient = mine.gradients[place]
            its = found.gradients[place]
            if gradient is not None and its is not None:
                row = _difference("gradient", mine, place, other.label, gradient, its)
                gradients.append((mine.arrived[place], row))
    rows = [row for _, row in sorted(gradients, key=lambda pair: pair[0])]
    return values, [*rows, *_of_parameters(reference, other)], list(missing)


def _of_parameters(reference: Recording, other: Recording) -> Iterator[Difference]:
    classes = {one.path: one.layer for one in reference.calls}
    scales: dict[str, float] = {}
    for path, gradient in reference.parameters.items():
        layer = path.rpartition(".")[0]
        scales[layer] = max(scales.get(layer, 0.0), _magnitude(gradient))
    for path, gradient in reference.parameters.items():
        its = other.parameters.get(path)
        if its is not None:
            layer = path.rpartition(".")[0]
            call = Recorded(path, 0, classes.get(layer, ""), [])
            yield _difference("parameter", call, 0, other.label, gradient, its, scales[layer])


def _magnitude(x: Host) -> float:
    wide = np.asarray(x, np.float64)
    finite = np.abs(wide[np.isfinite(wide)])
    return float(finite.max()) if finite.size else 0.0


def _difference(
    kind: Kind, call: Recorded, output: int, backend: str, mine: Host, its: Host, scale: float | None = None
) -> Difference:
    one, other = np.asarray(mine, np.float64), np.asarray(its, np.float64)
    place = (kind, call.path, call.layer, call.call, output, backend, one.shape)
    if one.size != other.size:
        return Difference(*place, np.inf, np.inf, 0.0, f"the shapes are {one.shape} and {other.shape}")
    notes = [] if one.shape == other.shape else [f"the shapes are {one.shape} and {other.shape}"]
    one, other = one.reshape(-1), other.reshape(-1)
    alike = (one == other) | (np.isnan(one) & np.isnan(other))  # the same infinity, or NaN in both
    bad = ~alike & ~(np.isfinite(one) & np.isfinite(other))
    if bad.any():
        notes.append(f"{np.count_nonzero(bad)} elements are finite in one alone")
    with np.errstate(invalid="ignore"):
        absolute = np.inf if bad.any() else float(np.abs(np.where(alike, 0.0, one - other)).max(initial=0.0))
    magnitude = _magnitude(one) if scale is None else scale
    relative = absolute / magnitude if magnitude else (0.0 if absolute == 0.0 else np.inf)
    finite = np.isfinite(one) & np.isfinite(other)
    return Difference(*place, absolute, float(relative), _cosine(one[finite], other[finite]), "; ".join(notes))


def _cosine(one: Host, other: Host) -> float:
    largest = max(_magnitude(one), _magnitude(other))
    if not largest:
        return 1.0
    one, other = one / largest, other / largest  # squares of what is small do not vanish
    norms = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(np.clip(np.dot(one, other) / norms, -1.0, 1.0)) if norms else 0.0

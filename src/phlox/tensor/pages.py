"""Tensors in notebooks: shape and kind, a shortened table of values, statistics, a plot.

At most a few megabytes of a tensor are read, however large it is; nothing is read if its values are not known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from phlox.backend import Bool, Float
from phlox.backend.contract.backend import engine_of
from phlox.host.page import Cell, Page, Part, Raw, Row, Table, facts
from phlox.host.png import heat_map, image, png
from phlox.host.text import size
from phlox.tensor.tensor import DONATED, Gradients, Tensor, element_of, state_of

READ = 1 << 22
"""A tensor of more elements is not read as a whole: the table shows its corners, and the statistics use a sample."""
_SAMPLE = 1 << 16
_WHOLE, _EDGE = 8, 4
"""The longest axis that is shown whole, and the number of indices at each end of a longer one."""
_LEAST_PLOT = 8
"""The least number of rows and columns of a plot."""
_MEASURED = 8
"""Statistics are shown for tensors of more elements than this."""

AnyTensor = Tensor[Any, Any, Any]
Host = np.ndarray[Any, Any]


def page_of_gradients(gradients: Gradients) -> Page:
    """The gradients of a backward pass."""
    backend = gradients.backend.inner
    rows: list[list[str]] = []
    for gradient in gradients.found.values():
        tensor = Tensor.from_primitive(gradient, backend, Float)  # pyright: ignore[reportArgumentType]
        rows.append([shape_text(tensor.shape), size(nbytes(tensor))])
    remarks = [f"of {len(gradients)} leaves", repr(gradients.backend)]
    return Page("Gradients", remarks, [Table(["shape", "bytes"], rows, most=50)])


def page_of_tensor(tensor: AnyTensor, *, name: str = "Tensor", badges: Sequence[tuple[str, str]] = ()) -> Page:
    """A tensor, and its values if they are known."""
    backend, primitive = tensor.backend, tensor.primitive
    state = state_of(backend, primitive)
    if state == DONATED:
        return Page(name, [kind_text(tensor)], badges=[*badges, (state, "bad")])
    marks = [*badges]
    if tensor.is_require_grad():
        marks.append(("requires grad", ""))
    if state:
        marks.append((state.partition(";")[0], ""))
    said = [kind_text(tensor), shape_text(tensor.shape), str(tensor.device), size(nbytes(tensor))]
    return Page(name, said, [] if state else [_values(tensor)], marks)


def kind_text(tensor: AnyTensor) -> str:
    """The kind, and the element type unless Bool: `Float f32`."""
    kind = tensor.kind
    return kind.__name__ if kind is Bool else f"{kind.__name__} {element_of(tensor.backend, kind)}"


def shape_text(shape: Sequence[int]) -> str:
    """The sizes: `(3, 4)`."""
    return f"({', '.join(map(str, shape))}{',' * (len(shape) == 1)})"


def nbytes(tensor: AnyTensor) -> int:
    """The bytes of its elements."""
    return math.prod(tensor.shape) * tensor.backend.host_dtype(tensor.kind).itemsize


# --- reading


class _Source:
    """Reads a tensor: all of it, once, or parts."""

    def __init__(self, tensor: AnyTensor) -> None:
        engine = engine_of(tensor.backend)
        self.shape = tensor.shape
        # Without tapes, which would record the slices.
        self._plain = Tensor.from_primitive(tensor.backend.strip(tensor.primitive), engine, tensor.kind)
        self.is_whole = math.prod(self.shape) <= READ
        self._host = _to_f32(self._plain.numpy()) if self.is_whole else None
        # A slice would be an operation of the program that is being traced.
        self.is_readable = self.is_whole or not engine.is_tracing()

    def read(self, *index: Any) -> Host:
        """Read a part of the tensor."""
        if self._host is not None:
            return self._host[index]
        return _to_f32(self._plain[index].numpy())

    def sample(self) -> Host:
        """All elements; if there are many, a sample that is evenly spread."""
        if self._host is not None:
            return self._host
        strides = [1] * len(self.shape)
        while math.prod(-(-n // s) for n, s in zip(self.shape, strides, strict=True)) > _SAMPLE:
            longest = max(range(len(strides)), key=lambda axis: self.shape[axis] / strides[axis])
            strides[longest] *= 2
        return self.read(*(slice(0, n, s) for n, s in zip(self.shape, strides, strict=True)))


def _to_f32(host: Host) -> Host:
    """Half precision as f32, which NumPy computes with."""
    return host.astype(np.float32) if host.dtype.kind not in "biu" and host.dtype.itemsize < 4 else host


def _values(tensor: AnyTensor) -> Part:
    """The table, the statistics and the plot of a tensor whose values are known."""
    shape = tensor.shape
    if 0 in shape:
        return "no elements"
    try:
        source = _Source(tensor)
        if not source.is_readable:
            return "values are not read while a function is traced"
        measured = _statistics(source) if math.prod(shape) > _MEASURED else ""
        return Row([Page("", parts=_table(source)), measured, _plot(source)])
    except Exception as error:  # an engine may fail in a state that Phlox does not know
        return f"values cannot be read here: {error}"


# --- what is shown


class _Ticks(NamedTuple):
    """The indices of an axis in the table; None is the gap in the middle."""

    slices: list[slice]
    labels: list[int | None]


def _ticks(count: int) -> _Ticks:
    if count <= _WHOLE:
        return _Ticks([slice(0, count)], list(range(count)))
    last = count - _EDGE
    return _Ticks([slice(0, _EDGE), slice(last, count)], [*range(_EDGE), None, *range(last, count)])


def _table(source: _Source) -> list[Part]:
    shape = source.shape
    if not shape:
        return [Table([""], [[Cell(_precise(source.read()[()]), code=True)]])]
    lead = (0,) * (len(shape) - 2)
    down, across = (_Ticks([slice(0, 1)], [0]) if len(shape) == 1 else _ticks(shape[-2])), _ticks(shape[-1])
    rows: list[list[Cell]] = []
    for part in down.slices:
        row_index = () if len(shape) == 1 else (part,)
        blocks = [np.atleast_2d(source.read(*lead, *row_index, columns)) for columns in across.slices]
        for line in zip(*blocks, strict=True):
            cells = [[_cell(value) for value in block] for block in line]
            rows.append([*cells[0], *([Cell("…", kind="soft"), *cells[1]] if len(cells) > 1 else [])])
    if None in down.labels:
        rows.insert(_EDGE, [Cell("⋮", kind="soft")] * len(across.labels))
    if len(shape) > 1:
        names = ["⋮" if label is None else str(label) for label in down.labels]
        rows = [[Cell(name, kind="soft"), *row] for name, row in zip(names, rows, strict=True)]
    heads = [*[""] * (len(shape) > 1), *["…" if label is None else str(label) for label in across.labels]]
    where = f"[{', '.join(map(str, lead))}, :, :]" if lead else ""
    return [where, Table(heads, rows, 0)]


def _cell(value: Any) -> Cell:
    text = text_of(value)
    return Cell(text, kind="bad" if text in ("nan", "inf", "-inf") else "")


def text_of(value: Any) -> str:
    """An element in four digits."""
    return f"{value:.4g}" if isinstance(value, (float, np.floating)) else str(value)


def _precise(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, (float, np.floating)) else str(value)


def _statistics(source: _Source) -> Page:
    sample = source.sample()
    total = math.prod(source.shape)
    note = "" if source.is_whole else f"of a sample of {sample.size:,} of {total:,} elements"
    if sample.dtype == np.bool_:
        return Page("", parts=[facts([("true", f"{np.count_nonzero(sample) / sample.size:.1%}")]), note])
    pairs = [(name, Cell(text, kind="bad" if name in ("NaN", "infinite") else "")) for name, text in summary_of(sample)]
    return Page("", parts=[facts(pairs), note])


def summary_of(elements: Host) -> list[tuple[str, str]]:
    """Minimum, maximum, mean and standard deviation of the finite elements; how many are zero, NaN or infinite."""
    finite = elements[np.isfinite(elements)] if elements.dtype.kind == "f" else elements
    rows: list[tuple[str, str]] = []
    if finite.size:
        with np.errstate(over="ignore", invalid="ignore"):
            mean, spread = finite.mean(dtype=np.float64), finite.std(dtype=np.float64)
        rows += [("min", _precise(finite.min())), ("max", _precise(finite.max()))]
        rows += [("mean", _precise(mean)), ("std", _precise(spread))]
        zeros = int(finite.size - np.count_nonzero(finite))
        rows += [("zeros", f"{zeros / elements.size:.1%}")] if zeros else []
    nan = int(np.count_nonzero(np.isnan(elements))) if elements.dtype.kind == "f" else 0
    infinite = elements.size - finite.size - nan
    rows += [("NaN", f"{nan:,} of {elements.size:,}")] if nan else []
    rows += [("infinite", f"{infinite:,} of {elements.size:,}")] if infinite else []
    return rows


def _plot(source: _Source) -> Raw:
    shape = source.shape
    if len(shape) < 2 or min(shape[-2:]) < _LEAST_PLOT:
        return _image(source)
    lead = (0,) * (len(shape) - 2)
    steps = [-(-length // 64) for length in shape[-2:]]
    matrix = source.read(*lead, *(slice(0, n, s) for n, s in zip(shape[-2:], steps, strict=True)))
    if len(shape) == 3 and (figure := _image(source)).html:
        return figure
    every = "" if steps == [1, 1] else f", every {steps[0]} × {steps[1]}"
    where = f"[{', '.join(map(str, lead))}, :, :]" if lead else "values"
    height, width = _screen(*matrix.shape)
    shown = image(heat_map(matrix), width, height, "a heat map of the values")
    return Raw(f"<figure>{shown}<figcaption>{where}{every}; blue above zero, orange below</figcaption></figure>")


def _image(source: _Source) -> Raw:
    """A tensor [H, W, C] or [C, H, W] as an image, if it has 3 or 4 channels and values in the range of pixels."""
    shape = source.shape
    if len(shape) != 3 or not source.is_whole:
        return Raw("")
    sides = shape[:2] if shape[2] in (3, 4) else shape[1:] if shape[0] in (3, 4) else ()
    if len(sides) != 2 or min(sides) < _LEAST_PLOT:
        return Raw("")
    array = source.read()
    if array.dtype == np.bool_ or not (array.min() >= 0 and array.max() <= (1.0 if array.dtype.kind == "f" else 255)):
        return Raw("")
    height, width = _screen(*sides)
    shown = image(png(array), width, height, "the tensor as an image")
    return Raw(f"<figure>{shown}<figcaption>as an image</figcaption></figure>")


def _screen(rows: int, columns: int) -> tuple[int, int]:
    """The height and the width of a plot on the screen."""
    scale = 144 / max(rows, columns)
    return max(round(rows * scale), 12), max(round(columns * scale), 12)

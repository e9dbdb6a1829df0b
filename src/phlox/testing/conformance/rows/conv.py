# ruff: noqa: E501
# pyright: standard
"""Convolution, transposed convolution, unfold and fold."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from phlox import functional as f
from phlox.testing.conformance.row import Row, normal, tf


def _pairs(padding: Any, axes: int) -> list[tuple[int, int]]:
    """A padding as pairs (before, after) per axis."""
    entries = [padding] * axes if isinstance(padding, int) else padding
    return [(entry, entry) if isinstance(entry, int) else tuple(entry) for entry in entries]


def _geometry(x: Any, window: Any, stride: Any, padding: Any, dilation: Any) -> tuple[Any, list[tuple[Any, Any]]]:
    """The padded x, and for each window its position along every axis and the index of its elements."""
    axes = len(window)
    strides, dilations = np.broadcast_to(stride, axes).tolist(), np.broadcast_to(dilation, axes).tolist()
    x = np.pad(x, ((0, 0), (0, 0), *_pairs(padding, axes)))
    counts = [(x.shape[2 + a] - dilations[a] * (window[a] - 1) - 1) // strides[a] + 1 for a in range(axes)]
    seen = []
    for position in itertools.product(*map(range, counts)):
        starts = [at * step for at, step in zip(position, strides, strict=True)]
        ends = [at + d * (k - 1) + 1 for at, d, k in zip(starts, dilations, window, strict=True)]
        seen.append((position, (..., *(slice(a, e, d) for a, e, d in zip(starts, ends, dilations, strict=True)))))
    return x, seen


def _conv(x: Any, w: Any, b: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1) -> Any:
    """By the definition, sum by sum."""
    out, per_group, *window = w.shape
    x, seen = _geometry(x, window, stride, padding, dilation)
    y = np.zeros((len(x), out, *(at + 1 for at in seen[-1][0])))
    for o in range(out):
        first = o // (out // groups) * per_group
        for position, index in seen:
            y[:, o, *position] = (x[:, first : first + per_group][index] * w[o]).sum(tuple(range(1, x.ndim)))
    return y if b is None else y + b.reshape(-1, *(1 for _ in window))


def _transposed(
    x: Any,
    w: Any,
    b: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    """By the definition: each element adds the kernel times itself; then the padding is cropped."""
    channels, per_group, *window = w.shape
    axes = len(window)
    strides, dilations, extras = (np.broadcast_to(v, axes).tolist() for v in (stride, dilation, output_padding))
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, window, strict=True)]
    full = [(n - 1) * s + r + e for n, s, r, e in zip(x.shape[2:], strides, reach, extras, strict=True)]
    y = np.zeros((len(x), per_group * groups, *full))
    for c in range(channels):
        first = c // (channels // groups) * per_group
        for at in itertools.product(*map(range, x.shape[2:])):
            window_of_y = [slice(i * s, i * s + r, d) for i, s, r, d in zip(at, strides, reach, dilations, strict=True)]
            y[:, first : first + per_group, *window_of_y] += x[:, c, *at].reshape(-1, 1, *(1 for _ in at)) * w[c]
    cut = [slice(before, n - after) for n, (before, after) in zip(full, _pairs(padding, axes), strict=True)]
    y = y[:, :, *cut]
    return y if b is None else y + b.reshape(-1, *(1 for _ in window))


def _unfold(x: Any, window: Any, stride: Any = 1, padding: Any = 0, dilation: Any = 1) -> Any:
    x, seen = _geometry(x, window, stride, padding, dilation)
    return np.stack([x[index].reshape(len(x), x.shape[1] * int(np.prod(window))) for _, index in seen], -1)


def _fold(columns: Any, size: Any, window: Any, stride: Any = 1, padding: Any = 0, dilation: Any = 1) -> Any:
    channels = columns.shape[1] // int(np.prod(window))
    x, seen = _geometry(np.zeros((len(columns), channels, *size)), window, stride, padding, dilation)
    for column, (_, index) in enumerate(seen):
        x[index] += columns[..., column].reshape(len(columns), channels, *window)
    pads = _pairs(padding, len(size))
    return x[:, :, *(slice(before, n - after) for n, (before, after) in zip(x.shape[2:], pads, strict=True))]


_CONVS: dict[str, tuple[tuple[Any, ...], ...]] = {
    "conv1d": (
        (normal(1, 4, 9), normal(4, 2, 2), normal(4), {"stride": 3, "padding": (2,), "dilation": 2, "groups": 2}),
        (normal(2, 3, 6), normal(4, 3, 3), normal(4), {"padding": ((4, 0),), "dilation": 2}),
        (normal(2, 3, 6), normal(4, 3, 3), normal(4), {}),
        (normal(0, 2, 4), normal(3, 2, 3), normal(3), {"padding": 1}),
    ),
    "conv2d": (
        (normal(2, 4, 7, 6), normal(4, 2, 2, 3), normal(4),
         {"stride": 2, "padding": ((1, 2), (2, 0)), "dilation": (2, 1), "groups": 2}),
        (normal(2, 3, 5, 4), normal(2, 3, 3, 2), normal(2), {}),
        (normal(2, 3, 3, 3), normal(4, 3, 1, 1), normal(4), {}),
        (normal(1, 2, 6, 5), normal(3, 2, 3, 2), normal(3), {"stride": (2, 3)}),
        (normal(1, 2, 4, 3), normal(3, 2, 3, 3), normal(3), {"padding": (1, 2)}),
        (normal(1, 2, 4, 3), normal(3, 2, 2, 3), normal(3), {"padding": (1, (2, 3)), "stride": 2}),
        (normal(1, 2, 12, 12), normal(3, 2, 2, 3), normal(3), {"padding": ((1, 0), (0, 2))}),
        (normal(1, 2, 6, 7), normal(2, 2, 2, 3), normal(2), {"dilation": (3, 2)}),
        (normal(2, 4, 4, 4), normal(6, 2, 3, 3), normal(6), {"groups": 2}),
        (normal(1, 3, 5, 4), normal(3, 1, 2, 2), normal(3), {"groups": 3, "padding": 1, "stride": 2, "dilation": (2, 1)}),
        (normal(1, 1, 6, 6), normal(1, 1, 3, 3), normal(1), {"stride": 2}),
        (normal(0, 2, 4, 4), normal(3, 2, 3, 3), normal(3), {"padding": 1}),
        (normal(2, 0, 3, 4), normal(3, 0, 2, 2), normal(3), {}),
        (normal(2, 3, 3, 4), normal(0, 3, 2, 2), normal(0), {}),
        (normal(2, 2, 0, 3), normal(3, 2, 2, 2), normal(3), {"padding": 1}),
    ),
    "conv3d": (
        (normal(1, 4, 4, 5, 4), normal(2, 2, 2, 3, 2), normal(2),
         {"stride": (1, 2, 1), "padding": ((1, 0), 1, (0, 2)), "dilation": (2, 1, 3), "groups": 2}),
        (normal(2, 2, 3, 4, 3), normal(3, 2, 2, 3, 2), normal(3), {}),
        (normal(0, 2, 3, 3, 3), normal(3, 2, 2, 2, 2), normal(3), {}),
    ),
}  # fmt: skip

_SAME: tuple[tuple[Any, ...], ...] = (
    (normal(1, 2, 5, 6), normal(3, 2, 3, 3), normal(3), {"stride": (2, 2)}, [(1, 1), (0, 1)]),
    (normal(1, 2, 5, 4), normal(3, 2, 3, 2), normal(3), {}, [(1, 1), (0, 1)]),
    (normal(1, 2, 7, 6), normal(3, 2, 2, 2), normal(3), {"stride": 3}, [(0, 1), (0, 0)]),
    (normal(1, 2, 5), normal(3, 2, 4), normal(3), {"dilation": 2}, [(3, 3)]),
    (normal(1, 1, 2, 3, 2), normal(2, 1, 3, 2, 1), normal(2), {}, [(1, 1), (0, 1), (0, 0)]),
)
"""With the equivalent explicit padding."""

_TRANSPOSED: dict[str, tuple[tuple[Any, ...], ...]] = {
    "conv_transpose1d": (
        (normal(1, 4, 4), normal(4, 1, 2), normal(2),
         {"stride": 3, "padding": ((2, 1),), "dilation": 2, "groups": 2, "output_padding": 2}),
        (normal(2, 3, 4), normal(3, 2, 3), normal(2), {}),
    ),
    "conv_transpose2d": (
        (normal(2, 4, 3, 2), normal(4, 3, 2, 3), normal(6),
         {"stride": 2, "padding": (1, 2), "dilation": (2, 1), "groups": 2, "output_padding": (1, 0)}),
        (normal(1, 2, 3, 3), normal(2, 3, 3, 3), normal(3), {"stride": 2, "padding": ((1, 0), (0, 2)), "output_padding": 1}),
        (normal(2, 3, 3, 4), normal(3, 2, 2, 3), normal(2), {}),
        (normal(1, 2, 3, 2), normal(2, 3, 3, 2), normal(3), {"stride": (2, 3)}),
        (normal(1, 2, 3, 3), normal(2, 3, 3, 3), normal(3), {"stride": (2, 3), "padding": 1, "output_padding": (1, 2)}),
        (normal(1, 2, 3, 2), normal(2, 2, 1, 2), normal(2), {"stride": 3, "output_padding": 2}),
        (normal(0, 2, 3, 3), normal(2, 3, 2, 2), normal(3), {}),
        (normal(2, 0, 3, 3), normal(0, 3, 2, 2), normal(3), {}),
    ),
    "conv_transpose3d": (
        (normal(1, 2, 2, 2, 3), normal(2, 1, 2, 3, 2), normal(2),
         {"stride": (1, 2, 2), "padding": ((0, 1), 1, 0), "groups": 2, "output_padding": (0, 1, 0)}),
        (normal(1, 2, 2, 3, 2), normal(2, 2, 2, 1, 3), normal(2), {}),
    ),
}  # fmt: skip

_UNFOLDS: tuple[tuple[Any, Any, dict[str, Any]], ...] = (
    (normal(1, 2, 6, 5), (2, 2), {"stride": (2, 1), "padding": ((1, 0), (0, 2)), "dilation": (1, 3)}),
    (normal(2, 3, 4, 5), (2, 3), {}),
    (normal(2, 2, 4, 3), (3, 2), {"padding": (1, 2), "stride": 2}),
    (normal(2, 2, 6), (3,), {"stride": 2, "padding": ((1, 2),)}),
    (normal(1, 2, 3, 2, 3), (2, 1, 2), {"padding": ((0, 1), 0, 1)}),
    (normal(0, 2, 3, 3), (2, 2), {}),
    (normal(2, 0, 3, 3), (2, 2), {}),
)

_FOLDS = tuple((normal(*_unfold(x, k, **o).shape), x.shape[2:], k, o) for x, k, o in _UNFOLDS)


def _of_rank(x: Any) -> Any:
    return {3: f.conv1d, 4: f.conv2d, 5: f.conv3d}[x.ndim]


ROWS: list[Row] = [
    *(
        Row(name, lambda x, w, b, o, name=name: getattr(f, name)(x, w, b, **o), lambda x, w, b, o: _conv(x, w, b, **o),
            samples, factor=4)
        for name, samples in _CONVS.items()
    ),
    Row("conv same", lambda x, w, b, o, pads: _of_rank(x)(x, w, b, padding="same", **o),
        lambda x, w, b, o, pads: _conv(x, w, b, padding=pads, **o), _SAME, factor=4),
    Row("conv2d valid, without bias", lambda x, w: f.conv2d(x, w, padding="valid"), _conv,
        ((normal(1, 2, 4, 3), normal(3, 2, 3, 3)),), factor=4),
    *(
        Row(f"conv2d, constant {constant}", lambda x, w, b: f.conv2d(x, w, b, stride=2), lambda x, w, b: _conv(x, w, b, 2),
            ((normal(1, 2, 5, 5), normal(3, 2, 3, 3), normal(3)),), constant=constant, factor=4)
        for constant in ((0,), (1,), (2,), (0, 1))
    ),
    *(
        Row(name, lambda x, w, b, o, name=name: getattr(f, name)(x, w, b, **o),
            lambda x, w, b, o: _transposed(x, w, b, **o), samples, factor=4)
        for name, samples in _TRANSPOSED.items()
    ),
    Row("conv_transpose2d without bias", lambda x, w: f.conv_transpose2d(x, w), _transposed,
        ((normal(1, 2, 3, 3), normal(2, 3, 2, 2)),), torch=lambda x, w: tf.conv_transpose2d(x, w), factor=4),
    Row("unfold", lambda x, k, o: f.unfold(x, k, **o), lambda x, k, o: _unfold(x, k, **o), _UNFOLDS),
    Row("fold", lambda c, size, k, o: f.fold(c, size, k, **o), lambda c, size, k, o: _fold(c, size, k, **o), _FOLDS, factor=4),
]  # fmt: skip

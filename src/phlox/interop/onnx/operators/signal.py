"""Fourier transforms, windows and mel scales."""

from __future__ import annotations

from typing import Any

import numpy as np

from phlox.interop.onnx.elements import FLOAT, cast, host
from phlox.interop.onnx.node import Node
from phlox.interop.onnx.operators.shape import checked_size
from phlox.interop.onnx.registry import Array, operators
from phlox.tensor import Tensor, signal, stack

X = Tensor[Any, Any, Any]


def _dft_17(node: Node, x: X, length: Array | None = None) -> X:
    return _transformed(node, x, length, node.get("axis", 1))


def _dft(node: Node, x: X, length: Array | None = None, axis: Array | None = None) -> X:
    return _transformed(node, x, length, -2 if axis is None else int(axis.reshape(())))


def _transformed(node: Node, x: X, length: Array | None, axis: int) -> X:
    axis = axis % x.ndim
    count = None if length is None else int(length.reshape(()))
    real, imaginary = x[..., 0], x[..., 1] if x.shape[-1] == 2 else None
    one_sided, inverse = bool(node.get("onesided", 0)), bool(node.get("inverse", 0))
    if inverse and one_sided and imaginary is not None:
        return signal.irfft((real, imaginary), count, axis=axis).expand_dims(-1)
    values: Any = real if imaginary is None else (real, imaginary)
    if inverse:
        spectrum = signal.ifft(values, count, axis=axis)
    elif one_sided:
        spectrum = signal.rfft(real, count, axis=axis)
    else:
        spectrum = signal.fft(values, count, axis=axis)
    return stack([spectrum.real, spectrum.imag], -1)


def _stft(node: Node, x: X, step: Array, window: X | None = None, length: Array | None = None) -> X:
    size = int(length.reshape(())) if length is not None else 0
    if not size:
        assert window is not None
        size = window.shape[0]
    parts = [x[..., 0]] if x.ndim == 3 else [x]
    if x.ndim == 3 and x.shape[-1] == 2:
        parts.append(x[..., 1])
    frames = [signal.frame(part, size, int(step.reshape(()))) for part in parts]
    if window is not None:
        frames = [part * window for part in frames]
    one_sided = bool(node.get("onesided", 1)) and len(frames) == 1
    spectrum = (
        signal.rfft(frames[0]) if one_sided else signal.fft(frames[0] if len(frames) == 1 else (frames[0], frames[1]))
    )
    return stack([spectrum.real, spectrum.imag], -1)


def _cosines(*weights: float) -> Any:
    def computed(node: Node, size: Array) -> X:
        (count,) = checked_size(node.operator, [int(size.reshape(()))])
        period = count if node.get("periodic", 1) else count - 1
        angle = 2.0 * np.pi * np.arange(count) / max(period, 1)
        values = sum((weight * np.cos(k * angle) for k, weight in enumerate(weights)), np.zeros(count))
        return cast(host(values), node.element or FLOAT)

    return computed


def _mel(node: Node, bins: Array, length: Array, rate: Array, low: Array, high: Array) -> X:
    count, size = int(bins.reshape(())), int(length.reshape(()))
    checked_size(node.operator, (count, size // 2 + 1))
    mels = np.array([2595.0 * np.log10(1.0 + float(edge.reshape(())) / 700.0) for edge in (low, high)])
    centres = mels[0] + (mels[1] - mels[0]) / (count + 2) * np.arange(count + 2)
    hertz = 700.0 * (10.0 ** (centres / 2595.0) - 1.0)
    bins_of_edges = np.floor((size + 1) * hertz / float(rate.reshape(()))).astype(np.int64)
    weights = np.zeros((size // 2 + 1, count))
    for mel in range(count):
        first, centre, last = bins_of_edges[mel : mel + 3]
        if centre == first:
            weights[centre, mel] = 1.0
        else:
            weights[first : centre + 1, mel] = (np.arange(first, centre + 1) - first) / (centre - first)
        if last > centre:
            weights[centre:last, mel] = (last - np.arange(centre, last)) / (last - centre)
    return host(weights)


operators({"DFT": _dft_17}, since=17)
operators({"DFT": _dft}, since=20)
operators(
    {
        "STFT": _stft,
        "HannWindow": _cosines(0.5, -0.5),
        "HammingWindow": _cosines(25 / 46, -21 / 46),
        "BlackmanWindow": _cosines(0.42, -0.5, 0.08),
        "MelWeightMatrix": _mel,
    }
)

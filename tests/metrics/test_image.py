"""Metrics of pictures, beside torchmetrics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torchmetrics.functional.image as tmi

from phlox import metrics
from phlox.errors import RangeError, ShapeError
from tests.metrics.support import agrees, compiled_agrees, each_compiler, traced_only  # noqa: F401

RNG = np.random.default_rng(5)
T = RNG.uniform(size=(24, 3, 14, 13)).astype(np.float32)
P = np.clip(T + RNG.normal(size=T.shape) * 0.1, 0, 1).astype(np.float32)
W = RNG.uniform(0.0, 3.0, 24).astype(np.float32)


def test_psnr() -> None:
    want = tmi.peak_signal_noise_ratio(torch.tensor(P), torch.tensor(T), data_range=1.0).item()
    agrees(metrics.Psnr(), (P, T), want, rtol=1e-5)
    assert metrics.Psnr(data_range=255.0)(P * 255, T * 255) == pytest.approx(want, rel=1e-5)
    error = ((P.astype(np.float64) - T) ** 2).mean((1, 2, 3))
    agrees(metrics.Psnr(), (P, T), -10 * np.log10(np.average(error, weights=W)), weights=W, rtol=1e-5)
    assert metrics.Psnr()(T, T) == np.inf and np.isnan(metrics.Psnr()(T[:0], T[:0]))


def test_ssim() -> None:
    p, t = torch.tensor(P), torch.tensor(T)
    _, full = tmi.structural_similarity_index_measure(p, t, data_range=1.0, return_full_image=True, reduction="none")
    each = full[:, :, 5:-5, 5:-5].mean((1, 2, 3)).numpy()  # it has a border too, of reflected pixels
    agrees(metrics.Ssim(), (P, T), each.mean(), rtol=1e-4)
    by_channel = P.transpose(0, 2, 3, 1), T.transpose(0, 2, 3, 1)
    agrees(metrics.Ssim(channel_axes=1), by_channel, each.mean(), rtol=1e-4)
    agrees(metrics.Ssim(channel_axes=1), by_channel, np.average(each, weights=W), weights=W, rtol=1e-4)
    few: Any = {"data_range": 2.0, "sigma": 0.5, "k1": 0.02, "k2": 0.05}  # whose window there is of 5 pixels
    _, full = tmi.structural_similarity_index_measure(p, t, **few, return_full_image=True, reduction="none")
    assert metrics.Ssim(window=5, **few)(P, T) == pytest.approx(full[:, :, 2:-2, 2:-2].mean().item(), rel=1e-4)
    assert metrics.Ssim()(T, T) == pytest.approx(1.0)
    assert np.isnan(metrics.Ssim()(T[:0], T[:0]))


LOOSE: Any = metrics  # what type checkers refuse is tried, too
BAD: list[tuple[Any, type[Exception], str]] = [
    (lambda: LOOSE.Psnr(data_range=0.0), RangeError, "Psnr: data_range must be positive and finite, got 0.0"),
    (lambda: LOOSE.Ssim(window=4), RangeError, "Ssim: the window's side is an odd number of pixels, got 4"),
    (lambda: LOOSE.Ssim(sigma=0.0), RangeError, "Ssim: sigma must be positive"),
    (lambda: LOOSE.Ssim()(P[..., :9], T[..., :9]), ShapeError, "smaller than the window of 11 x 11"),
    (lambda: LOOSE.Ssim()(P[0, 0, 0], T[0, 0, 0]), ShapeError, "Ssim: images of shape (13,)"),
    (lambda: LOOSE.Psnr()(P, T[:3]), ShapeError, "Psnr: predictions of shape (24, 3, 14, 13) and targets"),
]


@pytest.mark.parametrize("bad, kind, words", BAD)
def test_bad_input(bad: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind) as error:
        bad()
    assert words in str(error.value)


@each_compiler
@pytest.mark.usefixtures("traced_only")
def test_compiled(backend: Any) -> None:
    compiled_agrees(backend, metrics.Ssim(channel_axes=1), (P[:3].transpose(0, 2, 3, 1), T[:3].transpose(0, 2, 3, 1)))
    compiled_agrees(backend, metrics.Psnr(), (P, T))

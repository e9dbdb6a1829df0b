# ruff: noqa: E501
# pyright: standard
"""Fourier transforms, spectrograms and windows."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import phlox as px
from phlox import signal
from phlox.testing.conformance.row import Row, normal, other, scipy_signal, torch


def _pair(z: Any) -> Any:
    """A complex array as its two parts, stacked."""
    return np.stack([z.real, z.imag])


def _stacked(z: Any) -> Any:
    return px.stack([z.real, z.imag])


_SIZES = (1, 2, 6, 7)
_MODES: Any = ("full", "same", "valid")
_NORMS: Any = ("backward", "ortho", "forward")


def _half(n: int, *batch: int) -> tuple[Any, Any]:
    return normal(*batch, n // 2 + 1), other(*batch, n // 2 + 1)


TRANSFORMS = [
    Row("rfft", lambda x: _stacked(signal.rfft(x)), lambda x: _pair(np.fft.rfft(x)),
        (*tuple((normal(2, n),) for n in _SIZES), (normal(0, 4),), (normal(5),)), factor=4),
    *(
        Row(f"rfft {name}", lambda x, o=o: _stacked(signal.rfft(x, **o)), lambda x, o=o: _pair(np.fft.rfft(x, **o)), ((normal(3, 6, 2),),), factor=4)
        for name, o in {"axis": {"axis": 1}, "first axis": {"axis": 0}, "cropped": {"n": 5, "axis": 1}, "padded": {"n": 9, "axis": 1}}.items()
    ),
    *(
        Row(f"rfft {norm}", lambda x, norm=norm: _stacked(signal.rfft(x, norm=norm)), lambda x, norm=norm: _pair(np.fft.rfft(x, norm=norm)), ((normal(5),),), factor=4)
        for norm in _NORMS[1:]
    ),
    *(
        Row(f"irfft {n}", lambda re, im, n=n: signal.irfft((re, im), n), lambda re, im, n=n: np.fft.irfft(re + 1j * im, n), (_half(n, 2),), factor=4)
        for n in _SIZES
    ),
    Row("irfft", lambda re, im: signal.irfft((re, im)), lambda re, im: np.fft.irfft(re + 1j * im), (_half(6), _half(8, 3), _half(4, 0)), factor=4),
    *(
        Row(f"irfft {norm}", lambda re, im, norm=norm: signal.irfft((re, im), norm=norm), lambda re, im, norm=norm: np.fft.irfft(re + 1j * im, norm=norm), (_half(6),), factor=4)
        for norm in _NORMS[1:]
    ),
    *(
        Row(f"irfft {name}", lambda re, im, o=o: signal.irfft((re, im), **o), lambda re, im, o=o: np.fft.irfft(re + 1j * im, **o), ((normal(4, 3), other(4, 3)),), factor=4)
        for name, o in {"axis": {"axis": 0}, "cropped": {"n": 4, "axis": 0}, "padded": {"n": 11, "axis": 0}}.items()
    ),
    *(
        Row(name, lambda re, im, name=name: _stacked(getattr(signal, name)((re, im))), lambda re, im, name=name: _pair(getattr(np.fft, name)(re + 1j * im)),
            (*tuple((normal(2, n), other(2, n)) for n in (1, 2, 5, 6)), (normal(0, 3), other(0, 3))), factor=4)
        for name in ("fft", "ifft")
    ),
    *(
        Row(f"{name} {norm}, padded", lambda re, im, name=name, norm=norm: _stacked(getattr(signal, name)((re, im), 5, axis=0, norm=norm)),
            lambda re, im, name=name, norm=norm: _pair(getattr(np.fft, name)(re + 1j * im, 5, 0, norm)), ((normal(4, 2), other(4, 2)),), factor=4)
        for name in ("fft", "ifft")
        for norm in _NORMS[1:]
    ),
    Row("fft of a real signal", lambda x: _stacked(signal.fft(x)), lambda x: _pair(np.fft.fft(x)), ((normal(5),),), factor=4),
    Row("rfft and back", lambda x: signal.irfft(signal.rfft(x), 7), lambda x: x, ((normal(2, 7),),), factor=4),
    Row("fftfreq", lambda x: signal.fftfreq(5, 0.5, device=x.device), lambda x: np.fft.fftfreq(5, 0.5), ((normal(1),),), gradient=False),
    Row("rfftfreq", lambda x: signal.rfftfreq(6, device=x.device), lambda x: np.fft.rfftfreq(6), ((normal(1),),), gradient=False),
    Row("fftshift", lambda x: signal.fftshift(x), np.fft.fftshift, ((normal(5),), (normal(4, 3),), (normal(0),))),
    Row("ifftshift", lambda x: signal.ifftshift(x, axis=(0,)), lambda x: np.fft.ifftshift(x, 0), ((normal(5),), (normal(4, 3),))),
]  # fmt: skip

# --- complex numbers


def _complex(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a, b, c, d: f(signal.Complex(a, b), signal.Complex(c, d))


_FOUR = ((normal(3), other(3), normal(3, scale=2.0), normal(1)),)

COMPLEX = [
    Row("complex product", _complex(lambda x, y: _stacked(x * y)), lambda a, b, c, d: _pair((a + 1j * b) * (c + 1j * d)), _FOUR),
    Row("complex times real", lambda a, b: _stacked(signal.Complex(a, b) * a), lambda a, b: _pair((a + 1j * b) * a), ((normal(3), other(3)),)),
    Row("complex conj", lambda a, b: _stacked(signal.Complex(a, b).conj()), lambda a, b: _pair(a - 1j * b), ((normal(3), other(3)),)),
    Row("complex abs", lambda a, b: signal.Complex(a, b).abs(), np.hypot, ((normal(3), other(3)),)),
    Row("complex abs at 0", lambda a, b: signal.Complex(a, b).abs(), np.hypot, ((np.zeros(2), np.array([0.0, 2.0])),),
        torch=lambda a, b: torch.linalg.vector_norm(torch.stack([a, b]), dim=0), second=False),
    Row("complex power", lambda a, b: signal.Complex(a, b).power(), lambda a, b: a * a + b * b, ((normal(3), other(3)),)),
]  # fmt: skip

# --- frames and spectrograms


def _frame(x: Any, length: int, hop: int) -> Any:
    count = (x.shape[-1] - length) // hop + 1
    return np.stack([x[..., i * hop : i * hop + length] for i in range(count)], -2)


def _overlap_add(x: Any, hop: int) -> Any:
    *batch, count, length = x.shape
    y = np.zeros((*batch, (count - 1) * hop + length))
    for i in range(count):
        y[..., i * hop : i * hop + length] += x[..., i, :]
    return y


_STFTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "plain": (normal(2, 20), {"n_fft": 8}),
    "hop, window": (normal(21), {"n_fft": 8, "hop_length": 3, "window": True}),
    "odd": (normal(2, 19), {"n_fft": 7, "hop_length": 2, "window": True}),
    "short window": (normal(20), {"n_fft": 8, "hop_length": 2, "win_length": 5, "window": True}),
    "short window of ones": (normal(20), {"n_fft": 8, "hop_length": 2, "win_length": 6}),
    "not centred": (normal(2, 20), {"n_fft": 6, "hop_length": 3, "center": False}),
    "normalized": (normal(16), {"n_fft": 4, "window": True, "normalized": True}),
    "twosided": (normal(16), {"n_fft": 6, "hop_length": 2, "window": True, "onesided": False}),
    "padded with zeros": (normal(16), {"n_fft": 8, "hop_length": 4, "window": True, "pad_mode": "constant"}),
}  # fmt: skip


def _hamming(n: int) -> Any:
    return 0.54 - 0.46 * np.cos(2.0 * np.pi * np.arange(n) / n)


def _options(options: dict[str, Any], make: Callable[[Any], Any]) -> dict[str, Any]:
    return (
        {**options, "window": make(_hamming(options.get("win_length", options["n_fft"])))}
        if options.get("window")
        else options
    )


def _ours(options: dict[str, Any], x: Any) -> dict[str, Any]:
    return _options(options, lambda window: px.tensor(window, device=x.device))


def _torchs(options: dict[str, Any]) -> dict[str, Any]:
    ones = torch.ones(options.get("win_length", options["n_fft"]), dtype=torch.float64)
    return {"window": ones, **_options(options, lambda window: torch.tensor(window))}


def _torch_stft(x: Any, o: dict[str, Any]) -> Any:
    z = torch.stft(x, return_complex=True, **_torchs(o))
    return torch.stack([z.real, z.imag])


def _torch_istft(re: Any, im: Any, o: dict[str, Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about padding, which is intended
        return torch.istft(torch.complex(re, im), **_torchs(o))


def _spectrum(x: Any, o: dict[str, Any]) -> tuple[Any, Any]:
    """A pair of the shape of a result of `stft`, not the transform of a signal."""
    frequencies = o["n_fft"] // 2 + 1 if o.get("onesided", True) else o["n_fft"]
    half = o["n_fft"] // 2 if o.get("center", True) else 0
    frames = (x.shape[-1] + 2 * half - o["n_fft"]) // o.get("hop_length", o["n_fft"] // 4) + 1
    shape = (*x.shape[:-1], frequencies, frames)
    return normal(*shape), other(*shape)


_ISTFTS = {
    name: (_spectrum(x, o), {key: value for key, value in o.items() if key != "pad_mode"})
    for name, (x, o) in _STFTS.items()
}
_ISTFTS["cropped"] = (_ISTFTS["plain"][0], {"n_fft": 8, "length": 11})
_ISTFTS["padded"] = (_ISTFTS["hop, window"][0], {"n_fft": 8, "hop_length": 3, "window": True, "length": 30})

FRAMES = [
    *(
        Row(f"frame {length}, {hop}", lambda x, n=length, h=hop: signal.frame(x, n, h), lambda x, n=length, h=hop: _frame(x, n, h),
            ((normal(2, 11),), (normal(7),), (normal(0, 7),)))
        for length, hop in ((1, 1), (3, 1), (4, 2), (5, 3), (2, 4), (7, 7))
    ),
    *(
        Row(f"overlap_add {hop}", lambda x, h=hop: signal.overlap_add(x, h), lambda x, h=hop: _overlap_add(x, h),
            ((normal(2, 3, 4),), (normal(1, 5),), (normal(0, 2, 3),)))
        for hop in (1, 2, 3, 6)
    ),
    Row("overlap_add cropped", lambda x: signal.overlap_add(x, 2, size=5), lambda x: _overlap_add(x, 2)[..., :5], ((normal(2, 3, 4),),)),
    Row("overlap_add padded", lambda x: signal.overlap_add(x, 2, size=10), lambda x: np.pad(_overlap_add(x, 2), ((0, 0), (0, 2))), ((normal(2, 3, 4),),)),
    *(
        Row(f"stft {name}", lambda x, o=o: _stacked(signal.stft(x, **_ours(o, x))), lambda x, o=o: _torch_stft(torch.tensor(x), o).numpy(), ((x,),),
            torch=lambda x, o=o: _torch_stft(x, o), factor=4)
        for name, (x, o) in _STFTS.items()
    ),
    *(
        Row(f"istft {name}", lambda re, im, o=o: signal.istft((re, im), **_ours(o, re)),
            lambda re, im, o=o: _torch_istft(torch.tensor(re), torch.tensor(im), o).numpy(), (pair,), torch=lambda re, im, o=o: _torch_istft(re, im, o), factor=20)
        for name, (pair, o) in _ISTFTS.items()
    ),
    Row("stft and back", lambda x: signal.istft(signal.stft(x, 8, window=signal.hann_window(8, device=x.device)), 8, window=signal.hann_window(8, device=x.device)),
        lambda x: x, ((normal(2, 24),),), factor=10),
]  # fmt: skip

# --- windows, convolution

_WINDOWS: dict[str, Any] = {
    "rectangular": "boxcar", "bartlett": "bartlett", "hann": "hann", "hamming": "hamming", "blackman": "blackman",
    "kaiser": ("kaiser", 12.0), "gaussian": ("gaussian", 1.7),
}  # fmt: skip


def _ours_of(name: str, n: int, periodic: bool, device: Any) -> Any:
    options: dict[str, Any] = {} if name == "rectangular" else {"periodic": periodic}
    if name == "gaussian":
        options["std"] = 1.7
    return getattr(signal, f"{name}_window")(n, device=device, **options)


WINDOWS = [
    Row(f"{name}_window {n} {'periodic' if periodic else 'symmetric'}", lambda x, name=name, n=n, periodic=periodic: _ours_of(name, n, periodic, x.device),
        lambda x, w=scipys, n=n, periodic=periodic: scipy_signal.get_window(w, n, fftbins=periodic), ((normal(1),),), gradient=False)
    for name, scipys in _WINDOWS.items()
    for n, periodic in ((8, True), (7, False), (1, True))
] + [
    Row("hann_window of nothing", lambda x: signal.hann_window(0, device=x.device), lambda x: np.zeros(0), ((normal(1),),), gradient=False),
]  # fmt: skip


def _along_rows(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, y: np.stack([f(a, b) for a, b in zip(x, y, strict=True)])


CONVOLUTION = [
    *(
        Row(f"convolve {mode}", lambda x, y, m=mode: signal.convolve(x, y, mode=m), lambda x, y, m=mode: scipy_signal.convolve(x, y, mode=m, method="direct"),
            ((normal(7), normal(3)), (normal(3), normal(3)), (normal(1), normal(1))), factor=4)
        for mode in _MODES
    ),
    *(
        Row(f"correlate {mode}", lambda x, y, m=mode: signal.correlate(x, y, mode=m), lambda x, y, m=mode: scipy_signal.correlate(x, y, mode=m, method="direct"),
            ((normal(7), normal(3)),), factor=4)
        for mode in _MODES
    ),
    Row("convolve rows", lambda x, y: signal.convolve(x, y), _along_rows(np.convolve), ((normal(2, 5), normal(2, 4)),), factor=4),
    Row("convolve broadcast", lambda x, y: signal.convolve(x, y), lambda x, y: _along_rows(np.convolve)(x, np.broadcast_to(y, (2, 4))), ((normal(2, 5), normal(1, 4)),), factor=4),
]  # fmt: skip

ROWS: list[Row] = [*TRANSFORMS, *COMPLEX, *FRAMES, *WINDOWS, *CONVOLUTION]

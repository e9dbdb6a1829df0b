"""Frames of a signal, and the short-time Fourier transform."""

from __future__ import annotations

from typing import Literal

from phlox.backend.tracing.symbolic import less
from phlox.errors import ShapeError
from phlox.tensor.fourier import Complex, Norm, fft, float_of, irfft, rfft, sized
from phlox.tensor.functions import at_full_precision, concat
from phlox.tensor.tensor import Tensor
from phlox.tensor.windows import rectangular_window


def frame(x: Tensor, length: int, hop: int) -> Tensor:
    """Cut a signal [..., t] into frames, one every `hop` samples: [..., (t - length) // hop + 1, length].

    Samples left over at the end are dropped.

    >>> import phlox as px
    >>> px.signal.frame(px.tensor([1.0, 2.0, 3.0, 4.0, 5.0]), 3, 2).tolist()
    [[1.0, 2.0, 3.0], [3.0, 4.0, 5.0]]
    """
    x = float_of("frame", x)
    if length < 1 or hop < 1:
        raise ShapeError(f"frame: length and hop must be at least 1, got {length} and {hop}")
    if less(x.shape[-1], length):
        raise ShapeError(f"frame: a signal of {x.shape[-1]} samples is shorter than a frame of {length}; pad it")
    return x._apply("frame", length, hop)  # pyright: ignore[reportPrivateUsage]


def overlap_add(x: Tensor, hop: int, *, size: int | None = None) -> Tensor:
    """Add up frames [..., count, length], one every `hop` samples, to a signal: the transpose of `frame`.

    The signal has (count - 1) * hop + length samples; with `size` it is cropped or zero-padded to that.

    >>> import phlox as px
    >>> px.signal.overlap_add(px.tensor([[1.0, 1.0], [1.0, 1.0]]), 1).tolist()
    [1.0, 2.0, 1.0]
    """
    x = float_of("overlap_add", x)
    if x.ndim < 2 or 0 in x.shape[-2:] or hop < 1:
        raise ShapeError(f"overlap_add: takes frames [..., count, length] and a hop, got shape {x.shape}, hop {hop}")
    whole = (x.shape[-2] - 1) * hop + x.shape[-1]
    y = x._apply("overlap_add", hop, whole)  # pyright: ignore[reportPrivateUsage]
    return y if size is None else sized(y, size, y.ndim - 1)


def _window(
    name: str, window: Tensor | None, n_fft: int, hop: int | None, length: int | None, like: Tensor
) -> tuple[Tensor | None, int]:
    """The window, zero-padded on both sides to n_fft samples, and the hop."""
    length = n_fft if length is None else length
    hop = n_fft // 4 if hop is None else hop
    if n_fft < 1 or hop < 1 or not 1 <= length <= n_fft:
        raise ShapeError(
            f"{name}: needs n_fft and hop_length of at least 1 and win_length from 1 to n_fft, "
            f"got {n_fft}, {hop} and {length}"
        )
    if window is None:
        if length == n_fft:
            return None, hop
        window = rectangular_window(length, device=like.device)
    if window.shape != (length,):
        raise ShapeError(f"{name}: the window must be of shape ({length},), got {window.shape}")
    before = (n_fft - length) // 2
    return window.pad(((before, n_fft - length - before),)) if length < n_fft else window, hop


@at_full_precision
def stft(
    x: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    *,
    center: bool = True,
    pad_mode: Literal["reflect", "constant"] = "reflect",
    normalized: bool = False,
    onesided: bool = True,
) -> Complex:
    """The short-time Fourier transform of a real signal [..., t]: [..., frequencies, frames]; as `torch.stft`.

    Args:
        x: the signal.
        n_fft: the length of each transform.
        hop_length: samples from one frame to the next; n_fft // 4 by default.
        win_length: samples of the window, which is centred in the n_fft samples; n_fft by default.
        window: [win_length]; ones by default.
        center: pad the signal by n_fft // 2 on both sides, so that frame i is centred at sample i * hop_length.
        pad_mode: the padding for `center`: "reflect" (mirrored) or "constant" (zeros).
        normalized: scale by 1 / sqrt(n_fft).
        onesided: return the n_fft // 2 + 1 non-negative frequencies; else all n_fft.

    >>> import phlox as px
    >>> px.signal.stft(px.ones((2, 100)), 16, window=px.signal.hann_window(16)).real.shape
    (2, 9, 26)
    """
    x = float_of("stft", x)
    window, hop = _window("stft", window, n_fft, hop_length, win_length, x)
    if center:
        x = _pad_signal(x, n_fft // 2, pad_mode)
    if x.shape[-1] < n_fft:
        raise ShapeError(f"stft: a signal of {x.shape[-1]} samples is shorter than n_fft = {n_fft}")
    frames = frame(x, n_fft, hop)
    if window is not None:
        frames = frames * window
    spectrum = (rfft if onesided else fft)(frames, norm="ortho" if normalized else "backward")
    return Complex(spectrum.real.mT, spectrum.imag.mT)


def _pad_signal(x: Tensor, width: int, mode: str) -> Tensor:
    if mode == "constant":
        return x.pad((*((0, 0),) * (x.ndim - 1), (width, width)))
    if mode != "reflect":
        raise ShapeError(f"stft: pad_mode must be 'reflect' or 'constant', got {mode!r}")
    size = x.shape[-1]
    if width >= size:
        raise ShapeError(
            f"stft: a signal of {size} samples is too short to be mirrored by {width} samples; "
            "use pad_mode='constant' or center=False"
        )
    if width == 0:
        return x
    return concat([x[..., 1 : width + 1].flip(-1), x, x[..., size - 1 - width : size - 1].flip(-1)], x.ndim - 1)


@at_full_precision
def istft(
    x: tuple[Tensor, Tensor],
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    *,
    center: bool = True,
    normalized: bool = False,
    onesided: bool = True,
    length: int | None = None,
) -> Tensor:
    """The inverse of `stft` with these options: the real signal [..., t] whose `stft` is closest to x.

    It is the least-squares solution (Griffin and Lim 1984). `length` crops or zero-pads the signal. Raises `ShapeError`
    if the windows leave samples uncovered.

    >>> import phlox as px
    >>> x, window = px.ones((64,)), px.signal.hann_window(16)
    >>> px.signal.istft(px.signal.stft(x, 16, window=window), 16, window=window).numpy().round(3).min().item()
    1.0
    """
    real = float_of("istft", x[0])
    window, hop = _window("istft", window, n_fft, hop_length, win_length, real)
    count = n_fft // 2 + 1 if onesided else n_fft
    if real.ndim < 2 or real.shape[-2] != count or real.shape[-1] < 1:
        raise ShapeError(f"istft: needs a pair of [..., {count}, frames], got shape {real.shape}")
    norm: Norm = "ortho" if normalized else "backward"
    # The signal is real, so the upper half of the frequencies is redundant.
    frames = irfft(Complex(x[0].mT, x[1].mT), n_fft, norm=norm)
    squares = (rectangular_window(n_fft, device=real.device) if window is None else window).square()
    if window is not None:
        frames = frames * window
    total = overlap_add(frames, hop)
    weight = overlap_add(squares.broadcast_to((frames.shape[-2], n_fft)), hop)
    start = n_fft // 2 if center else 0
    end = total.shape[-1] - start if length is None else min(total.shape[-1], start + length)
    total, weight = total[..., start:end], weight[start:end]
    if not weight.backend.is_traced(weight.primitive) and weight.size and float(weight.detach().min().item()) < 1e-11:
        raise ShapeError(
            "istft: the windows leave samples uncovered (their squares add up to zero); "
            "use a shorter hop_length, another window, or center=True"
        )
    y = total / weight
    return y if length is None else sized(y, length, y.ndim - 1)

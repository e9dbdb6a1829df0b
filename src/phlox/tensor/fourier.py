"""Fourier transforms, and complex tensors as pairs of real ones."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias, cast

import numpy as np

from phlox.backend import DeviceLike, Float
from phlox.backend.tracing.dimension import is_open, larger, ratio
from phlox.backend.tracing.symbolic import is_symbolic, less, real
from phlox.errors import KindError, ShapeError
from phlox.tensor.creation import tensor, zeros_like
from phlox.tensor.functions import concat, stack, where
from phlox.tensor.products import rounded
from phlox.tensor.tensor import Tensor

Norm: TypeAlias = Literal["backward", "ortho", "forward"]
"""The scaling: of the inverse by 1 / n ("backward"), of both by 1 / sqrt(n) ("ortho"), of the forward by 1 / n."""


class Complex(NamedTuple):
    """A complex tensor: a pair of Float tensors of one shape.

    >>> import phlox as px
    >>> px.signal.Complex(px.tensor([3.0]), px.tensor([4.0])).abs().tolist()
    [5.0]
    """

    real: Tensor
    imag: Tensor

    def abs(self) -> Tensor:
        """The magnitude. Where it is zero, its gradient is zero."""
        squares = self.power()
        flat = squares == 0.0
        return where(flat, 0.0, where(flat, 1.0, squares).sqrt())

    def power(self) -> Tensor:
        """The squared magnitude."""
        return self.real.square() + self.imag.square()

    def __mul__(self, other: object) -> Complex:
        """The product with a complex tensor, a real tensor or a scalar."""
        if isinstance(other, Complex):
            real = rounded(self.real * other.real) - rounded(self.imag * other.imag)
            return Complex(real, rounded(self.real * other.imag) + rounded(self.imag * other.real))
        return Complex(self.real * other, self.imag * other)  # type: ignore[operator]

    def conj(self) -> Complex:
        """The complex conjugate."""
        return Complex(self.real, -self.imag)


# --- how transforms are called


def float_of(name: str, x: Any) -> Tensor:
    """Check for a Float tensor of rank 1 or more; else `KindError` or `ShapeError`."""
    if not isinstance(x, Tensor):
        raise KindError(f"{name} takes a Float tensor, got {type(x).__name__}")
    if x.kind is not Float:
        raise KindError(f"{name} takes Float tensors, got {x.kind.__name__}; convert with .float() first")
    if x.ndim == 0:
        raise ShapeError(f"{name}: needs a tensor with at least one axis, got shape ()")
    return cast(Tensor, x)


def _pair(name: str, x: Any) -> Tensor:
    """The real and imaginary parts, stacked along a new last axis."""
    if not isinstance(x, tuple) or len(cast("tuple[Any, ...]", x)) != 2:
        raise KindError(f"{name} takes a pair of Float tensors (real, imag), got {type(cast(Any, x)).__name__}")
    real, imag = (float_of(name, part) for part in cast("tuple[Any, Any]", x))
    if real.shape != imag.shape:
        raise ShapeError(f"{name}: the real part has shape {real.shape}, but the imaginary part has shape {imag.shape}")
    return stack([real, imag], -1)


def _parts(x: Tensor, axis: int) -> Complex:
    """Split the last axis into real and imaginary parts, and move the axis before it back to the position `axis`."""
    real, imag = x[..., 0], x[..., 1]
    return Complex(_move_last_to(real, axis), _move_last_to(imag, axis))


def _move_to_last(x: Tensor, axis: int, rank: int) -> Tensor:
    """Move an axis to the end of the first `rank` axes."""
    if axis == rank - 1:
        return x
    return x.permute_dims((*(other for other in range(rank) if other != axis), axis, *range(rank, x.ndim)))


def _move_last_to(x: Tensor, axis: int) -> Tensor:
    """Move the last axis to the position `axis`."""
    rank = x.ndim
    return x if axis == rank - 1 else x.permute_dims((*range(axis), rank - 1, *range(axis, rank - 1)))


def sized(x: Tensor, n: int, axis: int) -> Tensor:
    """Crop an axis at the end, or pad it with zeros, to size n."""
    old_size = x.shape[axis]
    if is_open(old_size) or is_open(n):  # pads and crops, for whatever sizes the axis will have
        x = x.pad(tuple((0, larger(n - old_size, 0) if other == axis else 0) for other in range(x.ndim)))
        kept = tuple(slice(0, n if other == axis else size, 1) for other, size in enumerate(x.shape))
        return x._apply("index", kept)  # pyright: ignore[reportPrivateUsage]
    if n < old_size:
        return x[(*(slice(None),) * axis, slice(0, n))]
    return x if n == old_size else x.pad(tuple((0, n - old_size if other == axis else 0) for other in range(x.ndim)))


def _length(name: str, n: int | None, default: int) -> int:
    n = default if n is None else n
    if less(n, 1):
        raise ShapeError(f"{name}: the length of the transform must be at least 1, got {n}")
    return n


def _scale(name: str, n: int, norm: Norm, inverse: bool) -> float:
    if norm not in ("backward", "ortho", "forward"):
        raise ShapeError(f"{name}: norm must be 'backward', 'ortho' or 'forward', got {norm!r}")
    if norm == "ortho":
        return (real(n) if is_symbolic(n) else n) ** -0.5
    return ratio(1, n) if inverse == (norm == "backward") else 1.0


def _apply_scale(x: Tensor, scale: float) -> Tensor:
    # If the length is open, the scale is a number of the engine.
    return x if type(scale) is float and scale == 1.0 else x._apply("mul", scale)  # pyright: ignore[reportPrivateUsage]


def rfft(x: Tensor, n: int | None = None, *, axis: int = -1, norm: Norm = "backward") -> Complex:
    """The Fourier transform of a real signal: the n // 2 + 1 non-negative frequencies.

    Args:
        x: Float, the signal along one axis.
        n: the length of the transform. The signal is cropped or zero-padded to it. By default the size of the axis.
        axis: the axis to transform.
        norm: the scale factor: "backward" is 1, "ortho" is 1 / sqrt(n), "forward" is 1 / n.

    >>> import phlox as px
    >>> px.signal.rfft(px.tensor([1.0, 2.0, 3.0, 4.0])).real.tolist()
    [10.0, -2.0, -2.0]
    """
    x = float_of("rfft", x)
    axis = x._axis("rfft", axis)  # pyright: ignore[reportPrivateUsage]
    n = _length("rfft", n, x.shape[axis])
    scale = _scale("rfft", n, norm, False)
    y = sized(_move_to_last(x, axis, x.ndim), n, x.ndim - 1)._apply("rfft")  # pyright: ignore[reportPrivateUsage]
    return _parts(_apply_scale(y, scale), axis)


def irfft(x: tuple[Tensor, Tensor], n: int | None = None, *, axis: int = -1, norm: Norm = "backward") -> Tensor:
    """The inverse of `rfft`: the real signal of n samples.

    By default n = 2 (frequencies - 1); an odd length must be given. The frequencies are cropped or zero-padded to
    n // 2 + 1. The imaginary part of the first frequency (and, for even n, of the last) is ignored.

    >>> import phlox as px
    >>> px.signal.irfft(px.signal.rfft(px.tensor([1.0, 2.0, 3.0])), 3).numpy().round(4)
    array([1., 2., 3.], dtype=float32)
    """
    z = _pair("irfft", x)
    rank = z.ndim - 1
    axis = x[0]._axis("irfft", axis)  # pyright: ignore[reportPrivateUsage]
    n = _length("irfft", n, 2 * (z.shape[axis] - 1))
    scale = _scale("irfft", n, norm, True)
    z = sized(_move_to_last(z, axis, rank), n // 2 + 1, rank - 1)
    return _move_last_to(_apply_scale(z._apply("irfft", n), scale), axis)  # pyright: ignore[reportPrivateUsage]


def _fft(name: str, x: Any, n: int | None, axis: int, norm: Norm, inverse: bool) -> Complex:
    z = _pair(name, (x, zeros_like(cast(Tensor, x))) if isinstance(x, Tensor) and x.kind is Float else x)
    rank = z.ndim - 1
    axis = z[..., 0]._axis(name, axis)  # pyright: ignore[reportPrivateUsage]
    n = _length(name, n, z.shape[axis])
    scale = _scale(name, n, norm, inverse)
    z = sized(_move_to_last(z, axis, rank), n, rank - 1)._apply("fft", inverse)  # pyright: ignore[reportPrivateUsage]
    return _parts(_apply_scale(z, scale), axis)


def fft(x: tuple[Tensor, Tensor] | Tensor, n: int | None = None, *, axis: int = -1, norm: Norm = "backward") -> Complex:
    """The Fourier transform of a complex or real signal: all n frequencies. Options as in `rfft`.

    >>> import phlox as px
    >>> px.signal.fft(px.tensor([1.0, 2.0, 3.0, 4.0])).imag.tolist()
    [0.0, 2.0, 0.0, -2.0]
    """
    return _fft("fft", x, n, axis, norm, False)


def ifft(
    x: tuple[Tensor, Tensor] | Tensor, n: int | None = None, *, axis: int = -1, norm: Norm = "backward"
) -> Complex:
    """The inverse of `fft`.

    >>> import phlox as px
    >>> px.signal.ifft(px.signal.fft(px.tensor([1.0, 2.0]))).real.tolist()
    [1.0, 2.0]
    """
    return _fft("ifft", x, n, axis, norm, True)


# --- frequencies


def fftfreq(n: int, d: float = 1.0, *, device: DeviceLike | None = None) -> Tensor:
    """The frequencies of `fft` in cycles per unit of `d`, the sample spacing; non-negative ones come first.

    >>> import phlox as px
    >>> px.signal.fftfreq(4).tolist()
    [0.0, 0.25, -0.5, -0.25]
    """
    return tensor(np.fft.fftfreq(_length("fftfreq", n, n), d), device=device)


def rfftfreq(n: int, d: float = 1.0, *, device: DeviceLike | None = None) -> Tensor:
    """The frequencies of `rfft` in cycles per unit of `d`, the sample spacing.

    >>> import phlox as px
    >>> px.signal.rfftfreq(4).tolist()
    [0.0, 0.25, 0.5]
    """
    return tensor(np.fft.rfftfreq(_length("rfftfreq", n, n), d), device=device)


def _shift(name: str, x: Tensor, axis: int | tuple[int, ...] | None, back: bool) -> Tensor:
    for position in x._axes(name, axis):  # pyright: ignore[reportPrivateUsage]
        size = x.shape[position]
        middle = size // 2 if back else (size + 1) // 2
        before: tuple[slice, ...] = (slice(None),) * position
        x = concat([x[(*before, slice(middle, None))], x[(*before, slice(0, middle))]], position)
    return x


def fftshift(x: Tensor, *, axis: int | tuple[int, ...] | None = None) -> Tensor:
    """Reorder the output of `fft` to ascending frequencies, with zero in the middle; all axes by default.

    >>> import phlox as px
    >>> px.signal.fftshift(px.signal.fftfreq(4)).tolist()
    [-0.5, -0.25, 0.0, 0.25]
    """
    return _shift("fftshift", x, axis, False)


def ifftshift(x: Tensor, *, axis: int | tuple[int, ...] | None = None) -> Tensor:
    """The inverse of `fftshift`.

    >>> import phlox as px
    >>> px.signal.ifftshift(px.tensor([-0.5, -0.25, 0.0, 0.25])).tolist()
    [0.0, 0.25, -0.5, -0.25]
    """
    return _shift("ifftshift", x, axis, True)

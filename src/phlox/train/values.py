"""The values that a training reports besides its own numbers: arrays, histograms and images."""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Mapping
from functools import cached_property
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from phlox.data.structure import host_array
from phlox.errors import DataError, RecordError, RunError
from phlox.host.png import pixels_of, png

MOST = 100
"""An array of up to this many numbers is reported number by number; a larger one by its histogram."""


class Histogram:
    """How often the elements of an array lie in each of some intervals (bins), as loggers write it.

    A callback reports one by `learner.extra["name"] = Histogram(values)`; see `phlox.train.Histograms` for those of all
    parameters. Only the counts are kept, not the array.

    Args:
        values: numbers in any shape: an array or a tensor of any engine, or a list. NaN and infinities are not in the
            bins, but counted by themselves.
        bins: the number of bins, of equal width, from the least to the greatest value.

    Attributes:
        counts: int64 [bins], how many values lie in each bin.
        edges: float64 [bins + 1], where the bins begin and end. A value on an edge is in the bin above it, the greatest
            in the last bin.
        size: the number of values in all bins.
        nonfinite: the number of values that are NaN or infinite.
        min, max, mean, std: of the values in the bins; NaN if there are none.

    Raises `RunError` for values that are no numbers, and for less than one bin.

    >>> found = Histogram([0.0, 0.5, 1.0, 2.0], bins=2)
    >>> found.counts.tolist(), found.edges.tolist(), found.mean
    ([2, 2], [0.0, 1.0, 2.0], 0.875)
    """

    def __init__(self, values: Any, bins: int = 64) -> None:
        if isinstance(bins, bool) or not isinstance(bins, (int, np.integer)) or bins < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RunError(f"Histogram: bins is {bins!r}; give a whole number of at least 1")
        array = _numbers(values)
        if array is None:
            raise RunError(f"Histogram: {_described(values)} is no array of numbers; give one, or a list of numbers")
        flat = array.reshape(-1).astype(np.float64)
        finite = flat[np.isfinite(flat)]
        low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
        room = 0.5 * max(1.0, abs(low)) if low == high else 0.0  # if all values are equal
        self.edges: npt.NDArray[np.float64] = _edges(low - room, high + room, int(bins))
        self.counts: npt.NDArray[np.int64] = np.histogram(finite, self.edges)[0].astype(np.int64)
        self.size, self.nonfinite = int(finite.size), int(flat.size - finite.size)
        self.min, self.max, self.mean, self.std = math.nan, math.nan, math.nan, math.nan
        if finite.size:
            scale = max(abs(low), abs(high)) or 1.0  # so that no square overflows
            self.min, self.max = low, high
            self.mean, self.std = (scale * float(x) for x in ((finite / scale).mean(), (finite / scale).std()))

    def numbers(self) -> dict[str, float]:
        """The moments as numbers, for loggers that show no histograms.

        >>> Histogram([1.0, 3.0]).numbers()
        {'mean': 2.0, 'std': 1.0, 'min': 1.0, 'max': 3.0}
        """
        moments = {"mean": self.mean, "std": self.std, "min": self.min, "max": self.max}
        return {**moments, "nonfinite": self.nonfinite} if self.nonfinite else moments

    def to_plain(self) -> dict[str, Any]:
        """Convert to plain values, for JSON: the bins have equal width from `range[0]` to `range[1]`."""
        return {
            **self.numbers(), "range": [float(self.edges[0]), float(self.edges[-1])], "counts": self.counts.tolist()
        }  # fmt: skip

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> Histogram:
        """The inverse of `to_plain`."""
        (first, last), counts = values["range"], np.asarray(values["counts"], np.int64)
        new = object.__new__(cls)
        new.counts, new.edges = counts, _edges(first, last, len(counts))
        new.size, new.nonfinite = int(counts.sum()), int(values.get("nonfinite", 0))
        new.mean, new.std, new.min, new.max = (float(values[name]) for name in ("mean", "std", "min", "max"))
        return new

    def __repr__(self) -> str:
        return f"Histogram({self.size:,} values, mean {self.mean:.4g}, from {self.min:.4g} to {self.max:.4g})"


class Image:
    """An image, as loggers write it; a notebook shows it.

    A callback reports one by `learner.extra["name"] = Image(pixels)`.

    Args:
        pixels: [height, width], [height, width, channels] or [channels, height, width], with 1 (grey), 3 (colour) or 4
            channels (with transparency): an array or a tensor of any engine. Whole numbers are 0 to 255; floats 0 to 1
            or, if some are outside, stretched from the least to the greatest.

    Attributes:
        pixels: uint8 [height, width, channels].
        png: the bytes of a PNG file.

    Raises `RunError` for another shape, or for an object that is no array of numbers.

    >>> Image(np.zeros((2, 3))).pixels.shape
    (2, 3, 1)
    """

    def __init__(self, pixels: Any) -> None:
        array = _numbers(pixels)
        if array is None:
            raise RunError(f"Image: {_described(pixels)} is no array of numbers; give [height, width, channels]")
        try:
            self.pixels: npt.NDArray[np.uint8] = pixels_of(array)
        except DataError as error:
            hint = "; Image.grid(images) makes one image of several" if array.ndim == 4 else ""
            raise RunError(f"Image: {error}{hint}") from None

    @classmethod
    def grid(cls, images: Any, columns: int = 8) -> Image:
        """Several images of one size as one, row by row, with a pixel between them.

        Args:
            images: [n, ...], each as for `Image`; floats are stretched together.
            columns: the number of images in a row.

        >>> Image.grid(np.ones((5, 1, 8, 8)), columns=3).pixels.shape
        (17, 26, 1)
        """
        array = _numbers(images)
        if array is None or array.ndim not in (3, 4) or not array.size:
            description = _described(images) if array is None else f"an array of shape {array.shape}"
            raise RunError(f"Image.grid: {description} are no images; give [n, height, width, channels]")
        if array.ndim == 4 and array.shape[3] not in (1, 3, 4) and array.shape[1] in (1, 3, 4):
            array = np.moveaxis(array, 1, 3)
        array = array if array.ndim == 4 else array[..., None]
        n, height, width, channels = array.shape
        whole = cls(array.reshape(n * height, width, channels)).pixels.reshape(array.shape)
        columns = min(max(1, columns), n)
        rows = -(-n // columns)
        page = np.zeros((rows * (height + 1) - 1, columns * (width + 1) - 1, channels), np.uint8)
        for number, image in enumerate(whole):
            top, left = number // columns * (height + 1), number % columns * (width + 1)
            page[top : top + height, left : left + width] = image
        return cls(page)

    @cached_property
    def png(self) -> bytes:
        return png(self.pixels, largest=None)

    def to_plain(self) -> dict[str, Any]:
        """Convert to plain values, for JSON."""
        packed = zlib.compress(self.pixels.tobytes())
        return {"shape": list(self.pixels.shape), "pixels": base64.b64encode(packed).decode()}

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> Image:
        """The inverse of `to_plain`."""
        shape = [int(size) for size in values["shape"]]
        data = zlib.decompressobj().decompress(base64.b64decode(values["pixels"]), max(1, math.prod(shape)))
        image = object.__new__(cls)
        image.pixels = np.frombuffer(data, np.uint8).reshape(shape)
        return image

    def _repr_png_(self) -> bytes:
        return self.png

    def __repr__(self) -> str:
        height, width, channels = self.pixels.shape
        return f"Image({height} x {width}, {channels} channel{'s' if channels > 1 else ''})"


def _edges(first: float, last: float, bins: int) -> npt.NDArray[np.float64]:
    """As `np.linspace`, but without its overflow for the largest numbers."""
    shares = np.arange(bins + 1) / bins
    return first * (1.0 - shares) + last * shares


def _numbers(value: Any) -> npt.NDArray[Any] | None:
    """An array of numbers, from an array, a tensor or a list; None for anything else.

    Raises `RunError` for an array without values, such as one of a compiled function that is being traced.
    """
    array: npt.NDArray[Any] | None
    try:
        array = np.asarray(cast("Any", value)) if isinstance(value, (list, tuple)) else host_array(value)
    except ValueError:  # lists of several lengths
        return None
    except Exception as error:
        raise RunError(f"{_described(value)} cannot be read: {str(error).partition(chr(10))[0]}") from error
    return array if array is not None and array.dtype.kind in "biuf" else None


def _described(value: Any) -> str:
    dtype = getattr(value, "dtype", None)
    return f"a {type(value).__name__}{'' if dtype is None else f' of {dtype}'}"


def row_values(name: str, value: Any) -> dict[str, Any]:
    """The entries of a logger's row for a value: numbers, histograms and images by name.

    An array of up to 100 numbers gives `name/0`, `name/1`, and so on for each axis; a larger one its histogram. A dict
    gives `name/key`.

    Raises `RunError` for anything else.

    >>> row_values("share", np.array([0.25, 0.75], np.float32)), row_values("weights", np.zeros((20, 20)))
    ({'share/0': 0.25, 'share/1': 0.75}, {'weights': Histogram(400 values, mean 0, from 0 to 0)})
    """
    if isinstance(value, (Histogram, Image)):
        return {name: value}
    if isinstance(value, Mapping):
        parts = {f"{name}/{key}": part for key, part in cast("Mapping[Any, Any]", value).items()}
        return {key: entry for path, part in parts.items() for key, entry in row_values(path, part).items()}
    if isinstance(value, (int, float)):
        return {name: value}
    try:
        array = _numbers(value)
    except RunError as error:
        raise RunError(f"{name!r}: {error}") from error
    if array is None:
        if isinstance(value, (list, tuple)) and value:  # its elements are no numbers
            parts = enumerate(cast("list[Any]", value))
            return {key: entry for i, part in parts for key, entry in row_values(f"{name}/{i}", part).items()}
        raise RunError(
            f"{name!r} is {_described(value)}, which no logger writes; give a number, an array of numbers, a "
            "px.train.Histogram or a px.train.Image"
        )
    if array.size > MOST:
        return {name: Histogram(array)}
    return {"/".join([name, *map(str, index)]): array[index].item() for index in np.ndindex(array.shape)}


def is_picture(value: Any) -> bool:
    """Is it a histogram or an image?"""
    return isinstance(value, (Histogram, Image))


_KINDS: dict[str, Any] = {f"phlox.train.{kind.__name__}": kind for kind in (Histogram, Image)}


def to_plain(value: Any) -> Any:
    """Convert a histogram or an image for a checkpoint; anything else stays as it is."""
    return {f"phlox.train.{type(value).__name__}": value.to_plain()} if is_picture(value) else value


def from_plain(value: Any) -> Any:
    """The inverse of `to_plain`; `RecordError` for a damaged value."""
    if isinstance(value, Mapping):
        for kind, parts in cast("Mapping[str, Any]", value).items():
            if kind in _KINDS:
                try:
                    return _KINDS[kind].from_plain(parts)
                except (KeyError, TypeError, ValueError, zlib.error) as error:
                    raise RecordError(f"the record has a damaged {kind} ({error})") from error
    return cast("Any", value)

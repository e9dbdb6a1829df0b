"""Windows of a long sequence of tokens, as a source of rows."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from phlox.data.arrays import OnDemand, as_array, load_arrays
from phlox.data.order import Rows, check_number
from phlox.data.rows import RowSource
from phlox.data.structure import is_array
from phlox.errors import DataError


class TokenWindows(RowSource):
    """A source of windows of a long sequence of tokens, for language models; the targets are the next tokens.

    Args:
        tokens: integers with one axis: an array, or the path of a `.npy` file or of a flat binary file, which is
            memory-mapped; or an array of HDF5 or zarr, which is read by windows.
        length: the length of a window.
        stride: the distance from one window to the next; by default `length`, so that windows do not overlap.
        dtype: the dtype of the elements of a flat file, such as `np.uint16`.

    A row is `{"input": int32 [length], "target": int32 [length]}`.

    Raises:
        DataError: the sequence has fewer than `length + 1` tokens, or no single axis of integers.

    >>> windows = TokenWindows(np.arange(7), length=3)
    >>> len(windows), windows[np.array([1])]["target"].tolist()
    (2, [[4, 5, 6]])
    """

    def __init__(
        self, tokens: Any, length: int, *, stride: int | None = None, dtype: npt.DTypeLike | None = None
    ) -> None:
        check_number("TokenWindows: length", length, 1)
        if stride is not None:
            check_number("TokenWindows: stride", stride, 1)
        self.tokens = self._read(tokens, dtype)
        self.length, self.stride = length, length if stride is None else stride
        shape, kind = getattr(self.tokens, "shape", ()), getattr(self.tokens, "dtype", None)
        if len(shape) != 1 or np.dtype(kind).kind not in "iu":
            raise DataError(f"TokenWindows: got {kind} of shape {shape}; give one axis of integers")
        if shape[0] <= length:
            raise DataError(f"TokenWindows: {shape[0]} tokens have no window of {length} and a next token")

    @staticmethod
    def _read(tokens: Any, dtype: npt.DTypeLike | None) -> npt.NDArray[Any]:
        if not isinstance(tokens, (str, os.PathLike)):
            array = as_array(tokens)
            return cast("npt.NDArray[Any]", array.array if isinstance(array, OnDemand) else array)
        path = Path(cast("str", tokens))
        if path.suffix.lower() == ".npy":
            return load_arrays(path)
        if dtype is None:
            raise DataError(f"TokenWindows: {path} says no dtype; give one, such as dtype=np.uint16")
        try:
            return np.memmap(path, dtype, "r")
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: cannot be mapped as {np.dtype(dtype)}: {error}") from error

    def __len__(self) -> int:
        return (self.tokens.shape[0] - 1 - self.length) // self.stride + 1

    def take(self, rows: Rows, /) -> dict[str, npt.NDArray[np.int32]]:
        starts: npt.NDArray[np.int64] = rows * self.stride
        tokens: npt.NDArray[Any]
        if is_array(self.tokens):
            tokens = self.tokens[starts[:, None] + np.arange(self.length + 1)]
        else:  # a file of HDF5 or zarr: a window is read as one block
            tokens = np.stack([np.asarray(self.tokens[start : start + self.length + 1]) for start in starts.tolist()])
        return {"input": tokens[:, :-1].astype(np.int32), "target": tokens[:, 1:].astype(np.int32)}

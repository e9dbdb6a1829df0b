"""Windows of a long sequence of tokens, as a source of rows."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from phlox.data.order import Rows
from phlox.data.sources import RowSource, as_array, opened
from phlox.errors import DataError


class TokenWindows(RowSource):
    """A source of windows of a long sequence of tokens, for language models; the targets are the next tokens.

    Args:
        tokens: integers with one axis: an array, or the path of a `.npy` file or of a flat binary file, which is
            memory-mapped.
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
        if length < 1 or (stride is not None and stride < 1):
            raise DataError(f"TokenWindows: length is {length} and stride {stride}; give 1 or more")
        self.tokens = self._read(tokens, dtype)
        self.length, self.stride = length, length if stride is None else stride
        if self.tokens.ndim != 1 or self.tokens.dtype.kind not in "iu":
            raise DataError(
                f"TokenWindows: got {self.tokens.dtype} of shape {self.tokens.shape}; give one axis of integers"
            )
        if len(self.tokens) <= length:
            raise DataError(f"TokenWindows: {len(self.tokens)} tokens have no window of {length} and a next token")

    @staticmethod
    def _read(tokens: Any, dtype: npt.DTypeLike | None) -> npt.NDArray[Any]:
        if not isinstance(tokens, (str, os.PathLike)):
            return cast("npt.NDArray[Any]", as_array(tokens))
        path = Path(cast("str", tokens))
        if path.suffix.lower() == ".npy":
            return opened(path)
        if dtype is None:
            raise DataError(f"TokenWindows: {path} says no dtype; give one, such as dtype=np.uint16")
        try:
            return np.memmap(path, dtype, "r")
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: cannot be mapped as {np.dtype(dtype)}: {error}") from error

    def __len__(self) -> int:
        return (len(self.tokens) - 1 - self.length) // self.stride + 1

    def take(self, rows: Rows, /) -> dict[str, npt.NDArray[np.int32]]:
        places = rows[:, None] * self.stride + np.arange(self.length + 1)
        tokens = self.tokens[places].astype(np.int32)
        return {"input": tokens[:, :-1], "target": tokens[:, 1:]}

"""Collators: from rows of different lengths to one batch, by padding or by packing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from phlox.data.structure import AnyArray, children, is_array, mapped, stack
from phlox.errors import DataError


@dataclass(frozen=True)
class Pad:
    """Pads the arrays of a batch to the length of the longest row, and adds a mask of the real entries.

    The first axis of every array of one or more axes is padded; scalars are stacked. A batch of dicts gets the mask
    `bool [rows, length]` under the name `mask`; any other batch becomes `(batch, mask)`.

    Args:
        value: the value of the padding; or a dict of values for fields of a row by their names, zero for the others.
        length: the length to pad to, in place of the longest; batches of one shape compile once.
        multiple_of: rounds the longest up to a multiple of this: few shapes, and little padding.
        mask: the name of the mask in dicts; None adds no mask.
        truncate: whether rows longer than `length` are cut; otherwise they are an error.

    Raises:
        DataError: a row is longer than `length`, or the arrays of a row differ in length.

    >>> batch = Pad()([{"tokens": [5, 6, 7], "label": 1}, {"tokens": [8], "label": 0}])
    >>> batch["tokens"].tolist(), batch["mask"].tolist(), batch["label"].tolist()
    ([[5, 6, 7], [8, 0, 0]], [[True, True, True], [True, False, False]], [1, 0])
    """

    value: float | Mapping[str, float] = 0
    length: int | None = None
    multiple_of: int = 1
    mask: str | None = "mask"
    truncate: bool = False

    def __post_init__(self) -> None:
        if self.multiple_of < 1 or (self.length is not None and self.length < 1):
            raise DataError(f"{self}: length and multiple_of must be 1 or more")

    def __call__(self, rows: Sequence[Any]) -> Any:
        rows = [mapped(_array, row) for row in rows]
        lengths = [_length(row, number) for number, row in enumerate(rows)]
        longest = max(lengths)
        target = self.length if self.length is not None else -(-longest // self.multiple_of) * self.multiple_of
        if longest > target:
            if not self.truncate:
                raise DataError(
                    f"Pad: row {lengths.index(longest)} of the batch has length {longest}, and length is {target}; "
                    "give a larger length, or truncate=True"
                )
            lengths = [min(length, target) for length in lengths]
        batch = stack([self._padded(row, target) for row in rows])
        if self.mask is None:
            return batch
        mask = np.arange(target) < np.array(lengths)[:, None]
        if isinstance(batch, Mapping):
            return {**cast("Mapping[str, Any]", batch), self.mask: mask}
        return batch, mask

    def _padded(self, row: Any, target: int) -> Any:
        if not isinstance(self.value, Mapping):
            return mapped(partial(_pad, target, self.value), row)
        if not isinstance(row, Mapping):
            raise DataError("Pad: a dict of values needs rows that are dicts of fields")
        parts = cast("Mapping[str, Any]", row).items()
        return {name: mapped(partial(_pad, target, _value_of(self.value, name)), part) for name, part in parts}


def _pad(target: int, value: float, leaf: Any) -> Any:
    if not is_array(leaf) or not leaf.ndim:
        return leaf
    out = np.full((target, *leaf.shape[1:]), value, leaf.dtype)
    out[: len(leaf)] = leaf[:target]
    return out


def _value_of(value: float | Mapping[str, float], name: str) -> float:
    """The value of the padding of a field."""
    return value.get(name, 0) if isinstance(value, Mapping) else value


def _array(leaf: Any) -> Any:
    return leaf if isinstance(leaf, (str, bytes)) or leaf is None else np.asarray(leaf)


def _length(row: Any, number: int) -> int:
    lengths = {len(leaf) for leaf in _flat(row) if is_array(leaf) and leaf.ndim}
    if len(lengths) != 1:
        problem = "has no array of one or more axes" if not lengths else f"has arrays of lengths {sorted(lengths)}"
        raise DataError(f"Pad: row {number} of the batch {problem}; the arrays of a row must have one length")
    return lengths.pop()


def _flat(value: Any) -> list[Any]:
    parts = children(value)
    return [value] if parts is None else [leaf for _, part in parts for leaf in _flat(part)]


@dataclass(frozen=True)
class Pack:
    """Packs several short sequences into one row, so that little is padded.

    Each sequence, the longest first, goes into the first row with enough room (first-fit decreasing): at most 11/9 of
    the fewest possible rows, and one more (Dósa 2007), in n log n time for n sequences. A batch is a dict: the arrays,
    `[packed rows, length]`; the int32 arrays `segment` (0 for padding, then 1, 2, ... within a row: attention must not
    cross from one to another) and `position` (from 0 in each sequence); and the bool array `mask`. A causal model takes
    `segment` as its argument `segments`.

    Args:
        length: the length of a packed row.
        rows: the number of packed rows in a batch; by default as many as are needed. Batches of one shape compile once.
        value: the value of the padding; or a dict of values for fields by their names, zero for the others.
        field: the name in the batch for rows that are bare sequences.
        truncate: whether sequences longer than `length` are cut; otherwise they are an error.

    Raises:
        DataError: a sequence is longer than `length`, more than `rows` rows are needed, or a field has the name of an
            array that is added.

    >>> batch = Pack(4)([[1, 2, 3], [4], [5, 6]])
    >>> batch["tokens"].tolist(), batch["segment"].tolist()
    ([[1, 2, 3, 4], [5, 6, 0, 0]], [[1, 1, 1, 2], [1, 1, 0, 0]])
    """

    length: int
    rows: int | None = None
    value: float | Mapping[str, float] = 0
    field: str = "tokens"
    truncate: bool = False

    def __post_init__(self) -> None:
        if self.length < 1 or (self.rows is not None and self.rows < 1):
            raise DataError(f"{self}: length and rows must be 1 or more")

    def __call__(self, rows: Sequence[Any]) -> dict[str, npt.NDArray[Any]]:
        sequences = [self._by_name(row) for row in rows]
        lengths = [_length(row, number) for number, row in enumerate(sequences)]
        for name in {"segment", "position", "mask"}.intersection(*sequences[:1]):
            raise DataError(f"Pack: the rows have a field {name!r}, which a packed batch has too; rename it")
        if self.truncate:
            lengths = [min(length, self.length) for length in lengths]
        slots, used = self._slots(lengths)
        count = used if self.rows is None else self.rows
        if used > count:
            raise DataError(f"Pack: the batch needs {used} rows of {self.length}, and rows is {count}; give more rows")
        shape = (count, self.length)
        segment, position = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
        out = {
            name: np.full((*shape, *array.shape[1:]), _value_of(self.value, name), array.dtype)
            for name, array in sequences[0].items()
        }
        num_segments = [0] * count
        for sequence, size, (row, start) in zip(sequences, lengths, slots, strict=True):
            num_segments[row] += 1
            span = slice(start, start + size)
            segment[row, span], position[row, span] = num_segments[row], np.arange(size)
            for name, array in sequence.items():
                out[name][row, span] = array[:size]
        return {**out, "segment": segment, "position": position, "mask": segment > 0}

    def _by_name(self, row: Any) -> dict[str, AnyArray]:
        fields = cast("Mapping[str, Any]", row) if isinstance(row, Mapping) else {self.field: row}
        return {name: np.asarray(value) for name, value in fields.items()}

    def _slots(self, lengths: list[int]) -> tuple[list[tuple[int, int]], int]:
        """The slot of each sequence, (row, start), and the number of packed rows."""
        leaves = 1 << (len(lengths) - 1).bit_length()
        room = [self.length] * (2 * leaves)  # a tree of the most room in any row below a node; row i is leaf i
        slots = [(0, 0)] * len(lengths)
        for number in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
            size = lengths[number]
            if size > self.length:
                raise DataError(
                    f"Pack: row {number} of the batch has length {size}, more than {self.length}; cut it first, or "
                    "give truncate=True"
                )
            node = 1
            while node < leaves:
                node = 2 * node if room[2 * node] >= size else 2 * node + 1
            slots[number] = node - leaves, self.length - room[node]
            room[node] -= size
            while node > 1:
                node //= 2
                room[node] = max(room[2 * node], room[2 * node + 1])
        return slots, max(row for row, _ in slots) + 1


def next_tokens(tokens: npt.ArrayLike, mask: npt.ArrayLike | None = None) -> dict[str, npt.NDArray[np.int32]]:
    """A text as a row for the training of a language model: its tokens but the last, and for each the next token.

    Args:
        tokens: the n tokens of a text.
        mask: for each token, whether the model learns to write it, such as `Tokenizer.chat_mask` gives; by default all
            are. The target is -100 in place of a token where the mask is false.

    Returns `{"input": int32 [n - 1], "target": int32 [n - 1]}`, which are the names of `TokenWindows`. `Pack` puts many
    such rows into one, and `Pad(value={"target": -100})` pads them. Raises `DataError` for fewer than two tokens, and
    for a mask of another length.

    >>> next_tokens([5, 6, 7], [False, False, True])["target"].tolist()
    [-100, 7]
    """
    row = np.asarray(tokens, np.int32)
    if row.ndim != 1 or len(row) < 2:
        raise DataError(f"next_tokens: a text is a sequence of two tokens or more, got shape {row.shape}")
    learned = np.ones(len(row), np.bool_) if mask is None else np.asarray(mask, np.bool_)
    if learned.shape != row.shape:
        raise DataError(f"next_tokens: the mask has shape {learned.shape}, and the tokens {row.shape}")
    return {"input": row[:-1], "target": np.where(learned[1:], row[1:], np.int32(-100))}

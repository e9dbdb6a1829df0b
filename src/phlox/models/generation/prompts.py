"""The prompts of a generation: checked, and padded on the left to the length of the longest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from phlox.backend import Device, Int
from phlox.errors import IndexRangeError, KindError, RangeError, ShapeError
from phlox.tensor import Tensor, tensor

Tokens: TypeAlias = Tensor[Any, Any, Int]
Prompts: TypeAlias = Sequence[Tokens | Sequence[int]]
"""Prompts of any lengths."""


class Batch(NamedTuple):
    """Prompts as one array; all end in the last column."""

    tokens: Tokens
    """[batch, n]."""
    starts: tuple[int, ...] | None
    """The column in which each prompt begins; None if all begin in the first."""

    @property
    def lengths(self) -> list[int]:
        """The number of tokens of each prompt."""
        rows, n = self.tokens.shape
        return [n - start for start in self.starts or (0,) * rows]


def repeated(batch: Batch, count: int) -> Batch:
    """Each prompt so many times, one after the other."""
    if count == 1:
        return batch
    starts = None if batch.starts is None else tuple([start for start in batch.starts for _ in range(count)])
    return Batch(batch.tokens.repeat(count, 0), starts)


def every_nth(batch: Batch, n: int, count: int = 1) -> Batch:
    """Each n-th prompt, so many times: of a batch that has each n times."""
    return repeated(Batch(batch.tokens[::n], None if batch.starts is None else batch.starts[::n]), count)


def batch_of(call: str, prompts: Tokens | Prompts, vocabulary: int, context: int, device: Device) -> Batch:
    """The prompts on a device; `call` begins an error message."""
    if isinstance(prompts, Tensor):
        _check(call, "the prompt", prompts, vocabulary, context)
        return Batch((prompts.expand_dims(0) if prompts.ndim == 1 else prompts).to_device(device), None)
    if isinstance(prompts, str | bytes) or not isinstance(prompts, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise KindError(
            f"{call}: the prompt must be an Int tensor of tokens, got a {type(prompts).__name__}; see phlox.tensor. "
            "Give prompts of different lengths as a list of such tensors"
        )
    if not prompts:
        raise ShapeError(f"{call}: the list of prompts is empty; give at least one prompt")
    rows: list[np.ndarray[Any, Any]] = []
    for number, prompt in enumerate(prompts):
        name = f"prompts[{number}]"
        row = prompt if isinstance(prompt, Tensor) else _of_numbers(call, name, prompt)
        if row.ndim != 1:
            raise ShapeError(f"{call}: {name} must be [n], a single prompt, got shape {row.shape}")
        _check(call, name, row, vocabulary, context)
        rows.append(row.numpy())
    longest = max(len(row) for row in rows)
    starts = tuple(longest - len(row) for row in rows)
    padded = np.zeros((len(rows), longest), np.int32)
    for line, start, row in zip(padded, starts, rows, strict=True):
        line[start:] = row
    return Batch(tensor(padded, device=device), starts if any(starts) else None)


def tokens_of(call: str, name: str, tokens: int | Sequence[int] | None, vocabulary: int) -> frozenset[int]:
    """The tokens of an option, one or several, checked."""
    if isinstance(tokens, str) or not isinstance(tokens, (Iterable, int, np.integer, type(None))):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise KindError(f"{call}: {name} must be token ids, one or several integers, got {tokens!r}")
    ids = () if tokens is None else tuple(tokens) if isinstance(tokens, Iterable) else (tokens,)
    for token in ids:
        if not is_whole(token):
            raise KindError(f"{call}: {name} must be token ids, one or several integers, got {token!r}")
        if not 0 <= token < vocabulary:
            raise RangeError(f"{call}: the {name} token {token} is not in the vocabulary (0 to {vocabulary - 1})")
    return frozenset(map(int, ids))


def number_of(call: str, name: str, value: float) -> float:
    """A number of Python or NumPy as a Python float."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise KindError(f"{call}: {name} must be a number, got {value!r}")
    return float(value)


def is_whole(value: object) -> bool:
    """Is it an integer of Python or NumPy?"""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def integer_of(call: str, name: str, value: int, least: int | None = None) -> int:
    """A whole number, of at least `least`, as a Python integer."""
    if not is_whole(value):
        raise KindError(f"{call}: {name} must be a whole number, got {value!r}")
    if least is not None and value < least:
        raise RangeError(f"{call}: {name} must be at least {('zero', 'one')[least]}, got {value}")
    return int(value)


def _of_numbers(call: str, name: str, prompt: Any) -> Tokens:
    if isinstance(prompt, int):
        raise KindError(
            f"{call}: {name} is a number, but a list holds whole prompts; make a single prompt a tensor, as in "
            "phlox.tensor([1, 2, 3])"
        )
    numbers = np.asarray([] if isinstance(prompt, str) else prompt)
    if isinstance(prompt, str) or (numbers.size and numbers.dtype.kind not in "iu"):
        kind = type(prompt).__name__ if isinstance(prompt, str) else numbers.dtype
        raise KindError(f"{call}: {name} must be an Int tensor of tokens, or a list of integers, got {kind}")
    return tensor(numbers.astype(np.int64), device="numpy")


def _check(call: str, name: str, prompt: Tensor[Any, Any, Any], vocabulary: int, context: int) -> None:
    if prompt.kind is not Int:
        raise KindError(
            f"{call}: {name} must be an Int tensor of tokens, got a {prompt.kind.__name__} tensor; see phlox.tensor"
        )
    if prompt.ndim not in (1, 2) or not prompt.shape[-1] or not prompt.shape[0]:
        raise ShapeError(f"{call}: {name} must be [batch, n] or [n], with at least one token, got shape {prompt.shape}")
    if prompt.shape[-1] > context:
        raise ShapeError(
            f"{call}: {name} has {prompt.shape[-1]} tokens, more than the context of {context}; give only its end, "
            f"prompt[..., -{context}:]"
        )
    try:
        prompt.backend.check_indices(prompt.primitive, vocabulary, from_end=False)
    except IndexRangeError:
        raise IndexRangeError(
            f"{call}: {name} has tokens from {int(prompt.min())} to {int(prompt.max())}; "
            f"the tokens of this model are 0 to {vocabulary - 1}"
        ) from None

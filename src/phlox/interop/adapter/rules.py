"""The rules of an adapter: which entries of theirs correspond to which of ours, and in what layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from phlox.errors import RecordError
from phlox.interop.adapter.layout import (
    Converted,
    Layout,
    Parts,
    Reversed,
    Same,
    ShapeFunction,
    Then,
    Transposed,
    ratio_of,
)
from phlox.interop.adapter.pattern import Pattern
from phlox.record import LazyTensor, Record, TensorEntry

_SAME = Same()


@dataclass(frozen=True, slots=True)
class Rule:
    """Entries of theirs that correspond to entries of ours. Created by `rename`, `split`, `ignore` and the others.

    A rule without entries of theirs (or of ours) describes entries that only one side has. `constant` is added to that
    side, if it is given.
    """

    theirs: tuple[Pattern, ...]
    ours: tuple[Pattern, ...]
    layout: Layout = _SAME
    constant: TensorEntry | None = None

    def __post_init__(self) -> None:
        patterns = [*self.theirs, *self.ours]
        first = patterns[0]
        for other in patterns[1:]:
            if other.wildcards != first.wildcards:
                raise RecordError(
                    f"{first.text!r} and {other.text!r} do not have the same wildcards in the same order, "
                    "so what they match cannot be carried over"
                )
        texts = {pattern.text for pattern in self.theirs}, {pattern.text for pattern in self.ours}
        if sum(map(len, texts)) != len(patterns):
            raise RecordError(f"the rule for {first.text!r} names an entry twice")
        if self.constant is not None and first.wildcards:
            raise RecordError(f"{first.text!r}: an entry that is added needs a path without wildcards")

    def under(self, theirs: str, ours: str) -> Rule:
        """This rule for entries below these prefixes."""
        return Rule(
            tuple(pattern.under(theirs) for pattern in self.theirs),
            tuple(pattern.under(ours) for pattern in self.ours),
            self.layout,
            self.constant,
        )

    def is_default(self, entry: object) -> bool:
        """Whether `entry` may be omitted: its rule drops it, or its elements equal `constant`; reads them."""
        if self.constant is None:
            return True
        ours = self.constant.tensor
        if not isinstance(entry, TensorEntry) or entry.tensor.shape != ours.shape:
            return False
        return bool(np.array_equal(entry.tensor.read(), ours.read()))


def rename(theirs: str, ours: str) -> Rule:
    """The same entry under another name, for tensors and plain values.

    >>> rename("transformer.h.*.ln_1.weight", "blocks.*.norm_1.gamma").ours[0].text
    'blocks.*.norm_1.gamma'
    """
    return Rule((Pattern(theirs),), (Pattern(ours),))


def transpose(theirs: str, ours: str, axes: Sequence[int] | None = None) -> Rule:
    """Ours is theirs transposed: the two axes of a matrix, or as `numpy.transpose(theirs, axes)`.

    >>> transpose("fc.weight", "head.weight").layout
    Transposed(axes=None)
    """
    if axes is not None and sorted(axes) != list(range(len(axes))):
        raise RecordError(f"{theirs!r}: axes={tuple(axes)} are not the numbers from 0 to {len(axes) - 1} in some order")
    return Rule((Pattern(theirs),), (Pattern(ours),), Transposed(None if axes is None else tuple(axes)))


def split(
    theirs: str, ours: Sequence[str], *, axis: int = 0, sizes: Sequence[int] | None = None, transposed: bool = False
) -> Rule:
    """One tensor of theirs is several of ours, as in fused projections. Writing joins them.

    Args:
        theirs: the tensor to split.
        ours: its parts, in their order along the axis.
        axis: the axis of theirs to split.
        sizes: the sizes of the parts along it, or any numbers in the same ratio: `(4, 1, 1)` if four query heads share
            one head of keys and values. Equal by default.
        transposed: whether the parts of ours are transposed matrices.
    """
    parts: Layout = Parts(axis, ratio_of(sizes, len(ours), repr(theirs)))
    layout = Then(parts, Transposed()) if transposed else parts
    return Rule((Pattern(theirs),), tuple(Pattern(part) for part in ours), layout)


def join(
    theirs: Sequence[str], ours: str, *, axis: int = 0, sizes: Sequence[int] | None = None, transposed: bool = False
) -> Rule:
    """Several tensors of theirs are one of ours. Writing splits it.

    Args:
        theirs: the parts, in their order along the axis.
        ours: the whole.
        axis: the axis of theirs along which they are joined.
        sizes: the sizes of the parts along it, or any numbers in the same ratio. Equal by default.
        transposed: whether the whole is transposed after joining.
    """
    parts: Layout = Reversed(Parts(axis, ratio_of(sizes, len(theirs), repr(ours))))
    layout = Then(parts, Transposed()) if transposed else parts
    return Rule(tuple(Pattern(part) for part in theirs), (Pattern(ours),), layout)


def convert(
    theirs: str,
    ours: str,
    forward: Callable[[Any], Any],
    backward: Callable[[Any], Any] | None = None,
    *,
    shape: ShapeFunction | None = None,
    shape_back: ShapeFunction | None = None,
) -> Rule:
    """Ours is `forward(theirs)`, theirs is `backward(ours)`: arrays to arrays of the same dtype.

    `shape` computes the shape of the result from that of the input, and `shape_back` does so for `backward`. By default
    the shape does not change. Without `backward` the entry cannot be written.
    """
    return Rule((Pattern(theirs),), (Pattern(ours),), Converted(forward, backward, shape, shape_back))


def ignore(theirs: str, *, written: Any = None) -> Rule:
    """Entries of theirs that ours does not need: dropped when read. If the array `written` is given, it is written."""
    return Rule((Pattern(theirs),), (), constant=_constant(written, theirs))


def drop(ours: str) -> Rule:
    """Entries of ours that theirs does not need: not expected when read, and not written."""
    return Rule((), (Pattern(ours),))


def default(ours: str, value: Any) -> Rule:
    """An entry of ours that theirs lacks, or may lack: the array `value`, unless another rule provides it.

    If no other rule writes the entry, theirs has no place for it. So it must have this value when it is written.
    """
    return Rule((), (Pattern(ours),), constant=_constant(value, ours))


def _constant(value: Any, path: str) -> TensorEntry | None:
    if value is None:
        return None
    entry = Record({"value": value if isinstance(value, LazyTensor) else LazyTensor.from_array(value, path)})["value"]
    assert isinstance(entry, TensorEntry)
    return entry

"""`Adapter`: between somebody else's record and one of ours, both ways, told in rules.

Nothing is read: a transposed, split or joined tensor is a view of lazy ones. A rule names entries by patterns, in which
`*` stands for one segment of a path, or a part of one, and `**` for any number of segments; what they stand for is
carried over in order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from phlox.interop.adapter.engine import adapted, assigned, reading, writing
from phlox.interop.adapter.rules import Rule
from phlox.record import Record


@final
class Adapter:
    """Rules by which a record of theirs becomes one of ours (`read`), and one of ours theirs (`write`).

    Args:
        rules: made by `rename`, `transpose`, `split`, `join`, `convert`, `ignore`, `drop` and `default`. No two may
            know the same entry.

    >>> import numpy as np
    >>> from phlox.interop.adapter import ignore, rename, split
    >>> adapter = Adapter([
    ...     rename("h.*.ln.weight", "blocks.*.norm.gamma"),
    ...     split("h.*.c_attn.weight", ["blocks.*.query", "blocks.*.key", "blocks.*.value"], axis=1),
    ...     ignore("h.*.mask"),
    ... ])
    >>> theirs = Record({"h.0.ln.weight": np.ones(4), "h.0.c_attn.weight": np.ones((4, 12)), "h.0.mask": np.ones(1)})
    >>> ours = adapter.read(theirs)
    >>> ours.paths(), ours["blocks.0.key"].tensor.shape
    (['blocks.0.norm.gamma', 'blocks.0.query', 'blocks.0.key', 'blocks.0.value'], (4, 4))
    >>> adapter.write(ours)
    Record: 2 entries, 416 bytes of tensors
    path               kind   shape    dtype
    h.0.ln.weight      float  (4,)     float64
    h.0.c_attn.weight  float  (4, 12)  float64
    """

    __slots__ = ("_stages",)

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self._stages: tuple[tuple[Rule, ...], ...] = (tuple(rules),)

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules; of an adapter that is composed of several, one after the other, those of all."""
        return tuple(rule for stage in self._stages for rule in stage)

    def read(self, record: Record, *, strict: bool = True) -> Record:
        """The record of ours that this one of theirs is.

        Tensors are lazy views of theirs. What has one tensor under several names still has, where the names become
        tensors of one layout. Metadata stays; so does the id of a tensor that is one tensor in both.

        Raises RecordError with all that is amiss: entries that no rule knows, with the names that may have been meant,
        or two rules know; parts without their others; shapes that do not allow what the rule does. With `strict=False`
        entries that no rule knows, and parts without their others, are left as they are, under their own names.
        """
        for stage in self._stages:
            record = adapted(record, reading(stage), strict)
        return record

    def write(self, record: Record, *, strict: bool = True) -> Record:
        """The record of theirs that this one of ours is; the inverse of `read`, which see."""
        for stage in reversed(self._stages):
            record = adapted(record, writing(stage), strict)
        return record

    def under(self, theirs: str, ours: str | None = None) -> Adapter:
        """This adapter for what lies below a prefix in theirs, and below another (by default the same) in ours.

            "" is no prefix. To put it beside other rules, give its `rules` to an `Adapter` with them.

            >>> from phlox.interop.adapter import rename
        >>> Adapter([rename("ln.weight", "norm.gamma")]).under("model", "").rules[0].theirs[0].text
            'model.ln.weight'
        """
        ours = theirs if ours is None else ours
        result = Adapter()
        result._stages = tuple(
            tuple(rule.under(ours if i else theirs, ours) for rule in stage) for i, stage in enumerate(self._stages)
        )
        return result

    def __or__(self, other: Adapter) -> Adapter:
        """What the first gives, adapted by the second; writing goes the other way."""
        result = Adapter()
        result._stages = (*self._stages, *other._stages)
        return result

    @staticmethod
    def chain(*adapters: Adapter) -> Adapter:
        """`first | second | ...`; for none, an adapter that knows nothing."""
        first, *others = adapters or (Adapter(),)
        for other in others:
            first = first | other
        return first

    def names(self, record: Record) -> dict[str, tuple[str, ...]]:
        """For each path of ours that `read` would give, the paths of theirs that it comes from.

            >>> from phlox.interop.adapter import rename
        >>> Adapter([rename("ln.weight", "norm.gamma")]).names(Record({"ln.weight": 1}))
            {'norm.gamma': ('ln.weight',)}
        """
        origin: dict[str, tuple[str, ...]] = {path: (path,) for path in (*record, *record.aliases)}
        for stage in self._stages:
            ways = reading(stage)
            found = assigned(record, ways)
            origin = {
                target: tuple(dict.fromkeys(first for path in group.paths for first in origin.get(path, (path,))))
                for group in found.groups
                if len(group.paths) == len(group.way.sources)
                for target in group.targets()
            }
            record = adapted(record, ways, strict=False)
        return origin

    def unused(self, record: Record) -> list[str]:
        """The patterns of theirs that nothing in this record of theirs matches: optional ones, or misspelt ones."""
        unused: list[str] = []
        for stage in self._stages:
            ways = reading(stage)
            used = {id(group.way) for group in assigned(record, ways).groups}
            unused += [pattern.text for way in ways if id(way) not in used for pattern in way.sources]
            record = adapted(record, ways, strict=False)
        return unused

    def __repr__(self) -> str:
        return f"Adapter of {len(self.rules)} rules"

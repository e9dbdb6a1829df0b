"""`Adapter`: rules that convert another library's record into one of Phlox, and back.

No tensor is read: a transposed, split or joined tensor is a view of lazy ones. A rule selects entries by patterns.
`*` matches one segment of a path, or a part of one, and `**` any number of segments. The matched parts are carried
over in order. Throughout, `theirs` is the other library's record, and `ours` is Phlox's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from phlox.interop.adapter.engine import adapted, assigned, reading, writing
from phlox.interop.adapter.rules import Rule
from phlox.record import Record


@final
class Adapter:
    """An adapter converts records between another library's names and layouts ("theirs") and Phlox's ("ours").

    `read` converts from theirs to ours, `write` from ours to theirs.

    Args:
        rules: created by `rename`, `transpose`, `split`, `join`, `convert`, `ignore`, `drop` and `default`. No two may
            match the same entry.

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
    Record: 2 entries, 416 B of tensors
      path               type     shape or value  bytes
      h.0.ln.weight      float64  (4,)             32 B
      h.0.c_attn.weight  float64  (4, 12)         384 B
    """

    __slots__ = ("_stages",)

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self._stages: tuple[tuple[Rule, ...], ...] = (tuple(rules),)

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules; for a composed adapter, those of all its parts in order."""
        return tuple(rule for stage in self._stages for rule in stage)

    def read(self, record: Record, *, strict: bool = True) -> Record:
        """Convert a record of theirs into one of ours.

        Tensors are lazy views of theirs. A tensor with several names stays one tensor, if the rules give all its names
        the same layout. Metadata is kept, and so is the id of a tensor that corresponds to exactly one tensor.

        Raises RecordError with all problems at once: entries that match no rule, with suggestions, or match two rules;
        parts of a whole whose other parts are missing; shapes that do not fit a rule. With `strict=False`, entries that
        match no rule and incomplete parts are kept unchanged, under their own names.
        """
        for stage in self._stages:
            record = adapted(record, reading(stage), strict)
        return record

    def write(self, record: Record, *, strict: bool = True) -> Record:
        """Convert a record of ours into one of theirs: the inverse of `read`."""
        for stage in reversed(self._stages):
            record = adapted(record, writing(stage), strict)
        return record

    def under(self, theirs: str, ours: str | None = None) -> Adapter:
        """This adapter for entries below a prefix in theirs, and below another (by default the same) in ours.

        "" means no prefix. To combine it with other rules, pass its `rules` to an `Adapter` together with them.

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
        """An adapter that applies the first and then the second; `write` applies them in reverse order."""
        result = Adapter()
        result._stages = (*self._stages, *other._stages)
        return result

    @staticmethod
    def chain(*adapters: Adapter) -> Adapter:
        """`first | second | ...`; without arguments, an adapter without rules."""
        first, *others = adapters or (Adapter(),)
        for other in others:
            first = first | other
        return first

    def names(self, record: Record) -> dict[str, tuple[str, ...]]:
        """For each path of ours that `read` would return, the paths of theirs that it is made from.

        >>> from phlox.interop.adapter import rename
        >>> Adapter([rename("ln.weight", "norm.gamma")]).names(Record({"ln.weight": 1}))
        {'norm.gamma': ('ln.weight',)}
        """
        origin: dict[str, tuple[str, ...]] = {path: (path,) for path in (*record, *record.aliases)}
        for stage in self._stages:
            ways = reading(stage)
            assignment = assigned(record, ways)
            origin = {
                target: tuple(dict.fromkeys(first for path in group.paths for first in origin.get(path, (path,))))
                for group in assignment.groups
                if len(group.paths) == len(group.way.sources)
                for target in group.targets()
            }
            record = adapted(record, ways, strict=False)
        return origin

    def unused(self, record: Record) -> list[str]:
        """The patterns of theirs that match nothing in this record, which are optional or misspelt."""
        unused: list[str] = []
        for stage in self._stages:
            ways = reading(stage)
            used = {id(group.way) for group in assigned(record, ways).groups}
            unused += [pattern.text for way in ways if id(way) not in used for pattern in way.sources]
            record = adapted(record, ways, strict=False)
        return unused

    def __repr__(self) -> str:
        return f"Adapter of {len(self.rules)} rules"

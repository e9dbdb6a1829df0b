"""Which tests are in `make test`: all but those marked `full`, which only `make test-all` runs.

Of a table, the marker `covering` says by one rule which cells are in both. Its factors are the operation of a row; the
name of a case up to a comma; the engine, precision and decorator of a backend; and any other value itself.
`covering(2)` keeps as few cells as hold every pair of values of two factors that some cell has, such as each operation
on each engine; `covering(1)` as few as hold every value. The other cells are marked `full`. Names of arguments after
the number: only these are factors.

`every(n)` keeps every n-th cell of a table whose cells are alike.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any
from zlib import crc32

import pytest

from phlox.backend import Backend
from phlox.testing.conformance.row import Row


def factors_of(value: Any) -> tuple[Any, ...]:
    """What a parameter says about its cell."""
    if isinstance(value, Row):
        return (str(value).split()[0],)
    if isinstance(value, Backend):
        *decorators, engine = re.findall(r"(\w+)\(", repr(value))
        return engine, value.float_element, (*decorators, "recompute" in repr(value))
    if isinstance(value, list) and value and isinstance(value[0], Backend):
        return (factors_of(value[0])[0],)
    if isinstance(value, (str, int, float, bool, tuple, type(None))):
        return (repr(value),)
    name = getattr(value, "name", None)
    return (name.partition(",")[0] if isinstance(name, str) else id(value),)


def covered(cells: Sequence[tuple[Any, ...]], strength: int) -> list[bool]:
    """Is each cell one of those that hold every combination of so many factors?

    The greediest first: what adds most. Not the fewest there are, which nobody can find, but nearly.

    >>> covered([("add", "numpy"), ("add", "jax"), ("sub", "numpy"), ("sub", "jax")], 1)
    [True, False, False, True]
    """
    most = min(strength, len(cells[0]))
    held = [[tuple((i, cell[i]) for i in places) for places in combinations(range(len(cell)), most)] for cell in cells]
    seen: set[Any] = set()
    kept = [False] * len(cells)
    for wanted in range(max(map(len, held)), 0, -1):
        for n, combined in enumerate(held):
            if not kept[n] and sum(one not in seen for one in combined) >= wanted:
                kept[n] = True
                seen.update(combined)
    return kept


def mark_cells(items: Iterable[pytest.Item]) -> None:
    """Mark the cells that are only in the full run."""
    counts: defaultdict[str, int] = defaultdict(int)
    tables: defaultdict[str, list[tuple[pytest.Function, pytest.Mark]]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("full") is not None or not isinstance(item, pytest.Function):
            continue
        test = item.nodeid.partition("[")[0]
        if (mark := item.get_closest_marker("covering")) is not None:
            tables[test].append((item, mark))
        elif (mark := item.get_closest_marker("every")) is not None:
            if counts[test] % mark.args[0]:
                item.add_marker(pytest.mark.full)
            counts[test] += 1
    for table in tables.values():
        # In an order that has nothing to do with the table's, or all would be of its first engine and precision.
        table.sort(key=lambda cell: crc32(cell[0].nodeid.encode()))
        strength, *names = table[0][1].args
        cells = [
            tuple(
                f
                for name, value in item.callspec.params.items()
                if not names or name in names
                for f in factors_of(value)
            )
            for item, _ in table
        ]
        for (item, _), kept in zip(table, covered(cells, strength), strict=True):
            if not kept:
                item.add_marker(pytest.mark.full)

"""The table of all operations; see `row.Row`. `tests/tensor/test_coverage.py` fails if one is missing."""

from __future__ import annotations

from tests.tensor.rows import arithmetic, nn, reduction, shape, whole
from tests.tensor.rows.row import Row

ROWS: list[Row] = [*arithmetic.ROWS, *whole.ROWS, *reduction.ROWS, *shape.ROWS, *nn.ROWS]
COMPOSITES: list[Row] = nn.ROWS

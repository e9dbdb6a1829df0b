"""The table of all operations; see `phlox.testing.conformance.row.Row`."""

from __future__ import annotations

from phlox.testing.conformance.row import Row
from phlox.testing.conformance.rows import (
    activation,
    arithmetic,
    attention,
    conv,
    creation,
    indexing,
    linalg,
    loss,
    nn,
    norm,
    pooling,
    recurrent,
    reduction,
    sampling,
    shape,
    signal,
    sorting,
    special,
    update,
    whole,
)

MODULES = (
    arithmetic,
    special,
    activation,
    whole,
    reduction,
    shape,
    creation,
    indexing,
    sorting,
    linalg,
    signal,
    nn,
    norm,
    loss,
    attention,
    recurrent,
    conv,
    pooling,
    sampling,
    update,
)
ROWS: list[Row] = [row for module in MODULES for row in module.ROWS]
COMPOSITES: list[Row] = [row for m in (nn, norm, loss, attention, recurrent, conv, pooling, sampling) for row in m.ROWS]

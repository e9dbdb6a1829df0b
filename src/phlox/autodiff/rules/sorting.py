"""Sorting: a permutation of the elements, whose transpose is the inverse permutation."""

from __future__ import annotations

from typing import Any

from phlox.autodiff.build import General, Rule
from phlox.backend.contract import Backend
from phlox.backend.contract.types import Array


def _sort_forward(B: Backend, x: Array, axis: int, descending: bool) -> tuple[Array, Any]:
    order = B.float_argsort(x, axis, descending)
    return B.take_along_axis(x, order, axis), order


SORTING: dict[str, Rule] = {
    "float_sort": General(
        1,
        _sort_forward,
        lambda B, order, g, needed, axis, descending: (B.float_take_along_axis_adjoint(g, order, axis, B.shape(g)),),
    ),
}

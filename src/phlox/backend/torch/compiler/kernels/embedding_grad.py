"""The gradient of an embedding on a CPU, in a program as a custom operator.

Inductor would emit atomic additions, one by one and in no order; PyTorch's kernel adds whole rows, each in order.
"""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from typing import Any

import torch

from phlox.backend.contract.types import Array
from phlox.backend.torch import compat

NOWHERE = -1
"""The position for a row that is left out."""


def add_rows(g: Array, positions: Array, count: int) -> Array:
    """The rows of g [..., width] summed by position: [count, width]."""
    return compat.EMBEDDING_BACKWARD.value(g, positions, count, NOWHERE, False)


def _on_fakes(g: Array, positions: Array, count: int) -> Array:
    return g.new_empty((count, g.shape[-1]))


_library = torch.library.Library("phlox", "FRAGMENT")
_library.define("add_rows(Tensor g, Tensor positions, int count) -> Tensor")
_library.impl("add_rows", add_rows, "CPU")
torch.library.register_fake("phlox::add_rows", _on_fakes, lib=_library)
operations: Any = torch.ops.phlox

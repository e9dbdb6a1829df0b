"""Shapes on PyTorch."""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import torch

from phlox.backend.contract import Backend
from phlox.backend.contract.types import native


class Shaping(Backend):
    """See `phlox.backend.contract.shape`."""

    roll = native(torch.roll)
    tile = native(torch.tile)

    windows = native(torch.Tensor.unfold)

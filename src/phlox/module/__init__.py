"""Floor 5: modules, whose parameters are the only thing that is saved, and which are PyTrees."""

from __future__ import annotations

from phlox.module.gradients import GradientsParams
from phlox.module.module import Module
from phlox.module.param import Initializer, Param, ParamId, no_initializers

__all__ = ["GradientsParams", "Initializer", "Module", "Param", "ParamId", "no_initializers"]

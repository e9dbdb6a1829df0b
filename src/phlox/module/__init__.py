"""Floor 5: modules, whose parameters are the only thing that is saved, and which are PyTrees."""

from __future__ import annotations

from phlox.module.deferred import Initializer, no_initializers
from phlox.module.gradients import GradientsParams
from phlox.module.module import Module
from phlox.module.param import Param, ParamId
from phlox.module.reference import Reference, reference
from phlox.module.stacking import stack_modules, unstack_modules

__all__ = [
    "GradientsParams", "Initializer", "Module", "Param", "ParamId", "Reference", "no_initializers",
    "reference", "stack_modules", "unstack_modules",
]  # fmt: skip

"""Floor 5: modules, whose parameters are the only thing that is saved, and which are PyTrees."""

from __future__ import annotations

from phlox.lazy import lazily, lend
from phlox.module.buffer import Buffer
from phlox.module.deferred import Initializer, no_initializers
from phlox.module.gradients import GradientsParams
from phlox.module.module import Module
from phlox.module.param import Param, ParamId
from phlox.module.partition import combine, partition
from phlox.module.reference import Reference, reference
from phlox.module.reparameterization import Reparameterization, merge, reparameterize
from phlox.module.stacking import stack_modules, unstack_modules
from phlox.module.structure import Structure

lend(["phlox.module.fields"], Structure=Structure)

__all__ = [
    "Buffer", "GradientsParams", "Initializer", "Module", "Param", "ParamId", "Reference", "Reparameterization",
    "combine", "merge", "no_initializers", "partition", "reference", "reparameterize", "stack_modules",
    "unstack_modules",
]  # fmt: skip

__getattr__, __dir__ = lazily(__name__, {})

"""Floor 5: modules, whose parameters are the only thing that is saved, and which are PyTrees."""

from __future__ import annotations

from phlox.lazy import lazily, lend
from phlox.module.deferred import Initializer, no_initializers
from phlox.module.gradients import GradientsParams
from phlox.module.module import Module
from phlox.module.param import Param, ParamId
from phlox.module.stacking import stack_modules, unstack_modules
from phlox.module.structure import Structure
from phlox.module.template import Aux

lend(["phlox.module.fields"], Structure=Structure, Aux=Aux)

__all__ = [
    "GradientsParams", "Initializer", "Module", "Param", "ParamId", "no_initializers", "stack_modules",
    "unstack_modules",
]  # fmt: skip

__getattr__, __dir__ = lazily(__name__, {})

"""The derivative rules, as tables by family. Every table maps the name of an operation to its rule."""

from __future__ import annotations

from phlox.autodiff.build import Rule
from phlox.autodiff.rules.arithmetic import ARITHMETIC
from phlox.autodiff.rules.constant import CONSTANT
from phlox.autodiff.rules.linear import LINEAR
from phlox.autodiff.rules.nn import NN
from phlox.autodiff.rules.reduction import REDUCTION
from phlox.autodiff.rules.shape import SHAPE

RULES: dict[str, Rule] = {**ARITHMETIC, **REDUCTION, **SHAPE, **LINEAR, **NN}

__all__ = ["CONSTANT", "RULES"]

"""The derivative rules, as tables by family. Every table maps the name of an operation to its rule."""

from __future__ import annotations

from phlox.autodiff.build import Rule
from phlox.autodiff.rules.arithmetic import ARITHMETIC
from phlox.autodiff.rules.constant import CONSTANT
from phlox.autodiff.rules.conv import CONV
from phlox.autodiff.rules.indexing import INDEXING
from phlox.autodiff.rules.linalg import LINALG
from phlox.autodiff.rules.nn import NN
from phlox.autodiff.rules.reduction import REDUCTION
from phlox.autodiff.rules.shape import SHAPE
from phlox.autodiff.rules.signal import SIGNAL
from phlox.autodiff.rules.sorting import SORTING
from phlox.autodiff.rules.special import SPECIAL

RULES: dict[str, Rule] = {
    **ARITHMETIC, **SPECIAL, **REDUCTION, **SHAPE, **INDEXING, **SORTING, **LINALG, **SIGNAL, **CONV, **NN,
}  # fmt: skip

__all__ = ["CONSTANT", "RULES"]

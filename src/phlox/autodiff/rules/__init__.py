"""The derivative rules, as tables by family. Every table maps the name of an operation to its rule."""

from __future__ import annotations

from phlox.autodiff.build import Rule
from phlox.autodiff.rules.arithmetic import ARITHMETIC
from phlox.autodiff.rules.constant import CONSTANT
from phlox.autodiff.rules.conv import CONV
from phlox.autodiff.rules.decompositions import DECOMPOSITIONS
from phlox.autodiff.rules.indexing import INDEXING
from phlox.autodiff.rules.linalg import LINALG
from phlox.autodiff.rules.nn import NN
from phlox.autodiff.rules.reduction import REDUCTION
from phlox.autodiff.rules.shape import SHAPE
from phlox.autodiff.rules.signal import SIGNAL
from phlox.autodiff.rules.sorting import SORTING
from phlox.autodiff.rules.special import FUNCTIONS, SPECIAL

RULES: dict[str, Rule] = {
    **ARITHMETIC, **SPECIAL, **REDUCTION, **SHAPE, **INDEXING, **SORTING, **LINALG, **SIGNAL, **CONV, **NN,
}  # fmt: skip

_ONE_STEP = frozenset({
    "float_sum", "float_mean", "float_cumsum", "float_windows_adjoint", "float_matmul", "float_dot_general",
    "float_sinh", "float_cosh", "float_sinc",
})  # fmt: skip

WIDE: frozenset[str] = frozenset({
    *REDUCTION, *LINALG, *FUNCTIONS, "float_scatter", "rfft", "irfft", "float_pow", "float_rsqrt", "float_reciprocal",
    "float_fmod", "float_mod", "float_tan", "float_log1p", "float_expm1", "float_log2", "float_log10",
}) - _ONE_STEP - DECOMPOSITIONS.keys()  # fmt: skip
"""Operations whose derivatives take several steps or accumulate: at half precision they are computed in f32.

The engines themselves choose the precision of `NN`, `CONV` and products of matrices. The rules of decompositions divide
by differences of singular values, and recognise equal values by their rounding in the original precision.
"""

__all__ = ["CONSTANT", "RULES", "WIDE"]

"""Integers of 64 bits on backends whose integers have 32: they are kept, or refused where they do not fit.

Where the values are known, nodes that compute with integers alone run on the host, in 64 bits, and their results stay
there until a node needs them on the device. In a compiled function, a result that does not fit becomes the smallest
integer, like a value that is read out of range; within `phlox.debug.checks()` it is an error.
"""

from __future__ import annotations

from typing import Any

from phlox.backend import Bool, Int
from phlox.backend.contract.backend import without_autodiff
from phlox.backend.tracing.checks import checks_are_on
from phlox.interop.onnx.elements import INT64, UINT32, UINT64, host, is_host
from phlox.interop.onnx.node import Node
from phlox.tensor import Tensor, where

_WIDE = frozenset({INT64, UINT32, UINT64})
_GROWING = frozenset({
    "Abs", "Add", "CumProd", "CumSum", "Einsum", "Gemm", "MatMul", "Mul", "Neg", "Pow", "ReduceL1", "ReduceProd",
    "ReduceSum", "ReduceSumSquare", "Sub",
})  # fmt: skip
"""Operators whose result may be larger than their operands, and which compute with floats as well. (`BitShift` and sums
by `ScatterElements` and `ScatterND` do not: in a compiled function their integers wrap.)"""


def on_host(node: Node, operands: list[Any]) -> bool:
    """Whether this node runs on the host; if so, this moves its operands there."""
    if node.element not in _WIDE or not (tensors := _narrow(operands)):
        return False
    if any(x.backend.is_traced(x.primitive) for x in tensors):
        return False
    operands[:] = [host(x.numpy()) if any(x is narrow for narrow in tensors) else x for x in operands]
    return True


def checked(node: Node, compute: Any, operands: list[Any], result: Any) -> Any:
    """The result of a node; in a trace, integers that do not fit are replaced or raise, see above."""
    if node.element not in _WIDE or node.operator not in _GROWING or not (tensors := _narrow(operands)):
        return result
    if not any(x.backend.is_traced(x.primitive) for x in tensors):
        return result
    # At f32 an exact result and one that has wrapped differ by about 2**32, far more than floats round.
    exact = compute(node, *[x.to_full_precision().float() if isinstance(x, Tensor) else x for x in operands])
    lost = (exact - result.to_full_precision().float()).abs() > 2.0**31
    lost = lost.to_device(result.device)
    if checks_are_on():
        where(lost, exact.to_device(result.device), 0.0).int()  # this raises for values that no integer can hold
    return where(lost, -(2**31), result)


def _narrow(operands: list[Any]) -> list[Any]:
    """The operands on a device with integers of 32 bits; none of them unless all are integers or booleans."""
    tensors: list[Any] = [x for x in operands if isinstance(x, Tensor)]
    if any(x.kind not in (Int, Bool) for x in tensors) or any(isinstance(x, list) for x in operands):
        return []
    return [x for x in tensors if not is_host(x) and without_autodiff(x.backend).int_element != "i64"]

"""What to say when an operation fails: the operation, the operands, and what would be right.

Only ever called once something has gone wrong, so nothing here costs a successful operation anything.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from phlox.errors import BackendError, DeviceError, KindError, PhloxError, RangeError, ShapeError
from phlox.tensor.dispatch import Ops


def mixed(name: str, lhs: Ops, rhs: Ops) -> PhloxError:
    """Two tensors that cannot meet."""
    if lhs.backend is not rhs.backend:
        return BackendError(
            f"{name}: the operands are on different backends, {lhs.backend!r} and {rhs.backend!r}; "
            f"move one of them with .to_device(...)"
        )
    kinds = {lhs.kind.__name__, rhs.kind.__name__}
    way = ".float()" if "Float" in kinds else ".int()"
    other = "Int" if kinds == {"Float", "Int"} else "Bool"
    mine, theirs = lhs.kind.__name__, rhs.kind.__name__
    return KindError(f"{name}: {mine} and {theirs} tensors do not mix; convert the {other} operand with {way}")


def describe(ops: Ops, primitive: Any) -> str:
    """A value in a few words."""
    try:
        return f"{ops.kind.__name__} {ops.backend.shape(primitive)}"
    except Exception:
        return repr(primitive)


def failure(name: str, ops: Ops, operands: tuple[Any, ...], error: Exception) -> Exception:
    """The exception to raise in place of `error`, which `ops.<name>(*operands)` raised."""
    backend = ops.backend
    if isinstance(error, (MemoryError, NotImplementedError)) or backend.is_record_error(error):
        return error
    given = ", ".join(describe(ops, x) if hasattr(x, "shape") else repr(x) for x in operands)
    if isinstance(error, ZeroDivisionError):
        return ZeroDivisionError(f"{name}({given}): {error}")
    if isinstance(error, OverflowError):
        return RangeError(f"{name}({given}) on {backend!r}: {error}")
    arrays = [x for x in operands if hasattr(x, "shape")]
    if any(backend.is_gone(backend.strip(x)) for x in arrays):
        return ShapeError(
            f"{name}: a tensor was donated to a compiled function and is used up; use what that function returned"
        )
    if isinstance(error, PhloxError):
        return type(error)(f"{name}: {error}")
    devices = {backend.device_of(x) for x in arrays}
    if len(devices) > 1:
        have = " and ".join(sorted(map(str, devices)))
        return DeviceError(f"{name}: the operands are on different devices, {have}; move one with .to_device(...)")
    shapes = [backend.shape(x) for x in arrays]
    if name == "broadcast_to":
        return ShapeError(f"broadcast_to: a tensor of shape {shapes[0]} does not broadcast to {operands[1]}")
    if len(shapes) > 1:
        if name == "matmul":
            if shapes[0][-1:] != shapes[1][-2:][:1]:
                return ShapeError(
                    f"matmul: shapes {shapes[0]} and {shapes[1]} do not fit; "
                    f"the last axis of the left must be as long as the last but one of the right"
                )
            shapes = [shape[:-2] for shape in shapes]
        try:
            np.broadcast_shapes(*shapes)
        except ValueError:
            return ShapeError(f"{name}: shapes {' and '.join(map(str, shapes))} do not broadcast")
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return BackendError(f"{name}({given}) on {backend!r}: {reason}")

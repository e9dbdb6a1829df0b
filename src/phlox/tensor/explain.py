"""What to say when an operation fails: the operation, the operands, and what would be right.

Only ever called once something has gone wrong, so nothing here costs a successful operation anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

import numpy as np

from phlox.backend import Bool, Float, Int
from phlox.backend.contract.backend import engine_of
from phlox.backend.programs import left_over, used_up
from phlox.errors import BackendError, DeviceError, KindError, PhloxError, RangeError, ShapeError, UnsupportedError
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


def is_array(operand: Any) -> bool:
    """Is this operand an array of some backend, whatever it may be? All else that operations are given is Python's."""
    return not isinstance(operand, (int, float, complex, str, tuple, list, dict, slice, type, type(None)))


def _arrays_in(operands: Iterable[Any]) -> Iterator[Any]:
    for operand in operands:
        if isinstance(operand, (tuple, list)):
            yield from _arrays_in(cast("list[Any]", operand))
        elif is_array(operand):
            yield operand


def describe(ops: Ops, primitive: Any) -> str:
    """A value in a few words."""
    try:
        return f"{ops.kind.__name__} {ops.backend.shape(primitive)}"
    except Exception:
        return repr(primitive)


def failure(name: str, ops: Ops, operands: tuple[Any, ...], error: Exception) -> Exception:
    """The exception to raise in place of `error`, which `ops.<name>(*operands)` raised."""
    backend = ops.backend
    if isinstance(error, MemoryError):
        return error
    for array in _arrays_in(operands):
        own = backend.strip(array)
        if engine_of(backend).is_left_over(own):
            return left_over(f"{name}: a tensor", backend.program_of(array))
        if backend.is_gone(own):
            return used_up(f"{name}: a tensor was", own)
    if backend.is_record_error(error):
        return error
    given = ", ".join(describe(ops, x) if is_array(x) else repr(x) for x in operands)
    if isinstance(error, NotImplementedError):
        return UnsupportedError(f"{name}({given}) is not supported on {backend!r}: {first_line(error)}")
    if isinstance(error, ZeroDivisionError):
        return ZeroDivisionError(f"{name}({given}): {error}")
    if isinstance(error, OverflowError):
        return RangeError(f"{name}({given}) on {backend!r}: {error}")
    arrays = [x for x in operands if is_array(x)]
    if isinstance(error, PhloxError):
        return type(error)(f"{name}: {error}")
    devices = {str(backend.device_of(x)) for x in arrays}
    if len(devices) > 1:
        have = " and ".join(sorted(devices))
        return DeviceError(
            f"{name}: the operands are on different devices, {have}; "
            "move one with .to_device(...), to the device of the other"
        )
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
    return BackendError(f"{name}({given}) on {backend!r}: {first_line(error)}")


def first_line(error: Exception) -> str:
    """What an error says, in one line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def shown(value: Any) -> str:
    """A value in a few words, on one line."""
    if hasattr(value, "_ops"):
        try:
            return f"{value.kind.__name__} {value.shape}"
        except Exception:
            return f"a {value.kind.__name__} tensor"
    if isinstance(value, np.ndarray):
        array = cast("np.ndarray[Any, Any]", value)
        return f"a NumPy array of shape {array.shape} (make it a tensor with phlox.tensor)"
    if isinstance(value, (tuple, list)):
        parts = cast("list[Any]", value)
        inside = ", ".join([shown(part) for part in parts[:4]] + ["..."] * (len(parts) > 4))
        return f"({inside})" if isinstance(value, tuple) else f"[{inside}]"
    if any(value is kind for kind in (Float, Int, Bool)):
        return value.__name__
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"a {type(value).__name__}"

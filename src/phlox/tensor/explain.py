"""Error messages of failed operations: the operation, the operands, and the remedy.

This runs only after an error, so it costs a successful operation nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, cast

import numpy as np

from phlox.backend import Backend, Bool, Float, Int
from phlox.backend.contract.backend import engine_of
from phlox.backend.out_of_memory import out_of_memory
from phlox.backend.tracing.lifetime_errors import donated, leaked_tracer
from phlox.errors import BackendError, DeviceError, KindError, PhloxError, RangeError, ShapeError, UnsupportedError
from phlox.tensor.dispatch import Ops


def mixed(name: str, lhs: Ops, rhs: Ops) -> PhloxError:
    """The error for two tensors that cannot be operands of one operation."""
    if lhs.backend is not rhs.backend:
        return BackendError(
            f"{name}: the operands are on different backends, {lhs.backend!r} and {rhs.backend!r}; "
            f"move one of them with .to_device(...)"
        )
    kinds = {lhs.kind.__name__, rhs.kind.__name__}
    method = ".float()" if "Float" in kinds else ".int()"
    other = "Int" if kinds == {"Float", "Int"} else "Bool"
    lhs_kind, rhs_kind = lhs.kind.__name__, rhs.kind.__name__
    return KindError(f"{name}: {lhs_kind} and {rhs_kind} tensors do not mix; convert the {other} operand with {method}")


def is_array(operand: Any) -> bool:
    """Is this operand an array of any backend, and not a Python object?"""
    return not isinstance(operand, (int, float, complex, str, tuple, list, dict, slice, type, type(None)))


def _arrays_in(operands: Iterable[Any]) -> Iterator[Any]:
    for operand in operands:
        if isinstance(operand, (tuple, list)):
            yield from _arrays_in(cast("list[Any]", operand))
        elif is_array(operand):
            yield operand


def describe(ops: Ops, primitive: Any) -> str:
    """A short description of an array."""
    try:
        return f"{ops.kind.__name__} {ops.backend.shape(primitive)}"
    except Exception:
        return repr(primitive)


def failure(name: str, ops: Ops, operands: tuple[Any, ...], error: Exception) -> PhloxError | ZeroDivisionError:
    """The exception to raise in place of `error`, which `ops.<name>(*operands)` raised.

    The operands are checked here again, without the engine's message. If they are valid, the fault lies in the engine
    or in Phlox: an error of the engine becomes the cause of a `BackendError`. Any other error (a bug such as
    `KeyError`, or an exception from a signal handler) is raised again unchanged.
    """
    backend = ops.backend
    for array in _arrays_in(operands):
        engine_array = backend.strip(array)
        if not hasattr(engine_array, "dtype"):  # a function, a device or another Python argument
            continue
        if engine_of(backend).is_leaked(engine_array):
            return leaked_tracer(f"{name}: a tensor", backend.trace_of(array))
        if backend.is_donated(engine_array):
            return donated(f"{name}: a tensor was", engine_array)
    if backend.is_trace_error(error):
        raise error
    arguments = ", ".join([_show_operand(ops, x) for x in operands[:_MOST]] + ["..."] * (len(operands) > _MOST))
    no_memory = out_of_memory(f"{name}({arguments})", backend, error)
    if no_memory is not None:
        return no_memory
    if isinstance(error, NotImplementedError):
        return UnsupportedError(f"{name}({arguments}) is not supported on {backend!r}: {first_line(error)}")
    if isinstance(error, FloatingPointError):  # requested by the user, for example by jax.debug_nans
        error.add_note(f"{name}({arguments}) on {backend!r}")
        raise error
    if isinstance(error, ZeroDivisionError):
        return ZeroDivisionError(f"{name}({arguments}): {error}")
    if isinstance(error, OverflowError):
        return RangeError(f"{name}({arguments}) on {backend!r}: {error}")
    if isinstance(error, PhloxError):
        return type(error)(f"{name}: {error}")
    devices = _devices(backend, operands)
    if len(devices) > 1:
        listed = " and ".join(sorted(devices))
        return DeviceError(
            f"{name}: the operands are on different devices, {listed}; "
            "move one of them to the other device with .to_device(...)"
        )
    mismatch = shape_mismatch(ops, name, operands)
    if mismatch is not None:
        return ShapeError(f"{name}: {mismatch}")
    if not backend.is_engine_error(error):
        error.add_note(f"{_INTERNAL}: {name}({arguments}) on {backend!r}")
        raise error
    return BackendError(f"{_INTERNAL}: {name}({arguments}) on {backend!r}: {type(error).__name__}: {first_line(error)}")


_MOST = 8
"""The greatest number of operands that a message shows."""
_INTERNAL = "an error inside Phlox or its engine, not in the arguments"


def _devices(backend: Backend, operands: tuple[Any, ...]) -> set[str]:
    devices: set[str] = set()
    for x in operands:
        with suppress(Exception):
            if is_array(x):
                devices.add(str(backend.device_of(x)))
    return devices


def _show_operand(ops: Ops, x: Any) -> str:
    return describe(ops, x) if is_array(x) else repr(x)


# --- shapes


def shape_mismatch(ops: Ops, name: str, operands: tuple[Any, ...]) -> str | None:
    """Why the operands' shapes do not fit; None if they fit, or if the operation has no shape check."""
    rule = _SHAPES.get(name)
    from phlox.backend.contract.signatures import ELEMENTWISE  # imported only after an error

    if rule is None and (f"{ops.kind.name}_{name}" in ELEMENTWISE or name in ELEMENTWISE):
        rule = _broadcast
    shape = ops.backend.shape
    shapes = [shape(x) if is_array(x) else () for x in operands]
    return None if rule is None else rule(shapes, operands)


Shapes = list[tuple[int, ...]]


def _broadcast(shapes: Shapes, operands: tuple[Any, ...]) -> str | None:
    try:
        np.broadcast_shapes(*shapes)
    except ValueError:
        return f"shapes {' and '.join(map(str, [shape for shape in shapes if shape]))} do not broadcast"
    return None


def _broadcast_to(shapes: Shapes, operands: tuple[Any, ...]) -> str | None:
    shape = tuple(operands[1])
    try:
        fits = np.broadcast_shapes(shapes[0], shape) == shape
    except ValueError:
        fits = False
    return None if fits else f"a tensor of shape {shapes[0]} does not broadcast to {shape}"


def _matmul(shapes: Shapes, operands: tuple[Any, ...]) -> str | None:
    left, right = shapes[:2]
    if left[-1:] != right[-2:][:1]:
        return (
            f"shapes {left} and {right} do not fit; "
            "the last axis of the left operand must have the size of the second to last axis of the right one"
        )
    return _broadcast([left[:-2], right[:-2]], operands)


_SHAPES: dict[str, Callable[[Shapes, tuple[Any, ...]], str | None]] = {
    "matmul": _matmul,
    "broadcast_to": _broadcast_to,
}
"""Shape checks of operations that are not elementwise and whose callers leave the check to the engine."""


def first_line(error: Exception) -> str:
    """The first line of an error's message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def type_shown(value: Any) -> str:
    """The name of a value's type; for a parameter, also the way to get its tensor."""
    return "a Param, whose tensor is param.val()" if _holds_a_tensor(value) else type(value).__name__


def _holds_a_tensor(value: Any) -> bool:
    return getattr(cast("type[Any]", type(value)), "_phlox_holds_tensor", False)


def shown(value: Any) -> str:
    """A short description of any value, on one line."""
    if _holds_a_tensor(value):
        return type_shown(value)
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

"""What to say when an operation fails: the operation, the operands, and what would be right.

Only ever called once something has gone wrong, so nothing here costs a successful operation anything.
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


def failure(name: str, ops: Ops, operands: tuple[Any, ...], error: Exception) -> PhloxError | ZeroDivisionError:
    """The exception to raise in place of `error`, which `ops.<name>(*operands)` raised.

    What operands are to blame for is said of them, and found out from them alone: whatever an engine says of shapes
    that fit is a fault of the engine, or of Phlox. Then an engine's error is the cause of a `BackendError`, and any
    other (of a mistake in a program, as `KeyError` is; of a handler of signals) is raised here, as it is.
    """
    backend = ops.backend
    for array in _arrays_in(operands):
        own = backend.strip(array)
        if not hasattr(own, "dtype"):  # a function, a device, or whatever else an operation is given
            continue
        if engine_of(backend).is_leaked(own):
            return leaked_tracer(f"{name}: a tensor", backend.trace_of(array))
        if backend.is_donated(own):
            return donated(f"{name}: a tensor was", own)
    if backend.is_trace_error(error):
        raise error
    given = ", ".join([_shown_operand(ops, x) for x in operands[:_MOST]] + ["..."] * (len(operands) > _MOST))
    no_memory = out_of_memory(f"{name}({given})", backend, error)
    if no_memory is not None:
        return no_memory
    if isinstance(error, NotImplementedError):
        return UnsupportedError(f"{name}({given}) is not supported on {backend!r}: {first_line(error)}")
    if isinstance(error, ZeroDivisionError):
        return ZeroDivisionError(f"{name}({given}): {error}")
    if isinstance(error, OverflowError):
        return RangeError(f"{name}({given}) on {backend!r}: {error}")
    if isinstance(error, PhloxError):
        return type(error)(f"{name}: {error}")
    devices = _devices(backend, operands)
    if len(devices) > 1:
        have = " and ".join(sorted(devices))
        return DeviceError(
            f"{name}: the operands are on different devices, {have}; "
            "move one with .to_device(...), to the device of the other"
        )
    wrong = misfit(ops, name, operands)
    if wrong is not None:
        return ShapeError(f"{name}: {wrong}")
    if not backend.is_engine_error(error):
        error.add_note(f"{_INTERNAL}: {name}({given}) on {backend!r}")
        raise error
    return BackendError(f"{_INTERNAL}: {name}({given}) on {backend!r}: {type(error).__name__}: {first_line(error)}")


_MOST = 8
"""Operands that are shown."""
_INTERNAL = "an error inside Phlox or its engine, not in the arguments"


def _devices(backend: Backend, operands: tuple[Any, ...]) -> set[str]:
    found: set[str] = set()
    for x in operands:
        with suppress(Exception):
            if is_array(x):
                found.add(str(backend.device_of(x)))
    return found


def _shown_operand(ops: Ops, x: Any) -> str:
    return describe(ops, x) if is_array(x) else repr(x)


# --- shapes


def misfit(ops: Ops, name: str, operands: tuple[Any, ...]) -> str | None:
    """What is wrong with the shapes of the operands of an operation; None if they fit, or nothing is known of it."""
    rule = _SHAPES.get(name)
    from phlox.batching.rules.elementwise import ELEMENTWISE  # which a process without an error has no use for

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
    wanted = tuple(operands[1])
    try:
        fits = np.broadcast_shapes(shapes[0], wanted) == wanted
    except ValueError:
        fits = False
    return None if fits else f"a tensor of shape {shapes[0]} does not broadcast to {wanted}"


def _matmul(shapes: Shapes, operands: tuple[Any, ...]) -> str | None:
    left, right = shapes[:2]
    if left[-1:] != right[-2:][:1]:
        return (
            f"shapes {left} and {right} do not fit; "
            "the last axis of the left must be as long as the last but one of the right"
        )
    return _broadcast([left[:-2], right[:-2]], operands)


_SHAPES: dict[str, Callable[[Shapes, tuple[Any, ...]], str | None]] = {
    "matmul": _matmul,
    "broadcast_to": _broadcast_to,
}
"""What shapes must be, where an operation is not elementwise and its callers leave it to the engine to look."""


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

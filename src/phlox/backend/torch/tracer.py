"""Tracers: PyTorch's fake tensors, without values while a program is traced, and the backend's methods for them."""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Any, NoReturn

import numpy as np
import torch

from phlox.backend.contract import Backend
from phlox.backend.contract.types import Array
from phlox.backend.kind import Float, Kind
from phlox.backend.torch import compat
from phlox.backend.torch.compiler.codegen import codegen
from phlox.backend.tracing import checks
from phlox.backend.tracing.scalar import TracedScalar

tracing: ContextVar[bool] = ContextVar("phlox_torch_tracing", default=False)
"""Is a program being traced?"""


_NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")


class NeedsValue(RuntimeError):
    """A program that is being traced asks for the value of a tracer."""


class LeakedTracer(RuntimeError):
    """A tracer is used after its program has been traced."""


def end(mode: Any) -> None:
    """End a trace: from now on, every operation on its tracers raises `LeakedTracer`."""
    mode.dispatch = _refuse


def has_ended(x: Any) -> bool:
    """Is it a tracer of ours whose program has been traced?"""
    return vars(x.fake_mode).get("dispatch") is _refuse


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise LeakedTracer("a tracer of a program that has been traced")


class RngState:
    """The three words of a random stream's state in a program. Like a state on the host, it advances by `+ array`."""

    __slots__ = ("words",)

    def __init__(self, words: torch.Tensor) -> None:
        self.words = words

    @property
    def shape(self) -> torch.Size:
        """As of an array: a loop carries the state beside arrays."""
        return self.words.shape

    def __add__(self, offset: np.ndarray[Any, Any]) -> RngState:
        return RngState(self.words + torch.tensor(offset.tolist(), device=self.words.device))


def is_tracer(x: object) -> bool:
    """Has this tensor no value, since a program of ours or of PyTorch's own is being traced?"""
    return _is_fake(x) or torch.compiler.is_compiling()


def _is_fake(x: object) -> bool:
    return type(x) is not torch.Tensor and isinstance(x, compat.FAKE_TENSOR.value)


def is_traced_by_others() -> bool:
    """Does PyTorch trace (make_fx, torch.export, FakeTensorMode, torch.compile), and not for a program of ours?

    Then an operation on values becomes a part of that trace, and returns no value.
    """
    if tracing.get():
        return False
    if torch.compiler.is_compiling():
        return True
    return bool(compat.MODES.value() and compat.tracing_modes())


def makes_plain_tensors() -> bool:
    """Would a tensor made now have only values, so that it can be kept for ever?

    Not in a trace, within torch.func, under any mode that sees operations, or in inference mode, whose tensors
    PyTorch's own tape refuses later.
    """
    if tracing.get() or torch.compiler.is_compiling() or torch.is_inference_mode_enabled():
        return False
    return not compat.MODES.value() and compat.FUNC_LEVEL.value() is None


def is_fused(x: Any) -> bool:
    """Does a compiler fuse elementwise operations on x? Not at half precision: kernels that round once are better."""
    return is_tracer(x) and x.dtype in (torch.float32, torch.float64) and codegen() != "none"


def as_constants() -> AbstractContextManager[Any]:
    """A scope in which tensors made from values have them, even in a trace, where they become constants."""
    return compat.without_tracing() if tracing.get() else _nothing


_nothing = nullcontext()


class TracerOps(Backend):
    """See `phlox.backend.contract.tracing` and `compiling`."""

    torch_float: torch.dtype
    torch_int: torch.dtype
    compiles = True

    def _numbers(self) -> tuple[torch.dtype, torch.dtype]:
        """The dtypes of floats and integers in the results of a program; half precision would be too coarse."""
        return torch.promote_types(self.torch_float, torch.float32), self.torch_int

    def is_traced(self, x: Array) -> bool:
        return is_tracer(x)

    def current_trace(self) -> object | None:
        return compat.fake_mode()

    def trace_of(self, x: Array) -> object | None:
        tensor: Any = x.words if isinstance(x, RngState) else x
        return tensor.fake_mode if _is_fake(tensor) else None

    def draws_from(self, state: Any) -> bool:
        return isinstance(state, RngState)

    def is_leaked(self, x: Array, *, surely: bool = False) -> bool:
        return _is_fake(x) and has_ended(x)

    def is_leaked_error(self, error: Exception) -> bool:
        return isinstance(error, LeakedTracer)

    def is_engine_error(self, error: Exception) -> bool:
        return type(error).__module__.partition(".")[0] == "torch" or super().is_engine_error(error)

    def is_out_of_memory(self, error: Exception) -> bool:
        # For a CPU, PyTorch has no exception class of its own.
        if isinstance(error, RuntimeError):
            return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in _NO_MEMORY)
        return super().is_out_of_memory(error)

    def is_tracing(self) -> bool:
        return tracing.get() or is_traced_by_others()

    def is_trace_error(self, error: Exception) -> bool:
        return isinstance(error, (NeedsValue, *compat.needs_value_errors()))

    def is_traced_scalar(self, value: object) -> bool:
        return isinstance(value, torch.Tensor) and value.ndim == 0 and is_tracer(value)

    def scalar_expm1(self, x: Any) -> Any:
        if isinstance(x, TracedScalar):
            return x.expm1()
        return torch.expm1(x) if self.is_traced_scalar(x) else math.expm1(x)

    def as_device_scalar(self, value: float) -> Any:
        return torch.tensor(value, dtype=self._numbers()[0], device="cpu")

    def scalar_argument(self, value: float) -> Any:
        if not makes_plain_tensors():
            return value
        return torch.tensor(value, dtype=torch.int64 if isinstance(value, int) else torch.float64, device="cpu")

    def on_scalars(self, op: Callable[..., Any], whole: bool, *operands: Any) -> Any:
        if not whole:  # otherwise PyTorch would compute with ints in 32 bits
            operands = tuple([x.to(torch.float64) if isinstance(x, torch.Tensor) else x for x in operands])
        elif op in (operator.floordiv, operator.mod) and isinstance(operands[1], torch.Tensor):
            operands = operands[0], torch.where(operands[1] == 0, 1, operands[1])  # 0 ends the process
        return op(*operands)

    def scalar_as_operand(self, x: Any, other: Any) -> Any:
        return x.to(other.dtype) if other.dtype.is_floating_point else x

    def promote_scalar(self, x: Any, kind: type[Kind]) -> Any:
        return x.to(self._numbers()[0 if kind is Float else 1])

    def concrete_scalar(self, x: Any) -> Any:
        return x if is_tracer(x) else x.item()

    def collects_checks(self, x: Array) -> bool:
        return checks.tracer() is not None and is_tracer(x)

    def _forbid(self, bad: Any, error: Callable[..., Exception], *values: Callable[[], Array]) -> None:
        """Raise `error(*values)` if any of `bad` is true; in a program that collects checks, after the run."""
        if not is_tracer(bad):
            if torch.any(bad) if isinstance(bad, torch.Tensor) else bad:
                raise error(*(number().item() for number in values))
        elif self.collects_checks(bad):
            checks.add(lambda is_bad, *of: error(*of) if is_bad else None, bad.any(), *(number() for number in values))

"""Times the steps of a program from outside: calls of compiled functions, and of optimizers outside of them.

Nothing else in Phlox depends on it: the child process of `phlox tune` wraps these calls before the program runs.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, cast

import numpy as np

from phlox.backend import Backend, settings
from phlox.module import Module
from phlox.optim import Optimizer
from phlox.optim.optimizer import tracing
from phlox.tensor import Tensor
from phlox.transform.compile.api import Compiled

WARM_UP = 2
"""The number of calls before the first one that is measured; programs are compiled in them."""
KEPT = 8
"""The number of values that are kept for comparison, from the first call on."""
_WINDOW = 0.05
"""Wait for a result about every so many seconds: with short steps, a program runs ahead of its asynchronous engine."""
_LEAST = 3
"""The smallest number of measurements, once the time is over."""


@dataclass
class Seen:
    """The measurements of the calls of one function."""

    calls: int = 0
    windows: list[float] = field(default_factory=list[float])
    """The seconds per step in each window between two waits."""
    values: list[float] = field(default_factory=list[float])
    device: str = ""
    since: float = 0.0
    """The start of the current window."""
    count: int = 0
    """Steps in it so far."""
    size: int = 1
    """The number of steps that it should have."""
    busy: float = 0.0
    """Seconds inside the calls after the first."""


class Watch:
    """Measures the calls of a program's steps, and reports when there are enough.

    Args:
        seconds: how long steps are measured.
        only: the name of the function that is a step; by default all compiled functions and optimizers.
        enough: called when that time is over, with the name and the measurements.
    """

    def __init__(self, seconds: float, only: str | None, enough: Callable[[str, Seen], None]) -> None:
        self.seen: dict[str, Seen] = {}
        self.asked = False
        """Whether the program left a device to the default."""
        self._seconds, self._only, self._enough = seconds, only, enough
        self._inside = threading.local()
        self._loss: float | None = None
        self._begun: float | None = None

    def install(self) -> None:
        """Wrap the calls to be measured. This cannot be undone."""
        compiled = cast("type[Any]", Compiled)
        compiled.__call__ = self._around(compiled.__call__, _name_of_compiled, _steps_of)
        for cls in _subclasses(Optimizer):
            if "step" in vars(cls):
                cls.step = self._around(cls.step, _name_of_optimizer, _one)
        backward: Callable[..., Any] = Tensor.backward

        @functools.wraps(backward)
        def noted(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if tensor.size == 1 and tracing.get() is None and self._wanted():
                self._loss = float(tensor.item())
            return backward(tensor, *args, **kwargs)

        Tensor.backward = cast(Any, noted)
        default = settings.default_device_name

        def asked() -> str:
            self.asked = True
            return default()

        settings.default_device_name = asked

    def step(self) -> tuple[str, Seen] | None:
        """The function in whose calls most of the time was spent, if there is one."""
        measured = {name: seen for name, seen in self.seen.items() if seen.windows}
        if not measured:
            return None
        name = max(measured, key=lambda name: measured[name].busy)
        return name, measured[name]

    def _wanted(self) -> bool:
        """Whether values of further steps should be kept."""
        return not self.seen or any(len(seen.values) < KEPT for seen in self.seen.values())

    def _around(self, call: Any, name_of: Callable[[Any], str], steps_of: Callable[[Any], int | None]) -> Any:
        @functools.wraps(call)
        def seen(it: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(self._inside, "a_step", False) or tracing.get() is not None:
                return call(it, *args, **kwargs)
            self._inside.a_step = True
            begun = perf_counter()
            try:
                result = call(it, *args, **kwargs)
                name = name_of(it)
                if self._only in (None, name):
                    self._note(name, steps_of(it), result, begun)
            finally:
                self._inside.a_step = False
            return result

        return seen

    def _note(self, name: str, number: int | None, result: Any, begun: float) -> None:
        seen = self.seen.setdefault(name, Seen())
        seen.calls += 1
        steps = number or 1
        if len(seen.values) < KEPT:
            wait_for(result)
            before = perf_counter()
            tensors = list(tensors_in(result))
            seen.device = seen.device or (device_of(tensors[0]) if tensors else "")
            loss = self._loss if number is None else None
            seen.values.append(value_of(result) if loss is None else loss)
            spent = perf_counter() - before
            begun, seen.since = begun + spent, seen.since + spent  # exclude the time of this measurement
        if seen.calls <= WARM_UP:
            wait_for(result)
            now = perf_counter()
            if seen.calls > 1:
                seen.busy += now - begun
            seen.since, seen.count = now, 0
            self._begun = now
            return
        seen.count += steps
        if seen.count < seen.size:
            seen.busy += perf_counter() - begun
            return
        wait_for(result)
        now = perf_counter()
        once = (now - seen.since) / seen.count
        seen.busy += now - begun
        seen.windows.append(once)
        seen.size = max(1, min(1000, int(_WINDOW / max(once, 1e-9))))
        seen.since, seen.count = now, 0
        if self._begun is not None and now - self._begun >= self._seconds:
            found = self.step()
            if found is not None and found[0] == name and len(seen.windows) >= _LEAST:
                self._enough(*found)


def _name_of_compiled(compiled: Any) -> str:
    return str(compiled._name)


def _name_of_optimizer(optimizer: Any) -> str:
    return f"{type(optimizer).__name__}.step"


def _steps_of(compiled: Any) -> int:
    return 1 if compiled._steps is None else int(compiled._steps.number)


def _one(_: Any) -> None:
    """An optimizer takes one step in each call, and its result contains no loss."""


def _subclasses(cls: type[Any]) -> set[type[Any]]:
    return {cls, *(one for sub in cls.__subclasses__() for one in _subclasses(sub))}


def tensors_in(value: Any) -> Iterator[Tensor[Any, Any, Any]]:
    """The tensors of a result, those outside of modules first."""
    modules: list[Module] = []

    def loose(value: Any) -> Iterator[Tensor[Any, Any, Any]]:
        if isinstance(value, Tensor):
            yield cast("Tensor[Any, Any, Any]", value)
        elif isinstance(value, Module):
            modules.append(value)
        elif isinstance(value, (list, tuple, dict)):
            parts = cast("dict[Any, Any]", value).values() if isinstance(value, dict) else cast("list[Any]", value)
            for part in parts:
                yield from loose(part)

    yield from loose(value)
    for module in modules:
        for param in module.params():
            yield param.val()


def _engine(tensor: Tensor[Any, Any, Any]) -> Backend:
    backend: Backend = tensor.backend
    while backend.inner is not None:
        backend = backend.inner
    return backend


def device_of(tensor: Tensor[Any, Any, Any]) -> str:
    """The engine and its device, without decorators, such as `jax:cpu`."""
    return f"{_engine(tensor).name}:{tensor.device.name}"


def wait_for(result: Any) -> None:
    """Wait until an asynchronous engine has computed a result."""
    tensors = list(tensors_in(result))
    for tensor in tensors:
        while tensor.backend.inner is not None and tensor.backend.differentiates:
            tensor = tensor.inner()
        tensor.backend.await_array(tensor.primitive)
    if tensors:
        min(tensors, key=lambda tensor: tensor.size).numpy()  # for engines with no other way to wait


def value_of(result: Any) -> float:
    """One value of a result: the first float scalar, such as a loss, or else the mean absolute value of all floats."""
    floats = [tensor for tensor in tensors_in(result) if tensor.kind.name == "float"]
    alone = next((tensor for tensor in floats if tensor.size == 1), None)
    if alone is not None:
        return float(alone.item())
    arrays = [np.asarray(tensor.numpy(), np.float64) for tensor in floats if tensor.size]
    count = sum(array.size for array in arrays)
    return float(sum(np.abs(array).sum() for array in arrays) / count) if count else 0.0

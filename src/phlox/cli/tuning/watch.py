"""Watching the steps of a program from outside: calls of compiled functions, and of optimizers that are in none.

Nothing in Phlox knows of it; the child process of `phlox tune` puts itself around these calls before the program runs.
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
"""Calls before the first that is measured: a program is made in them."""
KEPT = 8
"""Values that are kept to be compared, from the first call on."""
_WINDOW = 0.05
"""Seconds, about, after which a result is waited for: where steps are short, a program runs ahead of its engine."""
_LEAST = 3
"""Measurements that are enough, once the seconds are over."""


@dataclass
class Seen:
    """What was seen of the calls of one name."""

    calls: int = 0
    windows: list[float] = field(default_factory=list[float])
    """Seconds a step, one number for each time that was waited for."""
    values: list[float] = field(default_factory=list[float])
    device: str = ""
    since: float = 0.0
    """When the window that is open began."""
    count: int = 0
    """Steps in it so far."""
    size: int = 1
    """Steps that it is to have."""
    busy: float = 0.0
    """Seconds inside the calls after the first."""


class Watch:
    """Notes the calls of a program's steps, and ends it when enough has been seen.

    Args:
        seconds: how long steps are measured.
        only: the name of what is a step; all compiled functions and optimizers unless given.
        enough: called when that time is over; gets what it is to report.
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
        """Put this around the calls to be seen; there is no way back."""
        compiled = cast("type[Any]", Compiled)
        compiled.__call__ = self._around(compiled.__call__, _name_of_compiled, _turns_of)
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
        """The calls that most of the time went into, if there were any."""
        measured = {name: seen for name, seen in self.seen.items() if seen.windows}
        if not measured:
            return None
        name = max(measured, key=lambda name: measured[name].busy)
        return name, measured[name]

    def _wanted(self) -> bool:
        """Are there values of steps still to be kept?"""
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

    def _note(self, name: str, turns: int | None, result: Any, begun: float) -> None:
        seen = self.seen.setdefault(name, Seen())
        seen.calls += 1
        steps = turns or 1
        if len(seen.values) < KEPT:
            wait_for(result)
            before = perf_counter()
            tensors = list(tensors_in(result))
            seen.device = seen.device or (device_of(tensors[0]) if tensors else "")
            loss = self._loss if turns is None else None
            seen.values.append(value_of(result) if loss is None else loss)
            spent = perf_counter() - before
            begun, seen.since = begun + spent, seen.since + spent  # which is our time, not the program's
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


def _turns_of(compiled: Any) -> int:
    return 1 if compiled._turns is None else int(compiled._turns.number)


def _one(_: Any) -> None:
    """An optimizer takes one step a call, and its result holds no loss."""


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
    """The engine and its device, without the decorators, as `jax:cpu`."""
    return f"{_engine(tensor).name}:{tensor.device.name}"


def wait_for(result: Any) -> None:
    """Wait until an asynchronous engine has made a result."""
    tensors = list(tensors_in(result))
    for tensor in tensors:
        while tensor.backend.inner is not None and tensor.backend.differentiates:
            tensor = tensor.inner()
        tensor.backend.await_array(tensor.primitive)
    if tensors:
        min(tensors, key=lambda tensor: tensor.size).numpy()  # where there is no other way to wait


def value_of(result: Any) -> float:
    """One number of a result: the first float that is alone, as a loss is, or else the mean size of all floats."""
    floats = [tensor for tensor in tensors_in(result) if tensor.kind.name == "float"]
    alone = next((tensor for tensor in floats if tensor.size == 1), None)
    if alone is not None:
        return float(alone.item())
    arrays = [np.asarray(tensor.numpy(), np.float64) for tensor in floats if tensor.size]
    count = sum(array.size for array in arrays)
    return float(sum(np.abs(array).sum() for array in arrays) / count) if count else 0.0

"""The process in which `phlox tune` runs a program once: `python -m phlox.cli.tuning.child REPORT SECONDS STEP FILE`.

It runs FILE, with the arguments after it, as `python FILE ...` would. It times the steps from outside, by wrapping the
calls of compiled functions and optimizers before the program runs, writes the result to REPORT, and exits.
"""

from __future__ import annotations

import functools
import json
import os
import runpy
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from phlox.backend import Float
from phlox.cli.tuning.trial import FAILED, Trial
from phlox.host.process_memory import peak_bytes
from phlox.module import Module
from phlox.optim import Optimizer
from phlox.optim.optimizer import tracing
from phlox.tensor import Tensor
from phlox.transform.compile.api import Compiled
from phlox.transform.tree import AnyTensor, leaves_of

WARM_UP = 2
"""The number of calls before the first measured one; programs are compiled in them."""
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
    value: float | None = None
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
        self._seconds, self._only, self._enough = seconds, only, enough
        self._inside = threading.local()
        self._begun = 0.0

    def install(self) -> None:
        """Wrap the calls to be measured. This cannot be undone."""
        for cls in (Compiled, *_with_subclasses(Optimizer)):
            name = "__call__" if cls is Compiled else "step"
            if name in vars(cls):
                setattr(cls, name, self._around(vars(cls)[name]))

    def step(self) -> tuple[str, Seen] | None:
        """The function whose calls took most of the time, if there is one."""
        measured = [(name, seen) for name, seen in self.seen.items() if seen.windows]
        return max(measured, key=lambda item: item[1].busy, default=None)

    def _around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def timed(target: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(self._inside, "a_step", False) or tracing.get() is not None:
                return call(target, *args, **kwargs)
            self._inside.a_step = True
            try:
                begun = perf_counter()
                result = call(target, *args, **kwargs)
                name, steps = _name_and_steps(target)
                if self._only in (None, name):
                    self._note(name, steps, result, begun)
            finally:
                self._inside.a_step = False
            return result

        return timed

    def _note(self, name: str, steps: int, result: Any, begun: float) -> None:
        seen = self.seen.setdefault(name, Seen())
        seen.calls += 1
        if seen.calls == 1:
            seen.value, seen.device = value_and_device(result)
        seen.count += steps
        if seen.calls > WARM_UP and seen.count < seen.size:
            seen.busy += perf_counter() - begun
            return
        wait_for(result)
        now = perf_counter()
        seen.busy += now - begun if seen.calls > 1 else 0.0
        if seen.calls > WARM_UP:
            seen.windows.append((now - seen.since) / seen.count)
            seen.size = max(1, min(1000, int(_WINDOW / max(seen.windows[-1], 1e-9))))
        else:
            self._begun = now
        seen.since, seen.count = now, 0
        if now - self._begun >= self._seconds and len(seen.windows) >= _LEAST and self.step() == (name, seen):
            self._enough(name, seen)


def _with_subclasses(cls: type[Any]) -> set[type[Any]]:
    return {cls}.union(*map(_with_subclasses, cls.__subclasses__()))


def _name_and_steps(target: Any) -> tuple[str, int]:
    """The name of a compiled function or of an optimizer's step, and the number of steps in one call."""
    if isinstance(target, Compiled):
        return str(target._name), 1 if target._steps is None else int(target._steps.number)  # pyright: ignore[reportPrivateUsage]
    return f"{type(target).__name__}.step", 1


def tensors_in(result: Any) -> list[AnyTensor]:
    """The tensors of a result, those outside of modules first."""
    leaves: list[Any] = [leaf for _, leaf in leaves_of(result, (Tensor, Module))]
    modules = [leaf for leaf in leaves if isinstance(leaf, Module)]
    loose: list[AnyTensor] = [leaf for leaf in leaves if not isinstance(leaf, Module)]
    return [*loose, *[param.val() for module in modules for param in module.params()]]


def wait_for(result: Any) -> None:
    """Wait until an asynchronous engine has computed a result."""
    for tensor in tensors_in(result):
        tensor.backend.await_array(tensor.primitive)


def value_and_device(result: Any) -> tuple[float | None, str]:
    """A value to compare, and the engine with its device, such as `jax:cpu`.

    The value is the first float scalar, such as a loss, or else the mean absolute value of all floats.
    """
    tensors = tensors_in(result)
    if not tensors:
        return None, ""
    engine = tensors[0].backend
    while engine.inner is not None:
        engine = engine.inner
    device = f"{engine.name}:{tensors[0].device.name}"
    floats = [tensor for tensor in tensors if tensor.kind is Float and tensor.size]
    floats = next(([tensor] for tensor in floats if tensor.size == 1), floats)
    values = [np.asarray(tensor.numpy(), np.float64).ravel() for tensor in floats]
    if len(values) == 1 and values[0].size == 1:
        return float(values[0][0]), device
    return (float(np.abs(np.concatenate(values)).mean()) if values else None), device


def main(arguments: list[str]) -> None:
    """Run the program of the command line."""
    report, seconds, only, script, *arguments_of_script = arguments
    begun = perf_counter()

    def finish(name: str | None, seen: Seen) -> None:
        windows = seen.windows or [perf_counter() - begun]
        trial = Trial(None, name, windows, seen.value, seen.device, peak_bytes() or None)
        part = Path(f"{report}.part")
        part.write_text(json.dumps(asdict(trial)), encoding="utf-8")
        part.replace(report)

    def enough(name: str, seen: Seen) -> None:
        finish(name, seen)
        # The rest of the program does not run, not even code at its end, which might save a model.
        os._exit(0)

    watch = Watch(float(seconds), only or None, enough)
    watch.install()
    sys.argv = [script, *arguments_of_script]
    sys.path.insert(0, str(Path(script).absolute().parent))
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as ending:
        if ending.code not in (None, 0):
            print(f"exit: {ending.code}", file=sys.stderr, flush=True)
            os._exit(FAILED)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(FAILED)
    finish(*(watch.step() or (None, Seen())))


if __name__ == "__main__":
    main(sys.argv[1:])

"""How many instructions Python executes in a call, function by function.

Where a time scatters by a tenth, this number is the same in every run of one version of Python: what it says of a path
is exact, on a machine that is busy as on one that is not. It does not see what native code does in between.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple, TypeAlias

PACKAGE = Path(__file__).parents[2] / "src"
"""What lies here, or beside it, is named by file and function; everything else by its package."""

_WARM = 3
_TRIES = 8


Cells: TypeAlias = dict[CodeType, list[int]]
"""Calls and instructions of every function."""


class Calls(NamedTuple):
    """What a function did during a count."""

    calls: int
    instructions: int


class Count(NamedTuple):
    """What was executed: in all, and by function of Phlox (`phlox/nn/linear.py:Linear.__call__`) or other package."""

    instructions: int
    functions: dict[str, Calls]


class Unsteady(RuntimeError):
    """A path that does something else each time; it cannot be guarded."""


def count(run: Callable[[], object]) -> Count:
    """The instructions of one call of `run`, which has been called before, so that caches are filled.

    Raises `Unsteady` where no two calls in a row execute the same number.

    >>> count(lambda: 1 + 1) == count(lambda: 1 + 1)
    True
    """
    for _ in range(_WARM):
        run()
    last: Count | None = None
    for _ in range(_TRIES):
        found = _count(run)
        if found == last:
            return found
        last = found
    assert last is not None
    raise Unsteady(f"no two of {_TRIES} calls in a row executed the same instructions (the last: {last.instructions})")


def _count(run: Callable[[], object]) -> Count:
    cells: Cells = {}
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        (_monitored if sys.version_info >= (3, 12) else _traced)(run, cells)
    finally:
        if enabled:
            gc.enable()
    functions: dict[str, Calls] = {}
    for code, (calls, instructions) in cells.items():
        if code.co_filename == __file__:  # the counting itself
            continue
        name = place_of(code)
        known = functions.get(name, Calls(0, 0))
        functions[name] = Calls(known.calls + calls, known.instructions + instructions)
    return Count(sum(each.instructions for each in functions.values()), dict(sorted(functions.items())))


def place_of(code: CodeType) -> str:
    """What a function is called in a count."""
    path = Path(code.co_filename)
    parts = path.parts
    for folder in ("site-packages", "dist-packages"):
        if folder in parts:
            package = parts[len(parts) - parts[::-1].index(folder)]
            # Phlox too may be installed there.
            return f"{'/'.join(parts[parts.index(package) :])}:{code.co_qualname}" if package == "phlox" else package
    for root in (PACKAGE, PACKAGE.parent):
        if path.is_relative_to(root):
            return f"{path.relative_to(root).as_posix()}:{code.co_qualname}"
    return "Python"


def _traced(run: Callable[[], object], cells: Cells) -> None:
    """Until Python 3.11: this thread's frames report every instruction."""
    locals_of: dict[CodeType, Any] = {}

    def tracer_for(code: CodeType) -> Any:
        cell = cells[code] = [0, 0]

        def local(frame: FrameType, event: str, arg: Any) -> Any:
            if event == "opcode":
                cell[1] += 1
            return local

        return local

    def on_call(frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        local = locals_of.get(code)
        if local is None:
            local = locals_of[code] = tracer_for(code)
        cells[code][0] += 1
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return local

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        run()
    finally:
        sys.settrace(before)


def _monitored(run: Callable[[], object], cells: Cells) -> None:
    """From Python 3.12: the interpreter reports every instruction of the process; those of other threads are left."""
    monitoring: Any = sys.monitoring  # pyright: ignore[reportAttributeAccessIssue]
    events, tool, mine = monitoring.events, monitoring.PROFILER_ID, threading.get_ident()

    def on_start(code: CodeType, offset: int) -> None:
        if threading.get_ident() == mine:
            cells.setdefault(code, [0, 0])[0] += 1

    def on_instruction(code: CodeType, offset: int) -> None:
        if threading.get_ident() == mine:
            cells.setdefault(code, [0, 0])[1] += 1

    monitoring.use_tool_id(tool, "phlox guard")
    try:
        monitoring.register_callback(tool, events.PY_START, on_start)
        monitoring.register_callback(tool, events.PY_RESUME, on_start)
        monitoring.register_callback(tool, events.INSTRUCTION, on_instruction)
        monitoring.set_events(tool, events.PY_START | events.PY_RESUME | events.INSTRUCTION)
        try:
            run()
        finally:
            monitoring.set_events(tool, 0)
    finally:
        monitoring.free_tool_id(tool)

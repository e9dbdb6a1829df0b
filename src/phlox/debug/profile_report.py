"""`Profile`: the times of a model's layers, as text, page, trace and rows."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from phlox.debug.flame import Frame, flame
from phlox.debug.timing import Event, Times
from phlox.errors import ModuleError
from phlox.host.html import document
from phlox.host.page import Cell, Page, Table
from phlox.host.text import Report, count, duration, size
from phlox.module import Module
from phlox.module.calls import depth_of, layer_name, named_modules


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """The profile of one layer, over all its calls in one run; times are in seconds."""

    path: str
    """The path of the layer; the empty string is the model itself."""
    layer: str
    """The class of the layer, or the name of a function among layers."""
    depth: int
    """The number of layers around it."""
    calls: int
    """The number of its calls in a run."""
    forward: float
    """The forward time, with the layers in it."""
    forward_own: float
    """The forward time, without the layers in it."""
    backward: float
    """The backward time, with the layers in it."""
    backward_own: float
    """The backward time, without the layers in it."""
    results: int
    """The bytes of the results of the innermost layers in it, or of its own results."""

    @property
    def seconds(self) -> float:
        """The time of forward and backward pass."""
        return self.forward + self.backward


@dataclass(frozen=True, slots=True, repr=False)
class Profile(Report):
    """The result of `profile`: print it, show it in a notebook, or write it with `to_html` or `to_chrome_trace`."""

    rows: list[ProfileRow]
    """The layers that were called, the model first, in the order of declaration."""
    device: str
    """The device of the model."""
    source: Literal["eager", "program"]
    """How layers were timed: "eager", at each call; "program", by the engine's trace of a compiled program."""
    calls: int
    """The number of runs over which the times are averaged."""
    outside_forward: float
    """The forward seconds outside of all layers, such as those of the loss."""
    outside_backward: float
    """The backward seconds outside of all layers."""
    optimizer: float | None
    """The seconds of the optimizer's step; None without an optimizer."""
    peak_memory: int | None
    """The peak memory in bytes; None if the engine does not report it."""
    events: list[Event] = field(repr=False, default_factory=list[Event])
    """The timed events, in order: of the last run if they are eager, of all runs of a program."""
    notes: tuple[str, ...] = ()
    """Notes on the measurement."""

    @property
    def seconds(self) -> float:
        """The seconds of one run: layers, the rest of the model, and the optimizer."""
        outside = self.outside_forward + self.outside_backward + (self.optimizer or 0.0)
        return (self.rows[0].seconds if self.rows else 0.0) + outside

    def row(self, path: str) -> ProfileRow:
        """The row of a layer; `ModuleError` if there is none."""
        for row in self.rows:
            if row.path == path:
                return row
        raise ModuleError(f"profile: `{path}` was not called; these were: {', '.join(r.path for r in self.rows[1:])}")

    def slowest(self, count: int = 5) -> list[ProfileRow]:
        """The layers that take the most time, without the time of the layers in them."""
        return sorted(self.rows, key=lambda row: -(row.forward_own + row.backward_own))[:count]

    def _page(self) -> Page:
        return Page("", parts=[self._table(), *self._remarks()])

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """Write the profile as one HTML file with a flame graph, for light and dark screens; returns its text."""
        page = Page("", parts=[*self._remarks(), flame(self._frames()), self._table()])
        return document(f"Profile on {self.device}", page, path)

    def to_chrome_trace(self, path: str | os.PathLike[str] | None = None) -> dict[str, Any]:
        """Write the events as a trace that chrome://tracing and https://ui.perfetto.dev open; returns the trace."""
        threads = {name: index for index, name in enumerate(dict.fromkeys(event.thread for event in self.events))}
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "thread_name", "pid": 0, "tid": tid, "args": {"name": name or self.device}}
            for name, tid in threads.items()
        ]
        for event in self.events:
            where = "outside of all layers" if event.path is None else event.path or "(the model)"
            events.append({
                "ph": "X", "pid": 0, "tid": threads[event.thread], "cat": event.phase,
                "name": event.name or where, "ts": event.start * 1e6, "dur": event.seconds * 1e6,
                "args": {"layer": where, "phase": event.phase},
            })  # fmt: skip
        trace = {"traceEvents": events, "displayTimeUnit": "ms"}
        if path is not None:
            Path(path).write_text(json.dumps(trace), encoding="utf-8")
        return trace

    # --- the table

    def _table(self) -> Table:
        whole, has_backward = self.seconds or 1.0, any(row.backward for row in self.rows)
        lines: list[list[str | Cell]] = []
        for row in self.rows:
            own = (row.forward_own + row.backward_own) / whole
            times = (row.forward, row.forward_own, row.backward, row.backward_own)
            lines.append([
                Cell(row.path or "(the model)", code=True, indent=row.depth), row.layer, str(row.calls),
                *map(duration, times if has_backward else times[:2]), *[""] * (0 if has_backward else 2),
                f"{row.seconds / whole:.1%}", Cell(f"{own:.1%}", bar=own), size(row.results) if row.results else "",
            ])  # fmt: skip
        others = [("outside of all layers", self.outside_forward, self.outside_backward)]
        if self.optimizer is not None:
            others.append(("optimizer", self.optimizer, 0.0))
        for name, forward, backward in others:
            share = f"{(forward + backward) / whole:.1%}"
            lines.append([name, "", "", duration(forward), "", duration(backward) if backward else "", "", share])
        heads = ["layer", "class", "calls", "forward", "own", "backward", "own", "share", "own", "results"]
        return Table(heads, lines, 2, spare=(4, 6, 1, 9))

    def _remarks(self) -> list[str]:
        slow = [row for row in self.slowest(3) if row.forward_own + row.backward_own > 0.0]
        shares = [
            f"{row.path or '(the model)'} {(row.forward_own + row.backward_own) / (self.seconds or 1.0):.0%}"
            for row in slow
        ]
        runs = f"mean of {count(self.calls, 'run')} on {self.device}"
        lines = [f"one run takes {duration(self.seconds)}, {runs}; most by themselves: {', '.join(shares)}"]
        if self.peak_memory is not None:
            lines.append(f"peak memory: {size(self.peak_memory)}")
        return [*lines, *self.notes]

    def _frames(self) -> list[Frame]:
        """The layers as frames of a flame graph: forward, backward and the rest of the run."""
        roots: list[Frame] = []
        for phase in ("forward", "backward"):
            frames: dict[str, Frame] = {}
            for row in self.rows:
                seconds = getattr(row, phase)
                frame = Frame(f"{row.path or '(the model)'} ({row.layer})", seconds, phase)
                frames[row.path] = frame
                outer = _outer(row.path, frames)
                if outer is not None:
                    outer.inside.append(frame)
                elif seconds:
                    roots.append(frame)
        roots.append(Frame("outside of all layers", self.outside_forward + self.outside_backward, "other"))
        if self.optimizer is not None:
            roots.append(Frame("optimizer", self.optimizer, "other"))
        return [frame for frame in roots if frame.seconds > 0.0]


def _outer(path: str, frames: dict[str, Frame]) -> Frame | None:
    """The innermost enclosing layer among `frames`."""
    while path:
        path = path.rpartition(".")[0]
        if path in frames:
            return frames[path]
    return None


def rows_of(model: Module, times: Times) -> list[ProfileRow]:
    """The rows of the layers that were called."""
    modules = [(path, module) for path, module in named_modules(model) if times.calls.get(path)]
    paths = {path for path, _ in modules}

    def of(kind: dict[Any, float], path: str, phase: str) -> float:
        return kind.get((path, phase), 0.0) / times.runs

    return [
        ProfileRow(
            path=path,
            layer=layer_name(module),
            depth=depth_of(path, paths),
            calls=times.calls[path],
            forward=of(times.whole, path, "forward"),
            forward_own=of(times.own, path, "forward"),
            backward=of(times.whole, path, "backward"),
            backward_own=of(times.own, path, "backward"),
            results=times.results.get(path, 0),
        )
        for path, module in modules
    ]

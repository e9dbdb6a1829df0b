"""`ExecutableReport`: the cost of one call of a compiled function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any, cast

from phlox.backend.analysis import Analysis
from phlox.errors import CompileError, UnsupportedError
from phlox.host.page import Cell, Page, Table
from phlox.host.text import Report, amount, count, size
from phlox.module import Module
from phlox.optim import Optimizer
from phlox.optim.optimizer import tracing
from phlox.optim.state.tree import flatten
from phlox.tensor import Tensor
from phlox.transform.tree import AnyTensor, leaves_of, map_parts


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ExecutableReport(Report, Analysis):
    """The result of `phlox.compile(fn).lower(...)`: the cost of one call. `print` it, or read its figures.

    All figures are for one device; None means unknown. Arguments are parameters, states of optimizers, and data.
    """

    function: str
    backend: str

    @classmethod
    def of(cls, analysis: Analysis, function: str, backend: str) -> ExecutableReport:
        """The report of an engine's analysis."""
        figures = {one.name: getattr(analysis, one.name) for one in fields(analysis)}
        return cls(**figures, function=function, backend=backend)

    @property
    def analysis(self) -> Analysis:
        """The figures alone."""
        return self

    @property
    def memory(self) -> int | None:
        """Bytes that the call needs in total: arguments, temporaries, and results that reuse no argument's memory."""
        parts = self.arguments, self.temporaries, self.outputs, self.aliased
        if any(part is None for part in parts):
            return None
        arguments, temporaries, outputs, aliased = cast("tuple[int, int, int, int]", parts)
        return arguments + temporaries + outputs - aliased

    @property
    def sent(self) -> int | None:
        """Bytes that a device sends in all collectives together."""
        found = self.collectives
        return None if found is None else sum(traffic.sent for traffic in found.values())

    def to_dict(self) -> dict[str, Any]:
        """All figures as plain values, for JSON."""
        return {**asdict(self), "memory": self.memory, "sent": self.sent}

    def _page(self) -> Page:
        whole = self.memory or 0
        rows: list[list[str | Cell]] = [
            ["FLOPs", "unknown" if self.flops is None else amount(self.flops)],
            ["bytes accessed", _known(self.bytes_accessed)],
            ["memory", _known(self.memory)],
        ]
        for name in ("arguments", "outputs", "aliased", "temporaries"):
            part: int | None = getattr(self, name)
            bar = min(part / whole, 1.0) if part and whole else None
            rows.append([Cell(name, indent=1), Cell(_known(part), bar=bar)])
        collectives = self.collectives
        if not collectives:
            rows.append(["collectives", "unknown" if collectives is None else "none"])
        sent = [
            [Cell(kind, code=True), f"{one.count:,}", size(one.payload), size(one.sent)]
            for kind, one in sorted((collectives or {}).items())
        ]
        loops = self.loops_of_unknown_length
        several = f"each of {self.devices} devices" if self.devices > 1 else "one device"
        return Page(
            self.function,
            [f"one call on {self.backend}", several, f"by {self.source}"],
            [
                Table(["", ""], rows, 1),
                Table(["collective", "count", "results", "sent"], sent, 1),
                f"{count(loops, 'loop')} of unknown length: counted as one iteration" if loops else "",
            ],
        )


def _known(bytes_: int | None) -> str:
    return "unknown" if bytes_ is None else size(bytes_)


def analysis_by_shapes(
    call: Callable[[tuple[Any, ...], dict[str, Any]], Any], values: tuple[Any, ...], keywords: dict[str, Any]
) -> Analysis:
    """The cost of a call from shapes alone: it runs on arrays without values, and operations are only counted."""
    from phlox.transform.abstract import Work, counted
    from phlox.transform.summary.evaluate import blank, undisturbed, without_values

    twins: list[Optimizer] = []

    def visit(part: Any, path: str) -> Any:
        if isinstance(part, Tensor):
            tensor = cast("AnyTensor", part)
            return blank(tensor.shape, tensor.kind, tensor.device)
        if isinstance(part, Module):
            return without_values(part)
        if isinstance(part, Optimizer):
            twin = part.twin()
            twin.load_packed(None)  # pyright: ignore[reportArgumentType]  # its states are begun anew
            twins.append(twin)
            return twin
        return map_parts(visit, part, path)

    given = values, keywords
    arguments = _bytes(given)
    blanks: Any = visit(given, "")
    work = Work()
    try:
        with undisturbed(), counted(work):
            for twin in twins:
                twin._home = tracing.get()  # pyright: ignore[reportPrivateUsage]
            call(*blanks)
    except (UnsupportedError, CompileError):  # something asks for a value, or has no rule for shapes
        return Analysis("shapes", arguments=arguments)
    return Analysis("shapes", flops=work.total, arguments=arguments)


def _bytes(value: Any) -> int:
    """The bytes of tensors, parameters and states of optimizers."""
    from phlox.transform.summary.evaluate import blank, bytes_of

    total = 0
    for _, part in leaves_of(value, (Tensor, Module, Optimizer)):
        if isinstance(part, Module):
            total += sum(bytes_of(blank(param.shape, param.kind, param.device)) for param in part.params())
        elif isinstance(part, Optimizer):
            leaves: list[Any] = []
            for state in part.states.values():
                flatten(state, leaves)
            total += sum(bytes_of(cast("AnyTensor", leaf)) for leaf in leaves if isinstance(leaf, Tensor))
        else:
            total += bytes_of(part)
    return total

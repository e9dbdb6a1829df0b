"""`ExecutableReport`: the cost of one call of a compiled function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, cast

from phlox.backend.analysis import Analysis, Traffic
from phlox.errors import CompileError, UnsupportedError
from phlox.host.page import Cell, Page, Table
from phlox.host.shown import Report
from phlox.host.text import amount, count, size
from phlox.module import Module
from phlox.optim import Optimizer
from phlox.optim.optimizer import tracing
from phlox.optim.state.tree import flatten
from phlox.tensor import Tensor
from phlox.transform.tree import AnyTensor, leaves_of, map_parts


@dataclass(frozen=True, slots=True, repr=False)
class ExecutableReport(Report):
    """The result of `phlox.compile(fn).lower(...)`: the cost of one call. `print` it, or read its figures.

    All figures are for one device; None means unknown.
    """

    function: str
    backend: str
    analysis: Analysis

    @property
    def source(self) -> str:
        """The source of the figures: `XLA`, or `shapes` if no compiler reports them."""
        return self.analysis.source

    @property
    def devices(self) -> int:
        """The number of devices that run the program together."""
        return self.analysis.devices

    @property
    def flops(self) -> int | None:
        """Floating-point operations; in a product, an addition and a multiplication count as two."""
        return self.analysis.flops

    @property
    def bytes_accessed(self) -> int | None:
        """Bytes that the operations read and write."""
        return self.analysis.bytes_accessed

    @property
    def arguments(self) -> int | None:
        """Bytes of the arguments: parameters, states of optimizers, data."""
        return self.analysis.arguments

    @property
    def outputs(self) -> int | None:
        """Bytes of the results."""
        return self.analysis.outputs

    @property
    def aliased(self) -> int | None:
        """Bytes of results that take the memory of donated arguments."""
        return self.analysis.aliased

    @property
    def temporaries(self) -> int | None:
        """Bytes in use only during the call."""
        return self.analysis.temporaries

    @property
    def memory(self) -> int | None:
        """Bytes that the call needs in total: arguments, temporaries, and results that reuse no argument's memory."""
        parts = self.arguments, self.temporaries, self.outputs, self.aliased
        if any(part is None for part in parts):
            return None
        arguments, temporaries, outputs, aliased = cast("tuple[int, int, int, int]", parts)
        return arguments + temporaries + outputs - aliased

    @property
    def collectives(self) -> Mapping[str, Traffic] | None:
        """For each kind (`all-reduce`, ...): the count, the bytes of the results, and the bytes that a device sends."""
        return self.analysis.collectives

    @property
    def sent(self) -> int | None:
        """Bytes that a device sends in all collectives together."""
        found = self.collectives
        return None if found is None else sum(traffic.sent for traffic in found.values())

    def to_dict(self) -> dict[str, Any]:
        """All figures as plain values, for JSON."""
        collectives = None if self.collectives is None else {k: asdict(v) for k, v in self.collectives.items()}
        return {
            "function": self.function, "backend": self.backend, "source": self.source, "devices": self.devices,
            "flops": self.flops, "bytes_accessed": self.bytes_accessed, "memory": self.memory,
            "arguments": self.arguments, "outputs": self.outputs, "aliased": self.aliased,
            "temporaries": self.temporaries, "sent": self.sent, "collectives": collectives,
            "loops_of_unknown_length": self.analysis.loops_of_unknown_length,
        }  # fmt: skip

    def _page(self) -> Page:
        whole = self.memory or 0
        rows = [
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
        loops = self.analysis.loops_of_unknown_length
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

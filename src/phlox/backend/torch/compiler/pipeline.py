"""The passes of the compiler, in their order, over a traced program before Inductor compiles it.

`PASSES` lists all of them. The environment variable `PHLOX_TORCH_PASSES` switches passes off by name, and is read
whenever a program is compiled.
"""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import RLock
from typing import Any, Literal, NamedTuple, TypeAlias

import torch

from phlox.backend.torch import compat
from phlox.backend.torch.compiler import stored_graphs
from phlox.backend.torch.compiler.codegen import ALL, PASSES_VARIABLE, codegen, is_on, switches
from phlox.backend.torch.compiler.decompositions import decompositions
from phlox.backend.torch.compiler.fences import fence, settings
from phlox.backend.torch.compiler.kernels import (
    attention,
    bernoulli,
    embedding_grad,
    gemm,
    lstm,
    packed,
    packed_gemm,
    winograd,
)
from phlox.backend.torch.compiler.passes import donation
from phlox.backend.torch.compiler.passes.constant_folding import FoldedConstants, fold_constants
from phlox.backend.torch.compiler.passes.multi_tensor import SharedUpdateCalls, SharedUpdates
from phlox.backend.torch.compiler.passes.scalar_cse import merge_scalars
from phlox.errors import ConfigError

Run: TypeAlias = Callable[..., Any]


@dataclass
class Plan:
    """A traced program on its way through the passes."""

    graph: Any
    """Its FX graph, which the passes change."""
    example: list[torch.Tensor]
    """Arguments like the arguments of the traced call, contiguous in memory."""
    weights: list[int]
    """The positions of arguments that mostly stay the same: arrays of modules and states that are not donated."""
    successors: dict[int, int]
    """Positions of donated arguments, and of the results that may take their memory."""
    written_over: dict[int, int] = field(default_factory=dict[int, int])
    """The pairs of `successors` that are used."""
    updates: SharedUpdates | None = None
    """Elementwise updates that many parameters share."""
    update_calls: SharedUpdateCalls | None = None
    """The calls that compute these updates after the graph has run."""
    graph_positions: dict[int, int] | None = None
    """From positions of results to positions in the graph's output, if that has only some of the results."""
    sources: list[int | None] = field(default_factory=list[int | None])
    """For every result of the graph, the argument that it overwrites, or None."""
    run: Run | None = None
    """The compiled graph, once a pass or the compiler has made it."""


class Executable(NamedTuple):
    """A compiled graph, and what is done around its run."""

    run: Run
    written_over: Sequence[int]
    """The arguments that a run overwrites."""
    sources: Sequence[int | None]
    """For each result, the argument that holds it, or None if `run` returns it; empty if all are None."""
    update_calls: SharedUpdateCalls | None
    """The calls that compute updates after the run."""

    def __call__(self, flat: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """The results for these arguments, which are contiguous, and of which those in `written_over` are lost."""
        arrays = self.run(*flat)
        if self.written_over:
            arrays = donation.together(self.sources, flat, arrays)
        return arrays if self.update_calls is None else self.update_calls.together(flat, arrays)


class Pass(NamedTuple):
    """One pass.

    `level` says when it runs: while the function is traced (`traced`: it is listed so that it can be switched off),
    once for each program (`program`), or once for each compiled graph (`graph`).
    """

    name: str
    purpose: str
    level: Literal["traced", "program", "graph"]
    function: Callable[..., Any]
    finish: Callable[[Plan], None] | None = None
    """What it does after all passes of its level have run; the last pass finishes first."""
    needs_inductor: bool = True
    """Is it useless if operations run one by one?"""


def _scalar_cse(plan: Plan) -> None:
    merge_scalars(plan.graph)


def _donation(plan: Plan) -> None:
    plan.written_over = donation.worthwhile(plan.graph, plan.successors)


def _write_over(plan: Plan) -> None:
    indices = plan.graph_positions
    pairs = {x: y if indices is None else indices[y] for x, y in plan.written_over.items() if _is_in(indices, y)}
    plan.sources = donation.write_over(plan.graph, pairs)


def _is_in(positions: dict[int, int] | None, position: int) -> bool:
    return positions is None or position in positions


def _multi_tensor(plan: Plan) -> None:
    plan.updates = SharedUpdates(plan.graph, plan.successors, plan.written_over) if plan.successors else None


def _cut_out(plan: Plan) -> None:
    if plan.updates is not None:
        plan.update_calls, plan.graph_positions = plan.updates.cut_out(plan.graph, _compile_update)


def _constant_folding(plan: Plan) -> None:
    plan.run = fold_constants(plan.graph, plan.weights)


def _packed_gemm(plan: Plan) -> None:
    if plan.successors or (lowered := packed_gemm.lower(plan.graph, plan.weights)) is None:
        return
    pack, used = lowered
    packed = pack(*[plan.example[position] for position in used])
    plan.run = FoldedConstants(pack, compile_graph(plan.graph, [*plan.example, *packed]), used)


LOCK = RLock()
"""PyTorch traces and compiles one program at a time: it replaces functions of its own on the way."""

PASSES: list[Pass] = [
    Pass(
        "decompositions",
        "replaces operations that Inductor computes inaccurately by formulas that keep their digits",
        "traced",
        decompositions,
    ),
    Pass("lstm", "computes the steps of an LSTM with our kernel instead of oneDNN's", "traced", lstm.suits),
    Pass("bernoulli", "draws dropout masks with our kernel instead of NumPy", "traced", bernoulli.draw),
    Pass(
        "embedding_grad",
        "sums the gradient of an embedding with PyTorch's kernel instead of atomic additions",
        "traced",
        embedding_grad.add_rows,
    ),
    Pass("packed", "multiplies a few rows by packed weights with our kernel, from their codes", "traced", packed.suits),
    Pass(
        "scalar_cse",
        "computes scalar expressions that several parameters share, such as Adam's corrections, only once",
        "program",
        _scalar_cse,
        needs_inductor=False,
    ),
    Pass(
        "donation",
        "writes elementwise results over the donated arguments they are computed from",
        "program",
        _donation,
        finish=_write_over,
    ),
    Pass(
        "multi_tensor",
        "extracts the update that many parameters share, and compiles it once for tensors of any length",
        "program",
        _multi_tensor,
        finish=_cut_out,
    ),
    Pass(
        "constant_folding",
        "folds batch norm into convolutions and packs their filters once, in inference programs",
        "program",
        _constant_folding,
    ),
    Pass(
        "packed_gemm",
        "packs the weights of linear layers once, in inference programs",
        "program",
        _packed_gemm,
    ),
    Pass(
        "gemm",
        "multiplies large matrices with our kernel, on processors where MKL does not use AVX-512",
        "graph",
        gemm.lower,
    ),
    Pass("winograd", "convolves with 3x3 filters with our kernel, by Winograd's algorithm", "graph", winograd.lower),
    Pass("attention", "computes attention with our kernel, for short sequences", "graph", attention.lower),
]
"""The passes, in order. Each can be switched off by its name, and the program computes the same without it."""


def check_switches() -> None:
    """Raise `ConfigError` for a name of no pass; the message lists the names."""
    names = [entry.name for entry in PASSES]
    for word in switches():
        if word.removeprefix("-") not in (ALL, *names):
            raise ConfigError(
                f"the environment variable {PASSES_VARIABLE} switches passes off by name, as in "
                f"`-winograd,-attention`, got {word!r} (there are {', '.join(names)}, and `{ALL}`)"
            )


def optimize(plan: Plan) -> Executable:
    """Apply the passes to a program, and compile it."""
    _apply_passes(plan)
    assert plan.run is not None
    return Executable(plan.run, tuple(plan.written_over), plan.sources, plan.update_calls)


def _apply_passes(plan: Plan) -> None:
    inductor = codegen() == "inductor"
    passes = [entry for entry in PASSES if entry.level == "program" and is_on(entry.name)]
    chosen = [entry for entry in passes if inductor or not entry.needs_inductor]
    for entry in chosen:
        entry.function(plan)
        if plan.run is not None:
            plan.written_over = {}
            return
    for entry in reversed(chosen):
        if entry.finish is not None:
            entry.finish(plan)
    plan.run = compile_graph(plan.graph, plan.example)


def _compile_update(text: str, trace: Callable[[], tuple[Any, Sequence[torch.Tensor]]]) -> Run:
    """The compiled graph that a text describes; it is traced if it is not on disk."""
    key = stored_graphs.key_of_text(f"{switches()} {text}") if codegen() == "inductor" else None
    run = None if key is None else stored_graphs.load(key)
    return compile_graph(*trace(), key) if run is None else run


def compile_graph(graph: Any, example: Sequence[torch.Tensor], key: str | None = None) -> Run:
    """The compiled graph; or the graph itself, with a warning, if PyTorch finds no working C++ compiler."""
    if codegen() == "none" or not any(node.op == "call_function" for node in graph.graph.nodes):
        return compat.run_of_graph(graph)
    fence(graph)
    for entry in PASSES:
        if entry.level == "graph" and is_on(entry.name):
            entry.function(graph)
    try:
        return stored_graphs.compile_graph(graph, example, settings(graph), key)
    except Exception as error:
        compat.run_of_graph(graph)(*example)  # raises errors that are not the compiler's fault
        cause = error.__cause__ or error
        lines = str(cause).strip().splitlines() or [type(cause).__name__]
        warnings.warn(
            f"PyTorch's compiler does not work here, so a compiled function runs its operations one by one: {lines[0]}",
            RuntimeWarning,
            stacklevel=2,
        )
        return compat.run_of_graph(graph)

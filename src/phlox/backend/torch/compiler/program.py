"""Compiled programs: a function is traced to an FX graph, which the passes of `pipeline` change and Inductor compiles.

TorchDynamo reads Python's bytecode, and does not support tapes, locks and context variables. So a function runs once on
fake tensors, every operation on them is traced, and the flat graph is compiled.
"""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateImportUsage=false, reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

import torch

from phlox.backend.torch import compat
from phlox.backend.torch.collectives import in_order, refuse_in_place
from phlox.backend.torch.compiler import loops, pipeline
from phlox.backend.torch.compiler.codegen import codegen, is_on
from phlox.backend.torch.compiler.decompositions import decompositions
from phlox.backend.torch.compiler.flatten import (
    Sizes,
    as_tensor,
    count,
    flatten_arguments,
    flatten_result,
    in_tuples,
    unflatten_arguments,
)
from phlox.backend.torch.compiler.passes import donation
from phlox.backend.torch.tracer import RngState, end, is_traced_by_others, tracing
from phlox.host.signal_guard import scope

Body: TypeAlias = Callable[[Any, Any], Any]


class _Executable(NamedTuple):
    """A function compiled for arguments of certain shapes."""

    run: pipeline.Executable
    build: Callable[[Iterator[Any]], Any]
    """Builds the result from the arrays of a run."""
    loops: Sequence[loops.Loop]
    """The loops that the run calls."""


class Program:
    """A function of two lists of arrays, traced and compiled for every combination of shapes."""

    def __init__(self, fn: Body, release: Callable[[], object], number: torch.dtype, integer: torch.dtype) -> None:
        self._fn, self._release = fn, release
        self._elements = number, integer
        self._executables: dict[Hashable, _Executable] = {}

    def __call__(self, donated: Sequence[Any], kept: Sequence[Any]) -> Any:
        flat: list[torch.Tensor] = []
        sizes = flatten_arguments(donated, flat), flatten_arguments(kept, flat)
        if is_traced_by_others() or any([type(x) is not torch.Tensor or x.requires_grad for x in flat]):  # noqa: C419
            # Within a trace of PyTorch's own, or with a history on its tape, the function itself is called.
            return self._fn(donated, kept)
        # The generated code depends on the number of threads.
        key = (*[(x.shape, x.dtype, x.device) for x in flat], torch.get_num_threads(), codegen())
        with torch.no_grad():
            executable = self._executables.get(key)
            if executable is None:
                with pipeline.LOCK:
                    executable = self._executables.get(key)
                    if executable is None:
                        executable = self._executables[key] = self._compile(flat, sizes)
            if executable.run.written_over:
                self._release()
            flat = [x.contiguous() for x in flat]  # the layout that the program was compiled for
            if executable.run.written_over:
                donation.take_over(flat, executable.run.written_over)
            return executable.build(iter(executable.run(flat)))

    def _compile(self, flat: Sequence[torch.Tensor], sizes: tuple[Sizes, Sizes]) -> _Executable:
        pipeline.check_switches()
        flat = _unshared([x.contiguous() for x in flat])
        _check_devices(flat, sizes)
        inductor = codegen() == "inductor"
        with loops.holding() as held:
            graph, build = self._trace(flat, sizes, inductor and is_on("decompositions"))
        start = count(sizes[0])
        plan = pipeline.Plan(
            graph,
            flat,
            weights=[start + position for position in in_tuples(sizes[1])],
            successors=donation.successors(graph, in_tuples(sizes[0])) if inductor else {},
        )
        return _Executable(pipeline.optimize(plan), build, held)

    def _trace(self, flat: Sequence[torch.Tensor], sizes: tuple[Sizes, Sizes], decompose: bool) -> tuple[Any, Any]:
        """The FX graph of the function, and a function that builds its result from arrays."""
        builders: list[Callable[[Iterator[Any]], Any]] = []

        def body(*tracers: Any) -> list[torch.Tensor]:
            remaining = iter(tracers)
            result = self._fn(*(unflatten_arguments(size, remaining) for size in sizes))
            arrays: list[Any] = []
            builders.append(flatten_result(result, arrays))
            return [as_tensor(x, *self._elements).contiguous() for x in arrays]

        with _tracers(flat) as fakes:
            graph = compat.trace_graph(body, fakes, decompositions() if decompose else None)
        refuse_in_place(graph)
        in_order(graph)
        graph.graph.eliminate_dead_code()
        return graph, builders[0]


def _check_devices(flat: Sequence[torch.Tensor], sizes: tuple[Sizes, Sizes]) -> None:
    remaining = iter(flat)
    leaves = [leaf for size in sizes for leaf in unflatten_arguments(size, remaining) if not isinstance(leaf, RngState)]
    arrays = [x for leaf in leaves for x in (leaf if isinstance(leaf, tuple) else (leaf,))]
    devices = {x.device for x in arrays if x.ndim}  # an array without axes can be combined with arrays on any device
    if len(devices) > 1:
        raise ValueError(f"arrays on different devices: {', '.join(sorted(map(str, devices)))}")


def _unshared(flat: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors, copied where they share memory with an earlier one.

    A tracer stands for a position, not for a tensor. If one tensor is at two positions in the traced call, PyTorch
    would make one input of them, and views of one input of tensors that share memory; the next call may differ.
    """
    tensors: list[torch.Tensor] = []
    seen: set[int] = set()
    for x in flat:
        memory = x.untyped_storage().data_ptr()
        tensors.append(x.clone() if memory in seen else x)
        if memory:  # zero for an empty tensor, or one without values
            seen.add(memory)
    return tensors


def trace_only(fn: Body, donated: Any, kept: Any) -> None:
    """Run a function on tracers."""
    flat: list[torch.Tensor] = []
    sizes = flatten_arguments(donated, flat), flatten_arguments(kept, flat)
    within = tracing.get() and compat.fake_mode() is not None
    with nested_tracers(flat) if within else _tracers(flat) as fakes:
        remaining = iter(fakes)
        fn(*(unflatten_arguments(size, remaining) for size in sizes))


@contextmanager
def nested_tracers(flat: Sequence[torch.Tensor]) -> Generator[Sequence[Any]]:
    """Tracers within a trace, whose program they leave as it is."""
    with compat.without_proxies():
        yield flat


@contextmanager
def _tracers(flat: Sequence[torch.Tensor]) -> Generator[list[Any]]:
    """Tracers for these tensors, in a scope in which operations return tracers."""
    compat.need_compiler()
    # Without symbols, reading a value is an error at once; with them, the value would become a part of the program.
    mode = compat.FAKE_TENSOR_MODE.value(allow_non_fake_inputs=True, shape_env=None)
    try:
        with scope(tracing, True), torch.no_grad(), mode:
            yield [x if isinstance(x, compat.FAKE_TENSOR.value) else mode.from_tensor(x) for x in flat]
    finally:
        end(mode)

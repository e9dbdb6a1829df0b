"""Programs on PyTorch: a function is traced as a graph of PyTorch's operations, which its compiler makes code of.

PyTorch's own recorder reads Python's bytecode, and would stumble over tapes, locks and context variables. So a function
runs once on tracers (tensors without values), every operation on them is noted, and the flat list is compiled.
"""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateImportUsage=false, reportMissingTypeStubs=false

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from contextlib import contextmanager
from threading import RLock
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import torch

from phlox.backend import pytree
from phlox.backend.torch import compat
from phlox.backend.torch.compiler.codegen import codegen
from phlox.backend.torch.compiler.decompositions import OPTIONS, decompositions
from phlox.backend.torch.compiler.kernels import attention, gemm, packed_gemm, winograd
from phlox.backend.torch.compiler.passes import donation
from phlox.backend.torch.compiler.passes.constant_folding import FoldedConstants, packed
from phlox.backend.torch.compiler.passes.fusion_hints import prepare
from phlox.backend.torch.compiler.passes.layout import Layout, assign
from phlox.backend.torch.compiler.passes.multi_tensor import Calls, Updates
from phlox.backend.torch.compiler.passes.scalar_cse import merge
from phlox.backend.torch.tracer import RngState, end, is_traced_by_others, tracing
from phlox.host.signal_guard import scope

Body: TypeAlias = Callable[[Any, Any], Any]

_lock = RLock()
"""PyTorch records, and compiles, one program at a time: it replaces functions of its own on the way."""

_nodes: dict[type[Any], pytree.Node] = {}
pytree.listen(lambda node: _nodes.__setitem__(node.cls, node))


class _Recorded(NamedTuple):
    """A function for arguments of certain shapes."""

    layout: Layout
    run: Callable[..., Any]
    put_together: Callable[[Iterator[Any]], Any]
    """The result, made of the arrays of a run."""
    over: Sequence[int] = ()
    """The arguments that a run writes over,"""
    sources: Sequence[int | None] = ()
    """and which of its arrays they are, if not all are those that `run` returns."""
    updates: Calls | None = None
    """What is still to be done for these."""


class Program:
    """A function of two lists of arrays, recorded for every combination of shapes and then run as one program."""

    def __init__(self, fn: Body, release: Callable[[], object], number: torch.dtype, integer: torch.dtype) -> None:
        self._fn, self._let_go = fn, release
        self._elements = number, integer
        self._made: dict[Hashable, _Recorded] = {}

    def __call__(self, donated: Sequence[Any], kept: Sequence[Any]) -> Any:
        flat: list[torch.Tensor] = []
        forms = _Forms(flat)
        sizes = forms.read(donated), forms.read(kept)
        if is_traced_by_others() or any([type(x) is not torch.Tensor or x.requires_grad for x in flat]):  # noqa: C419
            # Under somebody else's recording, or PyTorch's own tape, it is as if the function were called.
            return self._fn(donated, kept)
        # How many threads share a loop is written into the code.
        key = (*[(x.shape, x.dtype, x.device) for x in flat], torch.get_num_threads(), codegen())
        with torch.no_grad():
            made = self._made.get(key)
            if made is None:
                with _lock:
                    made = self._made.get(key)
                    if made is None:
                        made = self._made[key] = self._record(flat, sizes)
            if made.over:
                self._let_go()
                del forms  # which holds what it has read
            flat = made.layout.of(flat)
            if made.over:
                donation.copy_if_aliased(flat, made.over)
            arrays = made.run(*flat)
            if made.over:
                arrays = donation.together(made.sources, flat, arrays)
            if made.updates is not None:
                arrays = made.updates.together(flat, arrays)
            if made.over:
                donation.written([flat[at] for at in made.over])
            return made.put_together(iter(arrays))

    def _record(self, flat: Sequence[torch.Tensor], sizes: tuple[Any, Any]) -> _Recorded:
        flat = _apart([x.contiguous() for x in flat])
        rest = iter(flat)
        leaves = [leaf for size in sizes for leaf in _rebuilt(size, rest) if not isinstance(leaf, RngState)]
        arrays = [x for leaf in leaves for x in (leaf if isinstance(leaf, tuple) else (leaf,))]
        devices = {x.device for x in arrays if x.ndim}  # what has no axes meets arrays on any
        if len(devices) > 1:
            raise ValueError(f"arrays on different devices: {', '.join(sorted(map(str, devices)))}")
        forms: list[Callable[[Iterator[Any]], Any]] = []

        def body(*tracers: Any) -> list[torch.Tensor]:
            rest = iter(tracers)
            result = self._fn(*(_rebuilt(size, rest) for size in sizes))
            found: list[Any] = []
            forms.append(_taken_apart(result, found))
            return [_array(x, *self._elements).contiguous() for x in found]

        inductor = codegen() == "inductor"
        with _tracers(flat) as fakes:
            graph = compat.trace_graph(body, fakes, decompositions() if inductor else None)
        graph.graph.eliminate_dead_code()
        merge(graph)
        start = sum(1 if size is None or size < 0 else size for size in sizes[0])
        weights = [start + at for at in _in_tuples(sizes[1])]
        pairs = donation.successors(graph, _in_tuples(sizes[0])) if inductor else {}
        over = donation.worthwhile(graph, pairs) if donation.can_tell else {}
        updates = Updates(graph, pairs, over) if pairs else None
        orders = assign(graph)
        layout = Layout(orders, weights)
        run = packed(graph, weights) if inductor else None
        if run is not None:
            return _Recorded(layout, run, forms[0])
        if inductor and not pairs and (found := packed_gemm.lower(graph, weights)) is not None:  # it only predicts
            make, used = found
            flat = layout.of(flat)
            more = make(*[flat[at] for at in used])
            return _Recorded(layout, FoldedConstants(make, _compiled(graph, [*flat, *more]), used), forms[0])
        calls, sources = None, list[int | None]()
        if updates is not None:
            calls, places = updates.cut_out(graph, orders, _compiled)
            sources = donation.write_over(graph, {one: places[at] for one, at in over.items() if at in places})
        return _Recorded(layout, _compiled(graph, layout.of(flat)), forms[0], tuple(over), sources, calls)


def _apart(flat: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors, copied where they share memory with an earlier one.

    A tracer stands for a position, not for a tensor. PyTorch would make one input of what is one tensor in the call
    that is traced, and views of one input of what shares memory there; the next call may bring others.
    """
    found: list[torch.Tensor] = []
    seen: set[int] = set()
    for x in flat:
        memory = x.untyped_storage().data_ptr()
        found.append(x.clone() if memory in seen else x)
        if memory:  # of what is empty, or has no values, there is none
            seen.add(memory)
    return found


def _in_tuples(sizes: Sequence[int | None]) -> list[int]:
    """The places of the arrays of modules and states."""
    at, found = 0, list[int]()
    for size in sizes:
        count = 1 if size is None or size < 0 else size
        found += range(at, at + count) if size is not None and size >= 0 else ()
        at += count
    return found


def trace_only(fn: Body, donated: Any, kept: Any) -> None:
    """Run a function on tracers."""
    flat: list[torch.Tensor] = []
    forms = _Forms(flat)
    sizes = forms.read(donated), forms.read(kept)
    with _tracers(flat) as fakes:
        rest = iter(fakes)
        fn(*(_rebuilt(size, rest) for size in sizes))


@contextmanager
def _tracers(flat: Sequence[torch.Tensor]) -> Generator[list[Any]]:
    """Tracers for these tensors, in a scope in which operations give tracers."""
    compat.need_compiler()
    # Without symbols, asking for a value is an error at once; with them it would become a part of the program.
    mode = compat.FAKE_TENSOR_MODE.value(allow_non_fake_inputs=True, shape_env=None)
    try:
        with scope(tracing, True), torch.no_grad(), mode:
            yield [x if isinstance(x, compat.FAKE_TENSOR.value) else mode.from_tensor(x) for x in flat]
    finally:
        end(mode)


# --- arguments and results as flat lists


class _Forms:
    """Takes arguments apart: arrays, tuples of them, numbers, and the three words of a random stream."""

    def __init__(self, flat: list[Any]) -> None:
        self._flat = flat

    def read(self, leaves: Sequence[Any]) -> list[int | None]:
        """For each leaf, how many it is a tuple of, -1 for words, None for one array."""
        sizes: list[int | None] = []
        for leaf in leaves:
            if isinstance(leaf, tuple):
                parts = cast("tuple[Any, ...]", leaf)
                sizes.append(len(parts))
                self._flat.extend([x if isinstance(x, torch.Tensor) else _array(x) for x in parts])
            elif isinstance(leaf, RngState):
                sizes.append(-1)
                self._flat.append(leaf.words)
            elif isinstance(leaf, np.ndarray) and leaf.dtype == np.uint32:
                sizes.append(-1)
                self._flat.append(torch.from_numpy(leaf.astype(np.int64)))
            else:
                sizes.append(None)
                self._flat.append(leaf if isinstance(leaf, torch.Tensor) else _array(leaf))
        return sizes


def _rebuilt(sizes: Sequence[int | None], rest: Iterator[Any]) -> list[Any]:
    made: list[Any] = []
    for size in sizes:
        if size is None:
            made.append(next(rest))
        elif size < 0:
            made.append(RngState(next(rest)))
        else:
            made.append(tuple([next(rest) for _ in range(size)]))
    return made


def _array(x: Any, number: torch.dtype = torch.float64, integer: torch.dtype = torch.int64) -> torch.Tensor:
    """A tensor as it is; a number, or an array of them, as one."""
    if isinstance(x, torch.Tensor):
        return x
    whole = x.dtype.kind == "i" if isinstance(x, (np.ndarray, np.generic)) else isinstance(x, int)
    return torch.tensor(x, dtype=integer if whole else number)


def _taken_apart(value: Any, flat: list[Any]) -> Callable[[Iterator[Any]], Any]:
    """Append the arrays of a result; what is returned puts it together again of others."""
    node = _nodes.get(type(value))
    if node is not None:
        parts, structure = node.flatten(value)
        inner = _taken_apart(list(parts), flat)
        return lambda rest: node.unflatten(structure, inner(rest))
    if isinstance(value, (list, tuple)):
        kind = cast("type[Any]", type(cast("Any", value)))
        inner_forms = [_taken_apart(part, flat) for part in cast("list[Any]", value)]
        return lambda rest: kind([form(rest) for form in inner_forms])
    flat.append(value)
    return next


# --- code


def _compiled(graph: Any, flat: Sequence[torch.Tensor]) -> Callable[..., Any]:
    """The graph as code; or as it is, with a warning, where PyTorch finds no compiler that works."""
    if codegen() == "none" or not any(node.op == "call_function" for node in graph.graph.nodes):
        return graph.forward
    gemm.lower(graph)
    prepare(graph)
    winograd.lower(graph)
    attention.lower(graph)
    try:
        return compat.compile_graph(graph, flat, OPTIONS)
    except Exception as error:
        graph.forward(*flat)  # which raises what is no fault of the compiler
        cause = error.__cause__ or error
        lines = str(cause).strip().splitlines() or [type(cause).__name__]
        warnings.warn(
            f"PyTorch's compiler does not work here, so a compiled function runs its operations one by one: {lines[0]}",
            RuntimeWarning,
            stacklevel=2,
        )
        return graph.forward

"""Loops in programs: the body is traced once and compiled once, and one operation of the program calls it.

Unrolled, a loop of n steps would be a program n times as large, whose compiler takes n times as long and may hold the
arrays of all steps at once.
"""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateImportUsage=false

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias, cast
from weakref import WeakValueDictionary

import torch

from phlox.backend.torch import compat
from phlox.backend.torch.compiler import pipeline
from phlox.backend.torch.compiler.codegen import codegen, is_on
from phlox.backend.torch.compiler.decompositions import decompositions
from phlox.backend.torch.compiler.flatten import as_tensor
from phlox.backend.torch.compiler.graph import origin_of
from phlox.backend.torch.compiler.passes import donation
from phlox.backend.torch.symbolic_loop import OuterOperands, Replacing
from phlox.backend.torch.tracer import RngState
from phlox.host.signal_guard import scope

Arrays: TypeAlias = tuple[Any, ...]
Body: TypeAlias = Callable[[Arrays, Arrays], tuple[Sequence[Any], Sequence[Any]]]
Shape: TypeAlias = tuple[Any, torch.dtype, torch.device]


class Loop:
    """The body of a loop: a graph from the carry, an entry of each of the xs, and tensors from outside."""

    def __init__(self, graph: Any, carry: Sequence[Shape], ys: Sequence[Shape], unchanged: Sequence[bool]) -> None:
        self.graph, self.carry, self.ys, self.unchanged = graph, carry, ys, unchanged
        self._bodies: dict[tuple[int, str], pipeline.Executable] = {}

    def body(self, example: Sequence[torch.Tensor]) -> pipeline.Executable:
        """The compiled body, from operands like these to the changed entries of the carry, and the ys."""
        key = torch.get_num_threads(), codegen()  # on which the generated code depends
        if key not in self._bodies:
            with pipeline.LOCK:
                if key not in self._bodies:
                    graph = copy.deepcopy(self.graph)  # which the passes change
                    over = donation.successors(graph, range(len(self.carry))) if codegen() == "inductor" else {}
                    self._bodies[key] = pipeline.optimize(pipeline.Plan(graph, list(example), [], over))
        return self._bodies[key]


_loops: WeakValueDictionary[str, Loop] = WeakValueDictionary()
"""The loops of programs that are in use. A name says what a loop computes, so it stays true in a cache on disk."""
_held: ContextVar[list[Loop] | None] = ContextVar("_held", default=None)


@contextmanager
def holding() -> Generator[list[Loop]]:
    """A scope that lists the loops of the program that is traced in it; they live as long as the list."""
    loops: list[Loop] = []
    with scope(_held, loops):
        yield loops


def scan(body: Body, carry: Arrays, xs: Arrays, length: int, reverse: bool) -> tuple[Arrays, Arrays]:
    """See `phlox.backend.contract.tracing`."""
    count = len(carry)
    state, along = [_array(x) for x in carry], [_array(x) for x in xs]
    streams = [isinstance(x, RngState) for x in (*carry, *xs)]
    results_are_streams: list[bool] = []

    def step(inputs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        values = _with_streams(inputs, streams)
        after, y = body(values[:count], values[count:])
        results_are_streams[:] = [isinstance(x, RngState) for x in (*after, *y)]
        return [_array(x) for x in after], [_array(x) for x in y]

    with compat.without_proxies():
        inputs = [_copied(x) for x in (*state, *(x[0] for x in along))]
        with OuterOperands(inputs) as noted:
            after, y = step(inputs)
        outer = noted.with_results([*after, *y])
    if compat.proxy_mode() is None:  # only the shapes are used
        results = [*after, *[x.new_empty((length, *x.shape)) for x in y]]
    else:
        loop, name = _traced(step, inputs, count, outer)
        _keep(loop)
        results = _operations.loop.default(state, along, outer, length, reverse, name)
    results = _with_streams(results, results_are_streams)
    return results[:count], results[count:]


def _array(x: Any) -> Any:
    """An operand or result of a loop as one tensor; a tuple of numbers has one for each step."""
    if isinstance(x, tuple):
        return torch.stack([as_tensor(number) for number in cast("tuple[Any, ...]", x)])
    return x.words if isinstance(x, RngState) else x


def _with_streams(arrays: Sequence[Any], are_streams: Sequence[bool]) -> Arrays:
    return tuple([RngState(x) if is_stream else x for x, is_stream in zip(arrays, are_streams, strict=True)])


def _traced(
    step: Callable[[Sequence[Any]], tuple[list[Any], list[Any]]],
    inputs: Sequence[Any],
    count: int,
    outer: Sequence[Any],
) -> tuple[Loop, str]:
    """The loop whose body is this function, with so many arrays in its carry, and its name."""
    unchanged: list[bool] = []
    shapes: list[list[Shape]] = []

    def traced(*operands: Any) -> list[Any]:
        others = {id(x): other for x, other in zip(outer, operands[len(inputs) :], strict=True)}
        with Replacing(others):
            after, y = step(operands[: len(inputs)])
        after, y = ([others.get(id(x), x) for x in part] for part in (after, y))
        unchanged[:] = [x is before for x, before in zip(after, operands[:count], strict=True)]
        shapes[:] = [[(tuple(x.shape), x.dtype, x.device) for x in part] for part in (after, y)]
        changed = [x for x, same in zip(after, unchanged, strict=True) if not same]
        return [x.contiguous() for x in (*changed, *y)]

    decompose = codegen() == "inductor" and is_on("decompositions")
    with compat.without_proxies():
        operands = [_copied(x) for x in (*inputs, *outer)]
        graph = compat.trace_graph(traced, operands, decompositions() if decompose else None)
    graph.graph.eliminate_dead_code()
    _separate(graph)
    loop = Loop(graph, shapes[0], shapes[1], unchanged)
    name = _name_of(loop, operands)
    return _loops.setdefault(name, loop), name


def _separate(graph: Any) -> None:
    """Copy results that are an operand, a view of one, or a view of another result."""
    output = list(graph.graph.nodes)[-1]
    results: list[Any] = []
    origins: set[Any] = set()
    for node in output.args[0]:
        origin, result = origin_of(node), node
        if origin.op != "call_function" or origin in origins:
            with graph.graph.inserting_before(output):
                result = graph.graph.call_function(torch.ops.aten.clone.default, (node,))
            result.meta["val"] = node.meta["val"]
        origins.add(origin)
        results.append(result)
    output.args = (results,)
    graph.recompile()


def _name_of(loop: Loop, operands: Sequence[Any]) -> str:
    """A name that two loops share only if they compute the same."""
    digest = hashlib.sha256(loop.graph.code.encode())
    shapes = [[(str(size), str(dtype), str(device)) for size, dtype, device in part] for part in (loop.carry, loop.ys)]
    digest.update(repr((torch.__version__, shapes, loop.unchanged)).encode())
    digest.update(repr([(tuple(x.shape), x.dtype, x.device) for x in operands]).encode())
    constants = [getattr(loop.graph, node.target) for node in loop.graph.graph.nodes if node.op == "get_attr"]
    with compat.without_tracing():
        for constant in constants:
            digest.update(constant.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _keep(loop: Loop) -> None:
    held = _held.get()
    if held is not None:
        held.append(loop)


def _copied(x: Any) -> Any:
    return x.clone(memory_format=torch.contiguous_format)


# --- the operation of a program

_library = torch.library.Library("phlox", "FRAGMENT")
_operations: Any = torch.ops.phlox
_library.define("loop(Tensor[] carry, Tensor[] xs, Tensor[] outer, int length, bool reverse, str name) -> Tensor[]")


def _run(
    carry: list[torch.Tensor], xs: list[torch.Tensor], outer: list[torch.Tensor], length: int, reverse: bool, name: str
) -> list[torch.Tensor]:
    loop = _loops[name]
    entries, outer = [x.contiguous().unbind() for x in xs], [x.contiguous() for x in outer]
    state = [x.contiguous() for x in carry]
    body = loop.body([*state, *[rows[0] for rows in entries], *outer])
    state = [x.clone() if index in body.written_over else x for index, x in enumerate(state)]
    stacked = [torch.empty((length, *shape), dtype=dtype, device=device) for shape, dtype, device in loop.ys]
    for number in reversed(range(length)) if reverse else range(length):
        remaining = iter(body([*state, *[rows[number] for rows in entries], *outer]))
        state = [x if same else next(remaining) for x, same in zip(state, loop.unchanged, strict=True)]
        for rows, y in zip(stacked, remaining, strict=True):
            rows[number].copy_(y)
    return [*[x.clone() if same else x for x, same in zip(state, loop.unchanged, strict=True)], *stacked]


def _shapes(
    carry: list[torch.Tensor], xs: list[torch.Tensor], outer: list[torch.Tensor], length: int, reverse: bool, name: str
) -> list[torch.Tensor]:
    loop = _loops[name]
    sizes = [*loop.carry, *[((length, *shape), dtype, device) for shape, dtype, device in loop.ys]]
    return [torch.empty(shape, dtype=dtype, device=device) for shape, dtype, device in sizes]


_library.impl("loop", _run, "CompositeExplicitAutograd")
torch.library.register_fake("phlox::loop", _shapes, lib=_library)

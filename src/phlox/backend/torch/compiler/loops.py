"""Loops in programs: the body is traced once and compiled once, and one operation of the program calls it.

Unrolled, a loop of n steps would be a program n times as large, whose compiler takes n times as long and may hold the
arrays of all steps at once.
"""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateImportUsage=false

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

import torch
from torch.fx.node import map_aggregate
from torch.utils._python_dispatch import TorchDispatchMode

from phlox.backend.torch import compat
from phlox.backend.torch.compiler import pipeline
from phlox.backend.torch.compiler.codegen import codegen, is_on
from phlox.backend.torch.compiler.decompositions import decompositions
from phlox.backend.torch.tracer import RngState
from phlox.host.signal_guard import scope

Arrays: TypeAlias = tuple[Any, ...]
Body: TypeAlias = Callable[[Arrays, Arrays], tuple[Sequence[Any], Sequence[Any]]]
Shape: TypeAlias = tuple[Any, torch.dtype, torch.device]


class Loop:
    """The body of a loop: a graph from the carry, an entry of each of the xs, and tensors from outside."""

    def __init__(self, graph: Any, carry: Sequence[Shape], ys: Sequence[Shape], unchanged: Sequence[bool]) -> None:
        self.graph, self.carry, self.ys, self.unchanged = graph, carry, ys, unchanged
        self._runs: dict[tuple[int, str], Callable[..., Any]] = {}

    def run(self, operands: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """The next carry and the ys of a step; operands are contiguous."""
        key = torch.get_num_threads(), codegen()  # on which the generated code depends
        if key not in self._runs:
            with pipeline.LOCK:
                if key not in self._runs:
                    self._runs[key] = pipeline.compile_graph(self.graph, operands)
        return self._runs[key](*operands)


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
        with _OuterOperands(inputs) as noted:
            after, y = step(inputs)
        noted.add([*after, *y])
    if compat.proxy_mode() is None:  # only the shapes are used
        results = [*after, *[x.new_empty((length, *x.shape)) for x in y]]
    else:
        loop, name = _traced(step, inputs, count, noted.outer)
        _keep(loop)
        results = _operations.loop.default(state, along, noted.outer, length, reverse, name)
    results = _with_streams(results, results_are_streams)
    return results[:count], results[count:]


def _array(x: Any) -> Any:
    """An operand or result of a loop as one tensor; a tuple of numbers has one for each step."""
    return torch.tensor(x) if isinstance(x, tuple) else x.words if isinstance(x, RngState) else x


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
        with _Replacing(others):
            after, y = step(operands[: len(inputs)])
        after, y = ([others.get(id(x), x) for x in part] for part in (after, y))
        unchanged[:] = [x is before for x, before in zip(after, operands[:count], strict=True)]
        shapes[:] = [[(tuple(x.shape), x.dtype, x.device) for x in part] for part in (after, y)]
        # No result may be an operand, a view of one, or another result.
        changed = [x for x, same in zip(after, unchanged, strict=True) if not same]
        return [_copied(x) for x in (*changed, *y)]

    decompose = codegen() == "inductor" and is_on("decompositions")
    with compat.without_proxies():
        operands = [_copied(x) for x in (*inputs, *outer)]
        graph = compat.trace_graph(traced, operands, decompositions() if decompose else None)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    loop = Loop(graph, shapes[0], shapes[1], unchanged)
    name = _name_of(loop, operands)
    return _loops.setdefault(name, loop), name


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


class _OuterOperands(TorchDispatchMode):
    """Lists the tracers that operations use and that were not made within this scope."""

    def __init__(self, inputs: Sequence[Any]) -> None:
        super().__init__()
        self._inside = {id(x): x for x in inputs}  # keeps them alive, so that no other object gets their ids
        self.outer: list[Any] = []

    def add(self, values: Any) -> None:
        """Note the tracers in lists, tuples and dicts."""

        def note(x: Any) -> Any:
            if isinstance(x, compat.FAKE_TENSOR.value) and id(x) not in self._inside:
                self._inside[id(x)] = x
                self.outer.append(x)
            return x

        map_aggregate(values, note)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.add((args, kwargs or {}))
        result = func(*args, **(kwargs or {}))
        map_aggregate(result, lambda x: self._inside.setdefault(id(x), x))
        return result


class _Replacing(TorchDispatchMode):
    """Replaces operands of operations by others."""

    def __init__(self, others: Mapping[int, Any]) -> None:
        super().__init__()
        self._others = others

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = map_aggregate((args, kwargs or {}), lambda x: self._others.get(id(x), x))
        return func(*args, **kwargs)


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
    stacked = [torch.empty((length, *shape), dtype=dtype, device=device) for shape, dtype, device in loop.ys]
    for number in reversed(range(length)) if reverse else range(length):
        results = loop.run([*state, *[rows[number] for rows in entries], *outer])
        remaining = iter(results)
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

"""`px.compile(..., verify=True)`: before a compiled call, compares it with an eager call, both on copies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import CodeType
from typing import Any, cast

import numpy as np

from phlox import random
from phlox.backend import Backend, Float
from phlox.backend.contract.backend import engine_of
from phlox.debug.operands import arrays_in
from phlox.debug.places import place_of_call
from phlox.debug.running import twin_of, undisturbed
from phlox.errors import CompileError
from phlox.module import GradientsParams, Module
from phlox.module.calls import Call, layer_name, observed
from phlox.optim import Optimizer
from phlox.tensor import Tensor
from phlox.tensor.dispatch import Ops
from phlox.tensor.observing import observed_operations
from phlox.transform.compile.api import compile
from phlox.transform.tree import AnyTensor, leaves_of, map_leaves, parts_of

Host = np.ndarray[Any, Any]
Named = list[tuple[str, Host]]

_ROUNDINGS = {"f64": 1e-10, "f32": 1e-4, "f16": 5e-2, "bf16": 3e-1}
"""The accepted difference due to rounding, relative to the largest magnitude of a tensor, by float dtype."""
_RESULT = "the result"
_MARGIN = 50.0
"""The accepted multiple of the difference that a change of the arguments in their last digit causes."""


def verify(
    name: str,
    fn: Callable[..., Any],
    values: tuple[Any, ...],
    kwargs: dict[str, Any],
    compiled: Callable[[tuple[Any, ...], dict[str, Any]], Any],
    names: Sequence[str],
    donated: frozenset[str],
) -> None:
    """Compare the results of a compiled call, and the arguments after it, with an eager call; no argument changes.

    `names` are those of positional arguments; donated modules are not compared after the call.
    A difference is beyond rounding if it is larger than a change of the arguments in their last digit would cause, plus
    some roundings of the largest element. Raises `CompileError`, with the first operation that differs.
    """
    arguments = values, kwargs

    def named(result: Any, arguments_after: Any) -> Named:
        tensors = list(_hosts(result, _RESULT))
        for argument, value in (*zip(names, arguments_after[0], strict=True), *arguments_after[1].items()):
            for path, leaf in leaves_of(value, Optimizer if argument in donated else (Module, Optimizer)):
                tensors += _hosts(leaf, f"`{argument}{path}` after the call,")
        return tensors

    def eagerly(arguments: Any) -> Named:
        with _eager_scope(_copied(arguments)) as copies:
            return named(fn(*copies), copies)

    eager, nudged = eagerly(arguments), eagerly(_nudged(arguments))
    stream = random.current()
    copies = _copied(arguments)
    with random.stream(stream.replay(stream.position)):
        actual = named(compiled(*copies), copies)
    wrong = _differences(actual, eager, nudged)
    if not wrong:
        return
    lines = [f"{name}: compiled, {len(wrong)} of {len(eager)} results differ beyond rounding from an eager call's:"]
    lines += [f"  {label}: {line}" for label, line in wrong[:5]]
    expected = dict(eager)
    lines.append(_origin(fn, arguments, [expected[label] for label, _ in wrong if label in expected]))
    raise CompileError("\n".join(lines))


# --- the results of a call, and the arguments after it


@contextmanager
def _eager_scope(arguments: Any) -> Generator[Any]:
    """A scope in which a function may be called eagerly with these arguments."""
    with undisturbed() as trace:
        yield map_leaves(lambda optimizer: twin_of(optimizer, trace), arguments, Optimizer)


def _hosts(value: Any, name: str) -> Iterable[tuple[str, Host]]:
    if isinstance(value, Tensor):
        tensor = cast("AnyTensor", value)
        engine = engine_of(tensor.backend)
        yield name, np.asarray(engine.to_host(tensor.backend.strip(tensor.primitive)))
    elif isinstance(value, Module):
        for path, param in value.named_params():
            if param.is_initialized:
                yield from _hosts(param.val(), f"{name} `{path}`")
    elif isinstance(value, GradientsParams):
        for index, gradient in enumerate(value._tensors.values()):  # pyright: ignore[reportPrivateUsage]
            yield from _hosts(gradient, f"{name}, gradient {index}")
    elif isinstance(value, Optimizer):
        for path, entry in value.into_record().tensors.items():
            yield f"{name} its state `{path}`", entry.tensor.read()
    elif isinstance(value, (bool, int, float, np.ndarray)):
        yield name, np.asarray(value)
    else:
        for label, part in parts_of(value) or ():
            yield from _hosts(part, name + label)


def _copied(arguments: Any, change: Callable[[Backend, Any], Any] | None = None) -> Any:
    """Copies of the arguments, which a program may overwrite."""

    def copied(value: AnyTensor) -> AnyTensor:
        backend = value.backend
        plain, engine = backend.strip(value.primitive), engine_of(backend)
        if engine.is_traced(plain):
            return value
        array = engine.duplicate(plain) if change is None or value.kind is not Float else change(engine, plain)
        copy: AnyTensor = Tensor.from_primitive(array, backend, value.kind)
        return copy.require_grad() if value.is_require_grad() else copy

    def leaf(value: Any) -> Any:
        if isinstance(value, Module):
            return value.map(lambda path, param: param.map(copied) if param.is_initialized else param)
        if isinstance(value, Optimizer):
            twin = value.twin()
            twin.load_record(value.into_record())
            return twin
        return copied(value)

    return map_leaves(leaf, arguments, (Tensor, Module, Optimizer))


def _nudged(arguments: Any) -> Any:
    """Copies of the arguments, with floats changed in their last digit."""
    rng = np.random.default_rng(0)

    def change(engine: Backend, plain: Any) -> Any:
        host = np.asarray(engine.to_host(plain))
        eps = float(np.spacing(np.ones((), host.dtype)))
        moved = (host * (1.0 + eps * rng.choice([-1.0, 1.0], host.shape))).astype(host.dtype)
        return engine.from_host(moved, Float, engine.device_of(plain))

    with np.errstate(all="ignore"):
        return _copied(arguments, change)


# --- comparing


def _differences(actual: Named, eager: Named, nudged: Named) -> list[tuple[str, str]]:
    several = [[name for name, _ in tensors if name.startswith(_RESULT)] for tensors in (actual, eager)]
    if several[0] != several[1]:
        return [(_RESULT, f"{len(several[0])} arrays, eagerly {len(several[1])}")]
    expected, others = dict(eager), dict(nudged)
    lines: list[tuple[str, str]] = []
    for name, got in actual:
        line = _difference(got, expected[name], others.get(name))
        if line is not None:
            lines.append((name, line))
    return lines


def _difference(got: Host, expected: Host, nudged: Host | None) -> str | None:
    """The largest difference of two arrays and its index, if it is beyond rounding."""
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return f"{got.dtype} {got.shape}, eagerly {expected.dtype} {expected.shape}"
    if not got.size:
        return None
    kind = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}.get(got.dtype.name)
    with np.errstate(all="ignore"):
        a, b = got.astype(np.float64), expected.astype(np.float64)
        off = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
        off = np.where(np.isnan(off), np.inf, off)
        size = np.abs(b[np.isfinite(b)]).max(initial=0.0)
        moved = (
            np.abs(nudged.astype(np.float64) - b) if nudged is not None and nudged.shape == b.shape else np.zeros(())
        )
        moved = moved[np.isfinite(moved)].max(initial=0.0)
    bound = _MARGIN * moved + (0.0 if kind is None else _ROUNDINGS[kind] * size)
    if (off <= bound).all():
        return None
    at = np.unravel_index(int(off.argmax()), off.shape)
    where = f" at {tuple(map(int, at))}" if got.ndim else ""
    return f"{got[at]!s} instead of {expected[at]!s}{where}; {int((off > bound).sum())} of {got.size} elements"


# --- the first operation that differs


@dataclass(slots=True)
class _Step:
    """One result of an operation, or a gradient that it passed back."""

    label: str
    value: Any


class _Watch:
    """Collects the results of the operations of one call, and the gradients that they pass back."""

    def __init__(self, engine: Backend, within: CodeType) -> None:
        self.engine, self.within = engine, within
        self.steps: list[_Step] = []
        self._layers: list[Call] = []
        self._trace: object | None = None

    @contextmanager
    def watching(self, models: Iterable[Module]) -> Generator[None]:
        """A scope in which operations are collected."""
        self._trace = self.engine.current_trace()
        with ExitStack() as stack:
            for model in models:
                stack.enter_context(observed(model, lambda call: self._layers.pop(), on_enter=self._layers.append))
            stack.enter_context(observed_operations(self._on_operation))
            yield

    def _add(self, label: str, array: Any) -> None:
        # A loop's own tracers cannot leave it.
        if self.engine.current_trace() is self._trace:
            self.steps.append(_Step(label, array))

    def _on_operation(self, ops: Ops, name: str, arguments: tuple[Any, ...], result: Any) -> None:
        backend = ops.backend
        if engine_of(backend) is not self.engine:
            return
        call = self._layers[-1] if self._layers else None
        layer = f" in `{call.path}` ({layer_name(call.module)})" if call is not None else ""
        place = place_of_call(self.within)
        where = f"{layer}{'' if place is None else f', at {place}: {place.text}'}"
        results: Sequence[Any] = cast("Sequence[Any]", result) if isinstance(result, (list, tuple)) else [result]
        for x in arrays_in(results):
            self._add(f"`{name}`{where}", backend.strip(x))
            if backend.differentiates and (node := backend.node_of(x)) is not None and node.vjp is not None:
                node.vjp = self._watched_vjp(node.vjp, f"the gradient of `{name}`{where}")

    def _watched_vjp(self, vjp: Callable[..., None], label: str) -> Callable[..., None]:
        def watched(node: Any, g: Any, cotangents: Any) -> None:
            vjp(node, g, cotangents)
            for parent in node.parents:
                gradient = None if parent is None else cotangents.get(parent.id)
                if gradient is not None and type(gradient) is not dict:
                    self._add(label, gradient)

        return watched


def _origin(fn: Callable[..., Any], arguments: Any, wrong: Sequence[Host]) -> str:
    """A sentence on the first operation that differs when a program returns the results of all operations."""
    tensors = [
        *leaves_of(arguments, Tensor),
        *((path, param) for _, module in leaves_of(arguments, Module) for path, param in module.named_params()),
    ]
    engine = engine_of(tensors[0][1].backend)  # of a compiled call
    seen: list[list[tuple[str, int]]] = []

    def every(values: tuple[Any, ...], kwargs: dict[str, Any]) -> list[AnyTensor]:
        watch = _Watch(engine, every.__code__)
        with watch.watching([leaf for _, leaf in leaves_of((values, kwargs), Module)]):
            fn(values, kwargs)
        counts = Counter[str]()
        seen.append([])
        for step in watch.steps:
            seen[-1].append((step.label, counts[step.label]))
            counts[step.label] += 1
        return [Tensor.from_primitive(step.value, engine, engine.kind_of(step.value)) for step in watch.steps]

    def hosts(results: list[AnyTensor]) -> dict[tuple[str, int], Host]:
        return dict(zip(seen[-1], [np.asarray(engine.to_host(x.primitive)) for x in results], strict=True))

    def eagerly(arguments: Any) -> dict[tuple[str, int], Host]:
        with _eager_scope(_copied(arguments)) as held:
            return hosts(every(*held))

    eager, nudged = eagerly(arguments), eagerly(_nudged(arguments))
    try:
        stream = random.current()
        with random.stream(stream.replay(stream.position)):
            actual = hosts(compile(every, verify=False)(*_copied(arguments)))
    except Exception as error:  # the difference itself must still be reported
        return f"With the results of all operations the function cannot be compiled: {type(error).__name__}: {error}"
    for step, expected in eager.items():  # a program may have further operations between them, for random draws
        if step in actual and actual[step].shape == expected.shape:
            line = _difference(actual[step], expected, nudged.get(step))
            if line is not None:
                return f"The first operation that differs: {step[0]}\n  {line}"
    alike = (label for (label, _), value in eager.items() if any(np.array_equal(value, x) for x in wrong))
    return (
        f"The first operation that differs: {next(alike, 'none that was observed')}\n  A program that returns "
        "the results of all operations is right, so the compiler fuses several of them wrongly. Call the function "
        "without px.compile."
    )

# pyright: standard
"""Calls of programs on engines, and the comparison of their results."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Any, cast

import ml_dtypes
import numpy as np

import phlox as px
from phlox.backend import Backend, NumPy
from phlox.testing.conformance.running import cotangent
from phlox.testing.programs.program import Memory, Program

_EXACT = NumPy(float="f64")


@dataclass(frozen=True)
class _Run:
    """A program, and how to call it: the backend of the arguments, and the `compile` to use."""

    program: Program
    backend: Backend
    compile: Callable[..., Any]

    def arguments(self, *, second: bool = False) -> list[Any]:
        """The arguments of the first or the second call."""

        def as_argument(name: str, x: np.ndarray[Any, Any]) -> Any:
            value = px.tensor(x, device=self.backend.device())
            return value if name[0] == "x" else Memory(value).train()

        values = self.program.others if second else self.program.arguments
        return [as_argument(name, x) for name, x in values.items()]

    def stacked(self) -> list[Any]:
        """The arguments of both calls."""
        pairs = zip(self.arguments(), self.arguments(second=True), strict=True)
        return [px.stack_modules([*pair]) if isinstance(pair[0], Memory) else px.stack([*pair]) for pair in pairs]

    def fn(self, result: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """The program, or the function `result`, as a function whose parameters have the names of the arguments."""
        namespace: dict[str, Any] = {"px": px, "result": result}
        names = ", ".join(self.program.arguments)
        exec(self.program.source() if result is None else f"def program({names}): return result({names})", namespace)
        return namespace["program"]

    def floats(self, results: list[Any]) -> list[Any]:
        return [y for y in results if y.kind is px.Float]

    def total(self, results: list[Any]) -> Any:
        """A weighted sum of all float results, to be differentiated."""
        parts = [(y * px.tensor(cotangent(y.shape), device=self.backend)).sum() for y in self.floats(results)]
        return sum(parts[1:], parts[0]) if parts else px.zeros((), device=self.backend)

    @property
    def towards(self) -> tuple[int, ...]:
        return tuple([*self.program.arguments].index(name) for name in self.program.towards)

    def gradient(self, fn: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """A function that returns the results and the gradients."""
        program = fn or self.fn()

        def valued(*arguments: Any) -> tuple[Any, list[Any]]:
            results = program(*arguments)
            return self.total(results), results

        def called(*arguments: Any) -> list[Any]:
            if not self.towards:
                return program(*arguments)
            (_, results), gradients = px.value_and_grad(valued, argnums=self.towards)(*arguments)
            return [*results, *map(array, gradients, (arguments[at] for at in self.towards))]

        def array(gradient: Any, argument: Any) -> Any:
            if not isinstance(argument, Memory):
                return gradient
            of_weight = gradient.get(argument.weight)
            return px.zeros_like(argument.weight.val()) if of_weight is None else of_weight

        return self.fn(called)

    def named(self, results: list[Any], arguments: list[Any]) -> dict[str, Any]:
        """The results and gradients of a call by name, and the statistics in its arguments."""
        gradients = [f"gradient towards {name}" for name in self.program.towards]
        by_name = dict(zip([*self.program.results, *gradients], results, strict=True))
        for name, argument in zip(self.program.arguments, arguments, strict=True):
            if isinstance(argument, Memory):
                by_name |= {f"mean of {name}": argument.mean.val(), f"last of {name}": argument.last.val()}
        return by_name


def _called(run: _Run) -> dict[str, Any]:
    arguments = run.arguments()
    return run.named(run.compile(run.gradient())(*arguments), arguments)


def _again(run: _Run) -> dict[str, Any]:
    """Called with some values, with others, and once more."""
    compiled, results_of_calls = run.compile(run.gradient()), dict[str, Any]()
    first = run.arguments()
    for call, arguments in enumerate((first, run.arguments(second=True), first)):
        results = run.named(compiled(*arguments), arguments)
        results_of_calls |= {f"{name} of call {call}": y for name, y in results.items()}
    return results_of_calls


def _nested(run: _Run) -> dict[str, Any]:
    arguments = run.arguments()
    return run.named(run.compile(run.gradient(run.compile(run.fn())))(*arguments), arguments)


def _donated(run: _Run) -> dict[str, Any]:
    arguments = run.arguments()
    names = [name for name in run.program.arguments if name[0] == "x"]
    return run.named(run.compile(run.gradient(), donate=names)(*arguments), arguments)


def _in_steps(run: _Run) -> dict[str, Any]:
    """Two steps in one call."""
    arguments = run.stacked()
    for index, (name, argument) in enumerate(zip(run.program.arguments, run.arguments(), strict=True)):
        if name[0] == "m":
            arguments[index] = argument
    names = [name for name in run.program.arguments if name[0] == "x"]
    return run.named(run.compile(run.gradient(), steps=2, over=names)(*arguments), arguments)


def _batched(run: _Run) -> dict[str, Any]:
    arguments = run.stacked()
    return run.named(run.compile(px.vmap(run.gradient()))(*arguments), arguments)


def _batched_outside(run: _Run) -> dict[str, Any]:
    arguments = run.stacked()
    return run.named(px.vmap(run.compile(run.gradient()))(*arguments), arguments)


def _forward(run: _Run) -> dict[str, Any]:
    """Derivatives in one direction."""
    values, program = run.arguments(), run.fn()
    indices = [at for at in run.towards if not isinstance(values[at], Memory)]

    def called(*actual: Any) -> list[Any]:
        def at(*floats: Any) -> list[Any]:
            replaced = dict(zip(indices, floats, strict=True))
            return run.floats(program(*(replaced.get(index, value) for index, value in enumerate(actual))))

        inputs = tuple(actual[index] for index in indices)
        tangents = tuple(px.tensor(cotangent(x.shape), device=run.backend) for x in inputs)
        y, tangent = px.jvp(at, inputs, tangents)
        return [*y, *tangent]

    results = run.compile(run.fn(called))(*values) if indices else run.floats(run.compile(program)(*values))
    return {f"result {index}": y for index, y in enumerate(results)}


WAYS: dict[str, Callable[[_Run], dict[str, Any]]] = {
    "gradient": _called,
    "again": _again,
    "nested": _nested,
    "donated": _donated,
    "steps": _in_steps,
    "vmap": _batched,
    "vmap outside": _batched_outside,
    "jvp": _forward,
}
"""How a program is called, by name; all but the last compute its gradients, too."""


def run(program: Program, backend: Backend, way: str = "gradient", *, compiled: bool = False) -> dict[str, Any]:
    """The results of a program on a backend, called in one of the `WAYS`, and its gradients, as arrays of NumPy."""
    compile = px.compile if compiled else _eager
    with np.errstate(all="ignore"), warnings.catch_warnings(), px.random.stream(1):
        warnings.simplefilter("ignore", DeprecationWarning)  # PyTorch itself gives them when its compiler is loaded
        warnings.filterwarnings("ignore", "Some donated buffers")  # no result fits them
        results = WAYS[way](_Run(program, backend, compile))
        return {name: y.numpy() for name, y in results.items()}


def _eager(fn: Callable[..., Any], *, donate: Any = (), steps: int | None = None, over: Any = ()) -> Callable[..., Any]:
    """An eager function with the arguments of `compile`."""
    if steps is None:
        return fn

    def loop(*arguments: Any) -> list[Any]:
        names = [*signature(fn).parameters]
        each = [
            fn(*(x[step] if name in over else x for name, x in zip(names, arguments, strict=True)))
            for step in range(steps)
        ]
        return [px.stack([*column]) for column in zip(*each, strict=True)]

    return loop


def differences(program: Program, backend: Backend, way: str = "gradient", *, compiled: bool = True) -> list[str]:
    """One sentence for each result that differs from the result on `NumPy(float="f64")`.

    The accepted rounding comes from the same program on NumPy at the precision of the backend.
    """
    right, actual = run(program, _EXACT, way), run(program, backend, way, compiled=compiled)
    rounded = run(program, NumPy(float=cast("Any", backend.float_element)), way)
    eps = _eps(backend)
    half = eps > 1e-5  # a thousand such roundings would accept anything
    some, most = (16 * eps, 64 * eps) if half else (1e3 * eps, 2e-2)
    wrong: list[str] = []
    for name, expected in right.items():
        got = actual[name]
        if got.shape != expected.shape:
            wrong.append(f"{name}: of shape {got.shape}, expected {expected.shape}")
            continue
        off = np.abs(got.astype(np.float64) - expected)
        lost = np.abs(rounded[name].astype(np.float64) - expected).max(initial=0.0)
        bound = 0.0
        if expected.dtype.kind == "f":
            bound = some * (1.0 + np.abs(expected).max(initial=0.0)) + min(20 * lost, most)
        if not (off <= bound).all():
            at = np.unravel_index(int(np.nan_to_num(off, nan=np.inf).argmax()), off.shape)
            wrong.append(f"{name}: {got[at]} instead of {expected[at]} at {tuple(map(int, at))}")
    return wrong


def least_margin(backend: Backend) -> float:
    """The least distance of a program for this backend from jumps and kinks."""
    return max(1e-3, 30 * _eps(backend))


def _eps(backend: Backend) -> float:
    return float(cast("Any", ml_dtypes.finfo(backend.host_float_dtype)).eps)

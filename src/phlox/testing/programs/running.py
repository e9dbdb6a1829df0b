# pyright: standard
"""How programs are called, on which engine, and by how much results may differ."""

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
    """How a program is called: with which arguments, and with which `compile`."""

    program: Program
    backend: Backend
    compile: Callable[..., Any]

    def arguments(self, *, second: bool = False) -> list[Any]:
        """The arguments of a call; there are values for two."""

        def held(name: str, x: np.ndarray[Any, Any]) -> Any:
            value = px.tensor(x, device=self.backend.device())
            return value if name[0] == "x" else Memory(value).train()

        given = self.program.others if second else self.program.arguments
        return [held(name, x) for name, x in given.items()]

    def stacked(self) -> list[Any]:
        """The arguments of both calls."""
        pairs = zip(self.arguments(), self.arguments(second=True), strict=True)
        return [px.stack_modules([*pair]) if isinstance(pair[0], Memory) else px.stack([*pair]) for pair in pairs]

    def fn(self, result: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """The program, or another function, as one whose parameters are named as the arguments are."""
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
            (_, results), found = px.value_and_grad(valued, argnums=self.towards)(*arguments)
            return [*results, *map(array, found, (arguments[at] for at in self.towards))]

        def array(found: Any, argument: Any) -> Any:
            if not isinstance(argument, Memory):
                return found
            held = found.get(argument.weight)
            return px.zeros_like(argument.weight.val()) if held is None else held

        return self.fn(called)

    def named(self, results: list[Any], arguments: list[Any]) -> dict[str, Any]:
        """The results and gradients of a call by name, and what its arguments remember."""
        gradients = [f"gradient towards {name}" for name in self.program.towards]
        found = dict(zip([*self.program.results, *gradients], results, strict=True))
        for name, one in zip(self.program.arguments, arguments, strict=True):
            if isinstance(one, Memory):
                found |= {f"mean of {name}": one.mean.val(), f"last of {name}": one.last.val()}
        return found


def _called(run: _Run) -> dict[str, Any]:
    given = run.arguments()
    return run.named(run.compile(run.gradient())(*given), given)


def _again(run: _Run) -> dict[str, Any]:
    """Called with some values, with others, and once more."""
    compiled, found = run.compile(run.gradient()), dict[str, Any]()
    given = run.arguments()
    for call, arguments in enumerate((given, run.arguments(second=True), given)):
        results = run.named(compiled(*arguments), arguments)
        found |= {f"{name} of call {call}": y for name, y in results.items()}
    return found


def _nested(run: _Run) -> dict[str, Any]:
    given = run.arguments()
    return run.named(run.compile(run.gradient(run.compile(run.fn())))(*given), given)


def _donated(run: _Run) -> dict[str, Any]:
    given = run.arguments()
    names = [name for name in run.program.arguments if name[0] == "x"]
    return run.named(run.compile(run.gradient(), donate=names)(*given), given)


def _in_steps(run: _Run) -> dict[str, Any]:
    """Two steps in one call."""
    given = run.stacked()
    for at, (name, one) in enumerate(zip(run.program.arguments, run.arguments(), strict=True)):
        if name[0] == "m":
            given[at] = one
    names = [name for name in run.program.arguments if name[0] == "x"]
    return run.named(run.compile(run.gradient(), steps=2, over=names)(*given), given)


def _batched(run: _Run) -> dict[str, Any]:
    given = run.stacked()
    return run.named(run.compile(px.vmap(run.gradient()))(*given), given)


def _batched_outside(run: _Run) -> dict[str, Any]:
    given = run.stacked()
    return run.named(px.vmap(run.compile(run.gradient()))(*given), given)


def _forward(run: _Run) -> dict[str, Any]:
    """Derivatives in a direction."""
    given, program = run.arguments(), run.fn()
    places = [at for at in run.towards if not isinstance(given[at], Memory)]

    def called(*arguments: Any) -> list[Any]:
        def at(*floats: Any) -> list[Any]:
            put = dict(zip(places, floats, strict=True))
            return run.floats(program(*(put.get(place, one) for place, one in enumerate(arguments))))

        inputs = tuple(arguments[place] for place in places)
        tangents = tuple(px.tensor(cotangent(x.shape), device=run.backend) for x in inputs)
        y, tangent = px.jvp(at, inputs, tangents)
        return [*y, *tangent]

    found = run.compile(run.fn(called))(*given) if places else run.floats(run.compile(program)(*given))
    return {f"result {at}": y for at, y in enumerate(found)}


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
    how = px.compile if compiled else _eager
    with np.errstate(all="ignore"), warnings.catch_warnings(), px.random.stream(1):
        warnings.simplefilter("ignore", DeprecationWarning)  # PyTorch's own, as its compiler loads
        warnings.filterwarnings("ignore", "Some donated buffers")  # which no result fits
        found = WAYS[way](_Run(program, backend, how))
        return {name: y.numpy() for name, y in found.items()}


def _eager(fn: Callable[..., Any], *, donate: Any = (), steps: int | None = None, over: Any = ()) -> Callable[..., Any]:
    """What `compile` does, eagerly."""
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
    """One sentence for each result that differs from that of `NumPy(float="f64")`.

    How much rounding may change is taken from the same program on NumPy at the precision of the backend.
    """
    right, found = run(program, _EXACT, way), run(program, backend, way, compiled=compiled)
    rounded = run(program, NumPy(float=cast("Any", backend.float_element)), way)
    eps = _eps(backend)
    half = eps > 1e-5  # a thousand roundings of it would say nothing
    some, most = (16 * eps, 64 * eps) if half else (1e3 * eps, 2e-2)
    wrong: list[str] = []
    for name, wanted in right.items():
        got = found[name]
        if got.shape != wanted.shape:
            wrong.append(f"{name}: of shape {got.shape}, expected {wanted.shape}")
            continue
        off = np.abs(got.astype(np.float64) - wanted)
        lost = np.abs(rounded[name].astype(np.float64) - wanted).max(initial=0.0)
        bound = 0.0
        if wanted.dtype.kind == "f":
            bound = some * (1.0 + np.abs(wanted).max(initial=0.0)) + min(20 * lost, most)
        if not (off <= bound).all():
            at = np.unravel_index(int(np.nan_to_num(off, nan=np.inf).argmax()), off.shape)
            wrong.append(f"{name}: {got[at]} instead of {wanted[at]} at {tuple(map(int, at))}")
    return wrong


def least_margin(backend: Backend) -> float:
    """How far a program for this backend stays away from jumps and kinks."""
    return max(1e-3, 30 * _eps(backend))


def _eps(backend: Backend) -> float:
    return float(cast("Any", ml_dtypes.finfo(backend.host_float_dtype)).eps)

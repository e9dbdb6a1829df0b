# pyright: standard
"""A statement of the edge-case contract, code that demonstrates it, and its check."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any

import numpy as np

import phlox as px
from phlox.backend import Autodiff, Backend
from phlox.backend.numpy import NumPy
from phlox.host.dtypes import INT_RANGES
from phlox.testing.close import compare
from phlox.testing.conformance.checks import EXACT, NotCompared
from phlox.testing.conformance.running import kind_of
from phlox.testing.tolerances import tolerance_of


@dataclass(frozen=True)
class Raises:
    """An expected error, whose message contains these words."""

    error: type[Exception]
    words: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"`{self.error.__name__}`"


def raises(error: type[Exception], *words: str) -> Raises:
    """See `Raises`."""
    return Raises(error, words)


@dataclass(frozen=True, eq=False)
class Edge:
    """One statement of the contract, and lines of code with their results: nested lists of numbers, or an error."""

    section: str
    statement: str
    lines: tuple[tuple[str, Any], ...]
    signs: bool = False
    """Whether the signs of zeros are compared too."""
    compiled: bool = False
    """Whether this is about compiled functions; it is then skipped on a backend that does not compile."""


def check_edge(edge: Edge, backend: Backend) -> None:
    """Raise `AssertionError` unless every line gives the contract's result on this backend."""
    if edge.compiled and not backend.compiles:
        raise NotCompared(f"{backend!r} compiles no functions")
    names = namespace(backend)
    for code, expected in edge.lines:
        try:
            # NumPy's `+`, `-` and `*` warn about infinities; silencing them in the backend would triple their cost.
            with np.errstate(invalid="ignore", over="ignore"):
                # The code is text, because the page shows it.
                got = eval(code, dict(names))  # noqa: S307
        except Exception as error:
            if not isinstance(expected, Raises):
                raise AssertionError(f"{code}: raised {type(error).__name__}: {error}, expected {expected}") from error
            fits = isinstance(error, expected.error) and all(word in str(error) for word in expected.words)
            if not fits:
                words = f" with {', '.join(map(repr, expected.words))}" if expected.words else ""
                raise AssertionError(
                    f"{code}: raised {type(error).__name__}: {error}, expected {expected.error.__name__}{words}"
                ) from error
            continue
        assert not isinstance(expected, Raises), f"{code}: gave {got!r}, expected {expected.error.__name__}"
        _compare(code, got, expected, backend, signs=edge.signs)


def _compare(code: str, got: Any, expected: Any, backend: Backend, *, signs: bool) -> None:
    if not isinstance(got, px.Tensor):
        assert type(got) is type(expected) and got == expected, f"{code}: gave {got!r}, expected {expected!r}"
        return
    right = np.asarray(expected)
    kind = kind_of(right)
    assert got.shape == right.shape, f"{code}: gave shape {got.shape}, expected {right.shape}"
    # A list without elements has no kind of its own.
    assert got.kind is kind or right.size == 0, f"{code}: gave {got.kind.__name__}, expected {kind.__name__}"
    compare(got.numpy(), right, tolerance_of(backend) if kind is px.Float else EXACT, code)
    if signs:
        flipped = np.signbit(got.numpy().astype(np.float64)) != np.signbit(right)
        assert not flipped.any(), f"{code}: gave {got.tolist()}, expected {expected}; the sign of a zero differs"


def namespace(backend: Backend) -> dict[str, Any]:
    """The names that the code in the table uses."""
    device = backend.device()

    def t(values: Any) -> Any:
        return px.tensor(values, device=device)

    def grad(fn: Any, values: Any) -> Any:
        x = px.tensor(values, device=Autodiff(backend)).require_grad()
        return x.grad(fn(x).sum().backward())

    def twice(fn: Any, values: Any) -> Any:
        first = px.grad(lambda x: fn(x).sum())
        return px.grad(lambda x: first(x).sum())(t(values))

    def empty(*shape: int) -> Any:
        return px.zeros(shape, device=device)

    def run(fn: Any, *arguments: Any) -> Any:
        return px.compile(fn)(*arguments)

    def checked(fn: Any, *arguments: Any) -> Any:
        with px.debug.checks():
            return px.compile(fn)(*arguments)

    return {
        "px": px,
        "np": np,
        "f": px.functional,
        "inf": math.inf,
        "nan": math.nan,
        "operator": operator,
        "t": t,
        "empty": empty,
        "grad": grad,
        "twice": twice,
        "run": run,
        "checked": checked,
        "backend": backend,
        "other": NumPy(float="f32" if backend.float_element == "f64" else "f64"),
        "least": INT_RANGES[backend.int_element][0],
        "greatest": INT_RANGES[backend.int_element][1],
    }


HEAD = """\
<!-- Generated by `python -m phlox.testing.edges > docs/edge-cases.md` from the tables in
src/phlox/testing/conformance/edges*.py; a test fails when it is out of date. -->

# Edge cases

Look up the result of an operation at zeros, infinities, NaN, ties, empty tensors and other special points. Every
backend gives these results: NumPy, JAX, PyTorch and custom backends, with a tape and without. The tests run each line
of code on each of them, and so does `phlox.testing.check_backend`. Floats are equal up to rounding. In addition, every
operation of the contract is called with empty tensors. Its result, or its error, is the same on every backend.

In the code, `t(values)` is `px.tensor(values, device=...)`, and `empty(*shape)` is a Float tensor without elements.
`grad(fn, values)` is the gradient of `fn(x).sum()`, and `twice(fn, values)` is the gradient of that gradient's sum.
`run(fn, ...)` is `px.compile(fn)(...)`, and `checked(fn, ...)` is the same within `px.debug.checks()`. `f` is
`px.functional`. `least` and `greatest` are the bounds of the backend's integers, and `other` is a backend of another
precision.
"""


TAIL = """\
## What compilers change

A compiled function gives the result of the eager one, up to rounding. Sums may be computed in another order. At half
precision, intermediate results of a loop that XLA fuses stay in f32. PyTorch's compiler changes nothing else: if its
own formulas are less accurate than the eager kernels (`%`, `expm1`, `erf` and others), programs on a CPU use better
ones.

XLA, JAX's compiler, also simplifies formulas. In eager mode each operation is a separate program, so this never
happens:

| in a program on JAX | example | eagerly | compiled |
|---|---|---|---|
| product and sum rounded once (contraction) | `a * a - b * b`, a = b | 0 | of either sign; its square root may be NaN |
| | `a * b + a * c`, b = -c | 0 | the same |
| constants are combined | `(x + 1e8) - 1e8` of 1 | 0 | 1 |
| | `x * 1e20 * 1e20` of 1e-30 | 1e10 | infinity |
| exponentials are combined | `x.exp() * y.exp()` of 90, -90 | NaN | 1 |
| | `x.exp().log()` of 100 | infinity | 100 |
| zero is not added | `x + 0.0` of -0.0 | 0.0 | -0.0 |

On JAX, subnormal numbers (below 1.2e-38 in f32) are flushed to zero, also in eager mode. A quotient is rounded once
everywhere. `px.cross` of equal vectors and a complex number times its conjugate are exact.

If a difference must be exact, write a formula that is exact: `(a - b) * (a + b)`, or `px.where(mask, x, -inf)` instead
of `x - 1e30 * (1.0 - mask)`. To forbid the simplifications in a whole process on a CPU, set
`XLA_FLAGS="--xla_cpu_max_isa=AVX --xla_disable_hlo_passes=algsimp"` before JAX is imported. The first flag forbids
contraction (loops then have neither fused operations nor AVX2), and the second everything else except the last line.
`--xla_cpu_enable_fast_math=false` is the default, and forbids none of it.
"""


def page(edges: list[Edge]) -> str:
    """The contract as Markdown."""
    lines = [HEAD]
    section = ""
    for edge in edges:
        if edge.section != section:
            section = edge.section
            lines.append(f"## {section}\n")
        lines.append(f"{edge.statement}\n")
        lines.append("| code | gives |\n|---|---|")
        lines += [f"| `{_cell(code)}` | {shown(expected)} |" for code, expected in edge.lines]
        lines.append("")
    lines.append(TAIL)
    return "\n".join(lines).rstrip() + "\n"


def _cell(code: str) -> str:
    return code.replace("|", "\\|")


def shown(expected: Any) -> str:
    """The expected result of a line, in the form that the page shows."""
    return str(expected) if isinstance(expected, Raises) else f"`{expected!r}`"

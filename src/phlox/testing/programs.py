# pyright: standard
"""Random programs, which must give the same on every engine, eagerly and compiled.

    python -m phlox.testing.programs torch f32 --count 600

draws programs of some ten operations and their gradients, runs them on the backend and on `NumPy(float="f64")`, and
prints each that differs, shrunk to few lines that can be copied into a file. A program stays away from points where a
rounding may change more than the last digits: ties, jumps, kinks, overflow. PyTorch compiles one in some two seconds.
"""

from __future__ import annotations

import argparse
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

import phlox as px
from phlox.backend import Backend, NumPy, load_backend
from phlox.testing.conformance.running import cotangent

_MARGIN = 1e-3
"""The least distance of an argument to a jump or a kink."""
_LARGEST, _MOST = 1e3, 2000
"""The largest number in a program, and the largest number of elements."""
_SIDES = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33)
"""The lengths of axes: beside the widths of vector registers, too."""
_NAME = re.compile(r"\b[vx]\d+\b")


def _gaps(x: np.ndarray[Any, Any], axes: Any) -> np.ndarray[Any, Any]:
    """The distances of neighbours in the order of the elements along some axes."""
    if axes is None:
        return np.diff(np.sort(x, axis=None))
    axes = axes if isinstance(axes, tuple) else (axes,)
    rest = tuple(at for at in range(x.ndim) if at not in [axis % x.ndim for axis in axes])
    kept = x.transpose(*rest, *axes).reshape(*(x.shape[at] for at in rest), -1)
    return np.diff(np.sort(kept, axis=-1), axis=-1)


# --- what a line may be: the expression, and what must not come near zero for it

_LINES: tuple[tuple[str, str], ...] = (
    *((f"{{x}}{call}", "") for call in (
        " * {c}", " + {c}", ".sin()", ".cos()", ".tanh()", ".sigmoid()", ".square()", ".erf()", ".gelu()", ".silu()",
        ".softplus()", ".expm1().tanh()", ".tanh().exp()", ".softmax({axis})", ".log_softmax({axis})",
        ".sum({axes}, keepdims={flag})", ".mean({axes}, keepdims={flag})", ".var({axes}, keepdims={flag})",
        ".logsumexp({axes}, keepdims={flag})", ".tanh().prod({axis}, keepdims={flag})", ".cumsum({axis})",
        ".flip({axis})", ".roll({shift}, {axis})", ".diff(1, {axis})", ".permute_dims({order})", ".repeat(2, {axis})",
        ".tile({times})", ".reshape(-1)", ".reshape({merged})", ".expand_dims({axis})", ".pad({widths})",
        ".pad({widths}, {c})", ".broadcast_to((2, *{x}.shape))", "[{part}]", "[{part}]", "[{rows}]", "[..., {last}]",
        ".take({rows}, 0)",
        ".unfold({axis}, 2, {step})", ".triu()", ".tril(1)", ".diagonal()", ".chunk(2, {axis})[0]",
        ".at[{rows}].add({x}[:{count}] * 0.3)", ".at[{rows}].sub({c})", ".at[{rows}].mul({c})",
        ".at[{apart}].set({x}[:{count}] + 0.2)", ".at[{apart}].set({c})", ".at[{part}].set({c})",
        ".at[{part}].add({x}[{part}].sin())", ".at[{part}].mul({c})", ".at[..., {last}].add({c})",
        ".at[{rows}].max({c})", ".at[{rows}].min({x}[:{count}] * 0.5)",
    )),
    ("({x}.square() + 0.5).sqrt()", ""), ("({x}.square() + 0.5).rsqrt()", ""), ("({x}.square() + 0.5).log()", ""),
    ("({x}.square() + 0.5) ** 0.7", ""), ("px.functional.layer_norm({x}, ({x}.shape[-1],))", "{x}.std(-1)"),
    ("{x} + {y}", ""), ("{x} - {y}", ""), ("{x} * {y}", ""), ("{x} / ({y}.square() + 1.0)", ""),
    ("{y}.lerp({x}, 0.3)", ""), ("{x}.atan2({y}.square() + 0.5)", ""), ("{x}.logaddexp({y})", ""),
    ("px.concat([{x}, {z}], {axis})", ""), ("px.concat([{x} * {c}, {z}], {axis})", ""),
    ("px.concat([{x}[{part}], {x}], 0)", ""), ("px.stack([{x}, {z}], {axis})", ""),
    ("{x} @ {x}.mT / {x}.shape[-1]", ""), ("({x}.mT @ {z}).tanh()", ""), ("px.einsum('...i,...i->...', {x}, {z})", ""),
    *((f"{{x}}{call}", "{x}") for call in (
        ".abs()", ".relu()", ".leaky_relu()", ".sign() * {x}", ".elu()", ".norm(2.0, {axis})",
        ".masked_fill({x} > 0.0, {c})",
    )),
    ("{x}.clip(-0.5, 0.5)", "np.abs({x}) - 0.5"), ("{x}.hardtanh()", "np.abs({x}) - 1.0"),
    ("{x}.round() + {x}", "{x} - np.floor({x}) - 0.5"), ("{x} - {x}.floor()", "{x} - np.round({x})"),
    ("{x}.maximum({y})", "{x} - {y}"), ("{x}.minimum({z})", "{x} - {z}"),
    ("px.where({x} > {y}, {x}, {y} * 0.5)", "{x} - {y}"), ("px.where({x} > 0.0, {x}, {c})", "{x}"),
    *((f"{{x}}{call}", "gaps({x}, {axis})") for call in (
        ".sort({axis})", ".sort({axis}, descending=True)", ".topk(1, {axis})[0]", ".cummax({axis})", ".median({axis})",
        ".take_along_axis({x}.argsort({axis}), {axis})", ".gather({axis}, {x}.argmax({axis}, keepdims=True))",
        ".argsort({axis})", ".argmax({axis})", ".argmin({axis}, keepdims={flag})", ".topk(1, {axis})[1]",
    )),
    *((f"{{x}}.{name}({{axes}}, keepdims={{flag}})", "gaps({x}, {axes})") for name in ("max", "min")),
    ("({x} > {c}).int()", "{x} - {c}"), ("({x} > {y}).any({axes})", "{x} - {y}"), ("{x} > {y}", "{x} - {y}"),
    *((text, "") for text in (
        "{i} + {j}", "{i} * {n}", "{i} - {j}.sum()", "{i} // {n}", "{i} % {n}", "{i}.max({iaxes})", "{i}.min({iaxes})",
        "{i}.sum({iaxes})", "{i}.cumsum({iaxis})", "{i}.float() * 0.1", "{i}.flip({iaxis})", "{i}.abs()",
        "{i}.sort({iaxis})", "({i} > {j}).int()", "px.where({i} > {n}, {i}, {j})", "{i} > {j}", "{i}.argmax({iaxis})",
        "{i}.clip(-3, 4)", "{b}.float() * 0.7", "~{b}", "{b} & ({b} | ~{b})", "{b}.any()", "{b}.all(-1)",
        "px.where({b}, 0.5, {c})", "{b}.int()", "{b}.int().sum(-1)",
    )),
)  # fmt: skip


class _Unfit(Exception):
    """A line that does not fit what there is."""


@dataclass(frozen=True)
class Program:
    """A program in lines, `v3 = x0.sin()`, with arguments, and gradients towards some."""

    arguments: dict[str, np.ndarray[Any, Any]] = field(compare=False)
    lines: tuple[tuple[str, str], ...]
    results: tuple[str, ...]
    towards: tuple[str, ...] = ()
    """The arguments that the sum of all float results, with weights, is differentiated by."""

    def source(self) -> str:
        """The function, as text."""
        body = "".join(f"    {name} = {text}\n" for name, text in self.lines)
        return f"def program({', '.join(self.arguments)}):\n{body}    return [{', '.join(self.results)}]\n"

    def __str__(self) -> str:
        held = {name: f"px.tensor({np.round(x, 2).tolist()})" for name, x in self.arguments.items()}
        towards = (
            f"# the gradients of the results are taken towards {', '.join(self.towards)}\n" if self.towards else ""
        )
        return f"{self.source()}{towards}" + "".join(f"{name} = {text}\n" for name, text in held.items())


def _used(text: str) -> list[str]:
    return _NAME.findall(text)


def _lean(program: Program) -> Program:
    """The program without lines and arguments that no result needs."""
    needed, kept = set(program.results), []
    for name, text in reversed(program.lines):
        if name in needed:
            kept.append((name, text))
            needed.update(_used(text))
    arguments = {name: x for name, x in program.arguments.items() if name in needed}
    towards = tuple(name for name in program.towards if name in arguments)
    return replace(program, arguments=arguments, lines=tuple(reversed(kept)), towards=towards)


def merged(programs: list[Program]) -> Program:
    """One program that does what all of these do."""
    arguments: dict[str, Any] = {}
    lines: list[tuple[str, str]] = []
    results, towards = [], []
    for at, one in enumerate(programs):

        def other(text: str, at: int = at) -> str:
            return _NAME.sub(lambda found: f"{found[0][0]}{at}0{found[0][1:]}", text)

        arguments |= {other(name): x for name, x in one.arguments.items()}
        lines += [(other(name), other(text)) for name, text in one.lines]
        results += map(other, one.results)
        towards += map(other, one.towards)
    return Program(arguments, tuple(lines), tuple(results), tuple(towards))


# --- drawing one


class _Draft:
    """A program that is being drawn, and the values of its lines in float64."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.arguments: dict[str, np.ndarray[Any, Any]] = {}
        self.lines: list[tuple[str, str]] = []
        self.values: dict[str, np.ndarray[Any, Any]] = {}

    def choose(self, among: Any) -> Any:
        if not len(among):
            raise _Unfit
        return among[int(self.rng.integers(len(among)))]

    def argument(self, x: np.ndarray[Any, Any]) -> str:
        name = f"x{len(self.arguments)}"
        self.arguments[name] = self.values[name] = x
        return name

    def names(self, kind: str, suits: Callable[[np.ndarray[Any, Any]], bool] = lambda x: True) -> list[str]:
        """The values of a kind; the newest more than once."""
        found = [name for name, x in self.values.items() if x.dtype.kind == kind and suits(x)]
        return found + found[-3:] * 2

    def part(self, n: int) -> str:
        return self.choose([":", "1:", ":-1", "::2", "::-1", "1::2"] if n > 1 else [":"])

    def filled(self, template: str) -> dict[str, str]:
        """What to put in the places of a template."""
        wanted = set(re.findall(r"{(\w+)}", template))
        x = y = self.choose(self.names("f"))
        a = self.values[x]
        given: dict[str, Any] = {"x": x, "c": self.choose([-1.5, -0.5, 0.3, 2.0]), "n": self.choose([2, 3, 5])}
        given |= {"flag": self.choose([True, False]), "step": self.choose([1, 2]), "shift": self.choose([-2, 1, 3])}
        if wanted & {"i", "j", "iaxis", "iaxes"}:
            given["i"] = i = self.choose(self.names("i"))
            ints = self.values[i]
            given["j"] = self.choose(self.names("i", lambda other: other.shape == ints.shape))
            given |= self.axes(ints.ndim, "i")
        if "b" in wanted:
            given["b"] = self.choose(self.names("b"))
        if "y" in wanted:
            y = self.choose(self.names("f", lambda other: _fits(a.shape, other.shape)))
        given |= {"y": y, "z": self.choose(self.names("f", lambda other: other.shape == a.shape))}
        given |= self.axes(a.ndim, "")
        if wanted & {"part", "rows", "apart", "last", "count", "order", "times", "merged", "widths"} and not a.ndim:
            raise _Unfit
        if a.ndim:
            n, count = a.shape[0], int(self.rng.integers(1, a.shape[0] + 1))
            given |= {"part": self.part(n), "count": count, "order": tuple(map(int, self.rng.permutation(a.ndim)))}
            given |= {"last": self.part(a.shape[-1]), "times": (1,) * (a.ndim - 1) + (2,)}
            given["merged"] = (-1, a.shape[-1])
            given["widths"] = tuple((int(low), int(high)) for low, high in self.rng.integers(0, 3, (a.ndim, 2)))
            for name, unique in (("rows", False), ("apart", True)):
                if name in wanted:
                    rows = self.rng.choice(n, count, replace=not unique).astype(np.int32)
                    given[name] = self.argument(rows) if self.rng.random() < 0.7 else rows.tolist()
        return {name: str(value) for name, value in given.items()}

    def axes(self, ndim: int, prefix: str) -> dict[str, Any]:
        if not ndim:
            return {}
        axis = int(self.rng.integers(-ndim, ndim))
        some = [None, axis, *([(0, -1)] if ndim > 1 else [])]
        return {f"{prefix}axis": axis, f"{prefix}axes": self.choose(some)}

    def line(self) -> None:
        """Draw another line."""
        template, margin = self.choose(_LINES)
        before = dict(self.arguments), dict(self.values)
        try:
            given = self.filled(template + margin)
            text = template.format(**given)
            if margin:
                apart = margin.format(**given)
                distance = eval(apart, {"np": np, "gaps": _gaps}, self.values)  # noqa: S307  (of our own table)
                if np.abs(distance).min(initial=1.0) < _MARGIN:
                    raise _Unfit
            with np.errstate(all="ignore"):
                held = {name: px.tensor(x, device=_EXACT) for name, x in self.values.items()}
                value = eval(text, {"px": px}, held).numpy()  # noqa: S307
            large = np.abs(value.astype(np.float64)).max(initial=0.0)
            if not large < _LARGEST or not 0 < value.size <= _MOST or value.ndim > 4:
                raise _Unfit
        except (_Unfit, KeyError, px.errors.PhloxError):
            self.arguments, self.values = before
            return
        name = f"v{len(self.lines)}"
        self.lines.append((name, text))
        self.values[name] = value


_EXACT = NumPy(float="f64")


def _fits(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, other) == shape
    except ValueError:
        return False


def random_program(seed: int, length: int = 10) -> Program:
    """A program of about `length` lines, always the same for a seed.

    >>> print(random_program(1, 3).source())
    def program(x0, x1, x3):
        ...
        return [v1, v2]
    """
    draft = _Draft(seed)
    shape = tuple(int(draft.choose(_SIDES)) for _ in range(int(draft.rng.integers(1, 4))))
    while np.prod(shape) > _MOST // 4:
        shape = shape[1:]
    for at in range(2):
        draft.argument(
            draft.rng.normal(size=shape[at if at < len(shape) else 0 :]).astype(np.float32).astype(np.float64)
        )
    draft.argument(draft.rng.integers(-9, 10, shape).astype(np.int32))
    for _ in range(20 * length):
        draft.line()
        if len(draft.lines) == length:
            break
    read = {name for _, text in draft.lines for name in _used(text)}
    results = tuple(name for name, _ in draft.lines if name not in read)
    return _lean(Program(draft.arguments, tuple(draft.lines), results, ("x0", "x1")))


# --- running and comparing


def run(program: Program, backend: Backend, *, compiled: bool = False) -> dict[str, np.ndarray[Any, Any]]:
    """The results of a program on a backend, and its gradients."""
    namespace: dict[str, Any] = {"px": px}
    exec(program.source(), namespace)
    towards = [list(program.arguments).index(name) for name in program.towards]

    def called(*arguments: Any) -> list[Any]:
        def total(*floats: Any) -> Any:
            given = list(arguments)
            for place, one in zip(towards, floats, strict=True):
                given[place] = one
            results = [y for y in namespace["program"](*given) if y.kind is px.Float]
            weighted = [(y * px.tensor(cotangent(y.shape), device=backend.device())).sum() for y in results]
            return sum(weighted[1:], weighted[0])

        found = namespace["program"](*arguments)
        if not towards or not any(y.kind is px.Float for y in found):
            return [*found, *(px.zeros_like(arguments[place]) for place in towards)]
        return [*found, *px.grad(total, argnums=tuple(range(len(towards))))(*(arguments[place] for place in towards))]

    held = [px.tensor(x, device=backend.device()) for x in program.arguments.values()]
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # PyTorch's own, as its compiler loads
        found = (px.compile(called) if compiled else called)(*held)
    names = [*program.results, *(f"gradient towards {name}" for name in program.towards)]
    return {name: y.numpy() for name, y in zip(names, found, strict=True)}


def differences(program: Program, backend: Backend, *, compiled: bool = True) -> list[str]:
    """One sentence for each result that differs from that of `NumPy(float="f64")`.

    How much rounding may change is taken from the same program on NumPy at the precision of the backend.
    """
    right, found = run(program, _EXACT), run(program, backend, compiled=compiled)
    rounded = run(program, NumPy(float=cast("Any", backend.float_element)))
    eps = float(np.finfo(backend.host_float_dtype).eps)
    wrong: list[str] = []
    for name, wanted in right.items():
        got = found[name]
        if got.shape != wanted.shape:
            wrong.append(f"{name}: of shape {got.shape}, expected {wanted.shape}")
            continue
        off = np.abs(got.astype(np.float64) - wanted)
        lost = np.abs(rounded[name].astype(np.float64) - wanted).max(initial=0.0)
        bound = (
            0.0
            if wanted.dtype.kind != "f"
            else 1e3 * eps * (1.0 + np.abs(wanted).max(initial=0.0)) + 20 * min(lost, 1e-3)
        )
        if not (off <= bound).all():
            at = np.unravel_index(int(np.nan_to_num(off, nan=np.inf).argmax()), off.shape)
            wrong.append(f"{name}: {got[at]} instead of {wanted[at]} at {tuple(map(int, at))}")
    return wrong


# --- shrinking


def shrunk(program: Program, fails: Callable[[Program], bool], tries: int = 150) -> Program:
    """A smaller program that `fails`, too, after at most so many tries."""
    values = _values(program)
    seen: set[Program] = set()
    while True:
        for smaller in _smaller(program, values):
            if smaller in seen:
                continue
            if len(seen) == tries:
                return program
            seen.add(smaller)
            try:
                failed = fails(smaller)
            except Exception:
                continue
            if failed:
                program = smaller
                break
        else:
            return program


def _values(program: Program) -> dict[str, np.ndarray[Any, Any]]:
    every = replace(program, results=tuple(name for name, _ in program.lines), towards=())
    return run(every, _EXACT)


def _smaller(program: Program, values: dict[str, Any]) -> Iterator[Program]:
    for towards in ((), *((name,) for name in program.towards if len(program.towards) > 1)):
        if program.towards:
            yield replace(program, towards=towards)
    size = len(program.results)
    while (size := (size + 1) // 2) and len(program.results) > 1:  # without some results
        for at in range(0, len(program.results), size):
            if left := program.results[:at] + program.results[at + size :]:
                yield _lean(replace(program, results=left))
        if size == 1:
            break
    for name in program.results:  # what one is computed from in its place
        operands = [one for line, text in program.lines if line == name for one in _used(text) if one in values]
        if operands:
            kept = tuple(one for one in program.results if one != name)
            yield _lean(replace(program, results=(*kept, *(one for one in operands if one not in kept))))
    for at, (name, text) in enumerate(program.lines):
        rest = program.lines[:at] + program.lines[at + 1 :]
        if name not in program.results and values[name].dtype.kind != "b":  # an argument in its place
            given = f"x99{name[1:]}"  # a name that no argument has, of several programs either
            lines = tuple((one, re.sub(rf"\b{name}\b", given, other)) for one, other in rest)
            towards = (
                (*program.towards, given) if program.towards and values[name].dtype.kind == "f" else program.towards
            )
            yield _lean(
                replace(program, arguments={**program.arguments, given: values[name]}, lines=lines, towards=towards)
            )
        for operand in _used(text):  # what it is computed from in its place
            known = values.get(operand, program.arguments.get(operand))
            if known is not None and known.shape == values[name].shape and known.dtype == values[name].dtype:
                if name not in program.results:
                    lines = tuple((one, re.sub(rf"\b{name}\b", operand, other)) for one, other in rest)
                    yield _lean(replace(program, lines=lines))
                break


def main() -> None:
    """Read the command line and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backend")
    parser.add_argument("element", choices=("f32", "f64"))
    parser.add_argument("--count", type=int, default=100, help="how many programs (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="the seed of the first (%(default)s)")
    parser.add_argument("--length", type=int, default=10, help="the lines of each (%(default)s)")
    parser.add_argument("--eager", action="store_true", help="do not compile")
    options = parser.parse_args()
    backend: Backend = cast("Any", load_backend(options.backend))(float=options.element)
    wrong = 0
    for seed in range(options.seed, options.seed + options.count):
        program = random_program(seed, options.length)

        def found(one: Program) -> list[str]:
            return differences(one, backend, compiled=not options.eager)

        try:
            lines = found(program)
        except Exception as error:
            sys.stdout.write(f"seed {seed}: {type(error).__name__}: {error}\n{program}\n")
            continue
        if lines:
            wrong += 1
            smaller = shrunk(program, lambda one: bool(found(one)))
            sys.stdout.write(f"seed {seed}: {'; '.join(found(smaller))}\n{smaller}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{wrong} of {options.count} programs differ\n")


if __name__ == "__main__":
    main()

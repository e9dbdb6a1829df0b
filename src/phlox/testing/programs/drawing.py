# pyright: standard
"""Random programs, drawn from a seed."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

import phlox as px
from phlox.backend import NumPy
from phlox.random.stream import Stream, key_of
from phlox.testing.programs.program import Memory, Program, lean, used

_LARGEST, _MOST = 1e3, 2000
"""The largest number in a program, and the largest number of elements."""
_SIDES = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33)
"""The lengths of axes, some of them one more or less than the width of a vector register."""
_EXACT = NumPy(float="f64")


def _gaps(x: np.ndarray[Any, Any], axes: Any) -> np.ndarray[Any, Any]:
    """The distances between neighbours among the sorted elements along some axes."""
    if axes is None:
        return np.diff(np.sort(x, axis=None))
    axes = axes if isinstance(axes, tuple) else (axes,)
    others = tuple(at for at in range(x.ndim) if at not in [axis % x.ndim for axis in axes])
    kept = x.transpose(*others, *axes).reshape(*(x.shape[at] for at in others), -1)
    return np.diff(np.sort(kept, axis=-1), axis=-1)


# --- the expressions of lines, each with a value that must not be near zero

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
    *((text, "") for text in (
        "{m}.scaled({x})", "{m}.centred({x})", "{m}.moved({x})", "{m}.scaled({x}).sum({axis})",
        "px.nn.dropout({x}, 0.4)", "{x} + 0.2 * px.random.normal_like({x})", "{x} * px.random.uniform_like({x})",
        "{x}.masked_fill(px.random.bernoulli({x}.shape, 0.3, device={x}.device), {c})",
        "px.random.integers((4, 2), -3, 5, device={x}.device)", "{x}.detach() * {x}",
        "px.scan(lambda c, row: ((c + row).tanh(), c * row), {x}[0], {x})[1]",
        "px.checkpoint(lambda a: (a.sin() * a).tanh())({x})", "px.grad(lambda a: (a.sin() * a).sum())({x})",
        "px.vmap(lambda row: row / (row.square().sum() + 1.0))({x})", "px.compile(lambda a: (a * a).cumsum(0))({x})",
        "px.jvp(lambda a: a.tanh().cumsum(0), ({x},), ({z},))[1]",
        "px.vjp(lambda a: a.softmax({axis}), {x})[1]({z})[0]",
    )),
    *((f"px.functional.{call}", "") for call in (
        "linear({x}, {z}.reshape(-1, {x}.shape[-1])).tanh()", "rms_norm({x})", "embedding({x}, {rows})",
        "conv1d({x}.reshape(1, 1, -1), {z}.reshape(-1)[:6].reshape(2, 1, 3), padding=1).tanh()",
        "conv2d({x}.reshape(1, 1, *{x}.shape), {z}.reshape(-1)[:18].reshape(2, 1, 3, 3), padding=1).tanh()",
        "attention({x}.reshape(1, 1, *{x}.shape), *[{z}.reshape(1, 1, *{x}.shape)] * 2, causal={flag})",
        "avg_pool1d({x}.reshape(1, 1, -1), 2)", "interpolate({x}.reshape(1, 1, -1), scale_factor=2, mode='linear')",
    )),
    ("px.functional.batch_norm_train({x}).y", "{x}.std(0)"),
    ("px.functional.max_pool1d({x}.reshape(1, 1, -1), 2)", "gaps({x}, None)"),
    ("px.functional.cross_entropy({x}, {x}.argmax({axis}), axis={axis})", "gaps({x}, {axis})"),
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
    """A line that does not fit the values of the draft."""


class _Draft:
    """A program that is being drawn, and the values of its lines in float64, in two calls."""

    def __init__(self, seed: int, margin: float) -> None:
        self.rng, self.margin = np.random.default_rng(seed), margin
        self.arguments: dict[str, np.ndarray[Any, Any]] = {}
        self.others: dict[str, np.ndarray[Any, Any]] = {}
        self.lines: list[tuple[str, str]] = []
        self.calls = _Values(seed), _Values(seed + 1)
        self.values = self.calls[0].values

    def choose(self, among: Any) -> Any:
        if not len(among):
            raise _Unfit
        return among[int(self.rng.integers(len(among)))]

    def argument(self, drawn: Callable[[], np.ndarray[Any, Any]], letter: str = "x") -> str:
        name = f"{letter}{len(self.arguments)}"
        for call, arguments in zip(self.calls, (self.arguments, self.others), strict=True):
            arguments[name] = x = drawn()
            call.add(name, x)
        return name

    def names(self, kind: str, suits: Callable[[np.ndarray[Any, Any]], bool] = lambda x: True) -> list[str]:
        """The names of the values of a kind; the newest ones repeatedly, so that they are chosen more often."""
        names = [name for name, x in self.values.items() if name[0] != "m" and x.dtype.kind == kind and suits(x)]
        return names + names[-3:] * 2

    def part(self, n: int) -> str:
        return self.choose([":", "1:", ":-1", "::2", "::-1", "1::2"] if n > 1 else [":"])

    def filled(self, template: str) -> dict[str, str]:
        """The text for each field of a template."""
        fields = set(re.findall(r"{(\w+)}", template))
        x = y = self.choose(self.names("f"))
        a = self.values[x]
        parts: dict[str, Any] = {
            "x": x,
            "m": "m2",
            "c": self.choose([-1.5, -0.5, 0.3, 2.0]),
            "n": self.choose([2, 3, 5]),
        }
        parts |= {"flag": self.choose([True, False]), "step": self.choose([1, 2]), "shift": self.choose([-2, 1, 3])}
        if fields & {"i", "j", "iaxis", "iaxes"}:
            parts["i"] = i = self.choose(self.names("i"))
            ints = self.values[i]
            parts["j"] = self.choose(self.names("i", lambda other: other.shape == ints.shape))
            parts |= self.axes(ints.ndim, "i")
        if "b" in fields:
            parts["b"] = self.choose(self.names("b"))
        if "y" in fields:
            y = self.choose(self.names("f", lambda other: _fits(a.shape, other.shape)))
        parts |= {"y": y, "z": self.choose(self.names("f", lambda other: other.shape == a.shape))}
        parts |= self.axes(a.ndim, "")
        if fields & {"part", "rows", "apart", "last", "count", "order", "times", "merged", "widths"} and not a.ndim:
            raise _Unfit
        if a.ndim:
            n, count = a.shape[0], int(self.rng.integers(1, a.shape[0] + 1))
            parts |= {"part": self.part(n), "count": count, "order": tuple(map(int, self.rng.permutation(a.ndim)))}
            parts |= {"last": self.part(a.shape[-1]), "times": (1,) * (a.ndim - 1) + (2,)}
            parts["merged"] = (-1, a.shape[-1])
            parts["widths"] = tuple((int(low), int(high)) for low, high in self.rng.integers(0, 3, (a.ndim, 2)))
            for name, unique in (("rows", False), ("apart", True)):
                if name in fields:

                    def rows(unique: bool = unique) -> np.ndarray[Any, Any]:
                        return self.rng.choice(n, count, replace=not unique).astype(np.int32)

                    parts[name] = self.argument(rows) if self.rng.random() < 0.7 else rows().tolist()
        return {name: str(value) for name, value in parts.items()}

    def axes(self, ndim: int, prefix: str) -> dict[str, Any]:
        if not ndim:
            return {}
        axis = int(self.rng.integers(-ndim, ndim))
        some = [None, axis, *([(0, -1)] if ndim > 1 else [])]
        return {f"{prefix}axis": axis, f"{prefix}axes": self.choose(some)}

    def line(self) -> None:
        """Draw another line."""
        template, margin = self.choose(_LINES)
        before = dict(self.arguments), dict(self.others), [call.state() for call in self.calls]
        name = f"v{len(self.lines)}"
        try:
            parts = self.filled(template + margin)
            text = template.format(**parts)
            for call in self.calls:
                if margin:
                    distance_text = margin.format(**parts)
                    distance = eval(distance_text, {"np": np, "gaps": _gaps}, call.values)  # noqa: S307  (a text of `_LINES`)
                    if np.abs(distance).min(initial=1.0) < self.margin:
                        raise _Unfit
                call.compute(name, text)
            if len({call.values[name].shape for call in self.calls}) > 1:
                raise _Unfit
        except (_Unfit, KeyError, IndexError, np.exceptions.AxisError, px.errors.PhloxError):
            self.arguments, self.others = before[:2]
            for call, state in zip(self.calls, before[2], strict=True):
                call.restore(state)
            return
        self.lines.append((name, text))


class _Values:
    """The values in float64 of one call of a program, for the lines drawn so far."""

    def __init__(self, seed: int) -> None:
        self.values: dict[str, np.ndarray[Any, Any]] = {}
        self._memories: dict[str, Memory] = {}
        self._stream = Stream(key_of(seed))

    def add(self, name: str, x: np.ndarray[Any, Any]) -> None:
        self.values[name] = x
        if name[0] == "m":
            self._memories[name] = Memory(px.tensor(x, device=_EXACT))

    def compute(self, name: str, text: str) -> None:
        tensors = {name: px.tensor(x, device=_EXACT) for name, x in self.values.items()}
        with np.errstate(all="ignore"), px.random.stream(self._stream):
            value = eval(text, {"px": px}, {**tensors, **self._memories}).numpy()  # noqa: S307
        large = np.abs(value.astype(np.float64)).max(initial=0.0)
        if not large < _LARGEST or not 0 < value.size <= _MOST or value.ndim > 4:
            raise _Unfit
        self.values[name] = value

    def state(self) -> Any:
        kept = [(param, param.val()) for memory in self._memories.values() for param in (memory.mean, memory.last)]
        return dict(self.values), kept, self._stream.state()

    def restore(self, state: Any) -> None:
        values, kept, stream = state
        for name in self.values.keys() - values.keys():
            del self.values[name]
        for param, value in kept:
            param.set(value)
        self._stream.restore(stream)


def _fits(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, other) == shape
    except ValueError:
        return False


def random_program(seed: int, length: int = 10, margin: float = 1e-3) -> Program:
    """A program of about `length` lines, always the same for a seed.

    `margin` is the least distance of an argument from a jump or a kink.

    >>> print(random_program(5, 3).source())
    def program(x0, m2, ...
        v0 = ...
        return [...
    """
    draft = _Draft(seed, margin)
    shape = tuple(int(draft.choose(_SIDES)) for _ in range(int(draft.rng.integers(1, 4))))
    while np.prod(shape) > _MOST // 4:
        shape = shape[1:]
    for at, letter in ((0, "x"), (1, "x"), (1, "m")):
        sides = shape[at if at < len(shape) else 0 :]
        draft.argument(lambda sides=sides: np.round(draft.rng.normal(size=sides) * 64.0) / 64.0, letter)
    draft.argument(lambda: draft.rng.integers(-9, 10, shape).astype(np.int32))
    for _ in range(20 * length):
        draft.line()
        if len(draft.lines) == length:
            break
    read = {name for _, text in draft.lines for name in used(text)}
    results = tuple(name for name, _ in draft.lines if name not in read)
    return lean(Program(draft.arguments, draft.others, tuple(draft.lines), results, ("x0", "x1", "m2")))

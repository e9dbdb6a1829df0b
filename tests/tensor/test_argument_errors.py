# ruff: noqa: E501, S301
"""Whatever is called with whatever is wrong: one sentence of ours that names what was called, never an engine's error.

Every public function and method is called with typical wrong arguments in every place. A call may well be right; if it
is not, what comes out must be an error of Phlox's on one line (or Python's own, on how many arguments there are).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox.backend import Autodiff, Jax, NumPy, Torch
from phlox.errors import PhloxError

PYTHON_SAYS = re.compile(
    r"unsupported operand|positional argument|unexpected keyword|required keyword|not supported between"
)
OPERATORS = (
    "__add__",
    "__matmul__",
    "__getitem__",
    "__pow__",
    "__lt__",
    "__and__",
    "__floordiv__",
    "__radd__",
    "__eq__",
)
PLACES = {"px": px, "functional": px.functional, "linalg": px.linalg, "signal": px.signal, "random": px.random}
DEFINED_IN = ("phlox.tensor", "phlox.random")


def wrong(backend: Any) -> list[Any]:
    other = NumPy() if backend.name == "torch" else Torch()
    return [
        None, "text", object(), 1.5, -7, 0, [1.0, 2.0], (1, "a"), np.ones(3),
        px.tensor([1, 2], device=backend), px.tensor([True, False, True], device=backend),
        px.ones((3,), device=backend), px.ones((2, 3), device=backend), px.ones((), device=backend),
        px.ones((0, 3), device=backend), px.ones((2, 3), device=other),
    ]  # fmt: skip


def public(backend: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    x = px.ones((2, 3), device=backend)
    for name in dir(px.Tensor):
        static = inspect.getattr_static(px.Tensor, name)
        if (
            (not name.startswith("_") or name in OPERATORS)
            and callable(static)
            and not isinstance(static, staticmethod)
        ):
            yield f"x.{name}", getattr(x, name)
    for place, module in PLACES.items():
        for name in module.__all__:
            function = getattr(module, name)
            home = getattr(function, "__module__", None) or ""
            if inspect.isfunction(function) and home.startswith(DEFINED_IN):
                yield f"{place}.{name}", function


def calls(function: Callable[..., Any], backend: Any) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    parameters = inspect.signature(function).parameters.values()
    named = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = sum(p.default is p.empty for p in named)
    count = max(needed, min(len(named), 1))
    x = px.ones((2, 3), device=backend)
    for value in wrong(backend):
        yield [value] * count, {}
        for place in range(count):
            for filling in (x, 1, (2, 3)):
                yield [filling] * place + [value] + [filling] * (count - place - 1), {}
        for p in parameters:
            if p.kind is p.KEYWORD_ONLY or (p.kind is p.POSITIONAL_OR_KEYWORD and p.default is not p.empty):
                yield [x] * needed, {p.name: value}


def offence(function: Callable[..., Any], arguments: list[Any], options: dict[str, Any]) -> str | None:
    try:
        function(*arguments, **options)
    except (PhloxError, ZeroDivisionError) as error:
        return f"on several lines: {error}" if "\n" in str(error) else None
    except Exception as error:
        python = isinstance(error, TypeError) and PYTHON_SAYS.search(str(error))
        return None if python else f"{type(error).__name__}: {error}"
    return None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "backend, every", [(NumPy(), 1), (Torch(), 5), (Autodiff(NumPy()), 5), (Jax(), 211)], ids=lambda value: repr(value)
)
def test_wrong_calls_end_in_one_sentence_of_ours(backend: Any, every: int) -> None:
    """All on NumPy; elsewhere a part of them, since every new shape may compile anew."""
    offences: dict[str, list[str]] = {}
    count = 0
    with np.errstate(all="ignore"):
        for number, (name, function) in enumerate(public(backend)):
            for arguments, options in islice(calls(function, backend), number % every, None, every):
                count += 1
                found = offence(function, arguments, options)
                if found is not None:
                    offences.setdefault(name, []).append(found)
    assert count > 15_000 / every
    assert {name: (len(found), found[0]) for name, found in offences.items()} == {}


untyped: Any = px  # what a type checker would not let pass

CASES: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "no tensor": (lambda: untyped.functional.linear("a", untyped.ones((2, 2))), ("linear", "x must be a", "tensor", "got str")),
    "NumPy array": (lambda: untyped.functional.linear(untyped.ones((2, 2)), np.ones((2, 2))), ("linear", "tensor", "array")),
    "list": (lambda: untyped.ones((2, 2)).matmul([[1.0]]), ("matmul", "must be a tensor", "list")),
    "None": (lambda: untyped.concat(None), ("concat", "no tensors")),
    "kind": (lambda: untyped.ones((2,)).take(untyped.ones((1,))), ("take", "Int", "Float")),
    "option": (lambda: untyped.ones((2, 3)).softmax("rows"), ("softmax", "axis", "integer", "rows")),
    "shape shown shortly": (lambda: untyped.zeros(untyped.ones((2, 3))), ("Float (2, 3)",)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_sentence_names_the_argument(case: str) -> None:
    call, parts = CASES[case]
    with pytest.raises(PhloxError) as caught:
        call()
    assert [part for part in parts if part not in str(caught.value)] == [], str(caught.value)


def test_guarded_functions_are_still_what_they_seem() -> None:
    import pickle

    linear = px.functional.linear
    assert linear.__name__ == "linear" and linear.__doc__ and next(iter(inspect.signature(linear).parameters)) == "x"
    assert pickle.loads(pickle.dumps(linear)) is linear and pickle.loads(pickle.dumps(px.zeros)) is px.zeros
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'weight'"):
        px.functional.linear(px.ones((2, 2)))  # pyright: ignore[reportCallIssue]

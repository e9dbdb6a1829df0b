"""The expressions that are read in the code of a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from phlox.transform.compile.guards.reads import (
    Attribute,
    Call,
    Constant,
    Expression,
    Global,
    Imported,
    Item,
    Local,
    Outer,
    Use,
    reads_of,
)

config: Any = None
helper: Any = None
names: Any = None
BETA = Attribute(Global("config"), "beta")
X = Local("x")


def closure() -> Callable[..., Any]:
    outer: Any = 0

    def fn(x: Any) -> Any:
        nonlocal outer
        outer += 1
        return x * outer.beta

    return fn


def assigned(x: Any) -> Any:
    held = config.inner
    return x * held.beta


def assigned_twice(x: Any) -> Any:
    held = config.inner
    held = held or x
    return x * held.beta


def imported(x: Any) -> Any:
    import os.path
    from math import pi

    return x * pi * os.sep


def filled(x: Any) -> Any:
    if x not in names:
        names[x] = 1
    return names[x]


def counted(x: Any) -> Any:
    config.count += 1
    names["n"] -= x
    return x


def stored(x: Any) -> Any:
    config.beta = x
    names["n"] = x
    return x


def looped(x: Any) -> Any:
    for i, (name, weight) in enumerate(names):
        x = x * weight if i else name
    return x


def tried(x: Any) -> Any:
    try:
        with config.scope(x) as inner:
            return inner.beta
    except ValueError:
        return x[1:]


class Method:
    def fn(self, x: Any) -> Any:
        return super().fn(x)  # pyright: ignore[reportAttributeAccessIssue]


ITEM = Item(Global("names"), Constant("n"))

CASES: dict[str, tuple[Callable[..., Any], set[tuple[Expression, Use]]]] = {
    "attribute": (lambda x: x * config.beta, {(X, "value"), (BETA, "value")}),
    "closure": (
        closure(), {(Outer("outer"), "update"), (X, "value"), (Attribute(Outer("outer"), "beta"), "value")},
    ),
    "item": (lambda x: names["n"] * names[x], {(ITEM, "value"), (Item(Global("names"), X), "value")}),
    "presence": (lambda: config.beta is None, {(BETA, "presence")}),
    "not presence": (lambda x: x if config.beta is not None else -x, {(X, "value"), (BETA, "presence")}),
    "call": (
        lambda x: helper(x, config, by=config.beta).y,
        {
            (call := Call(Global("helper"), (X, Global("config"), BETA), ("by",)), "value"),
            (Attribute(call, "y"), "value"),
        },
    ),
    "method": (lambda x: x.beta(config.beta), {(Call(Attribute(X, "beta"), (BETA,)), "value")}),
    "unpacked": (
        lambda x: helper(*x, **names), {(Global("helper"), "value"), (X, "value"), (Global("names"), "value")}
    ),
    "assigned": (assigned, {(X, "value"), (Attribute(Local("held"), "beta"), "value")}),
    "imported": (
        imported, {(X, "value"), (Local("pi"), "value"), (Attribute(Local("os"), "sep"), "value")}
    ),
    "filled": (
        filled, {(X, "value"), (Global("names"), "entries"), (Item(Global("names"), X), "value")},
    ),
    "counted": (
        counted, {(Attribute(Global("config"), "count"), "update"), (X, "value"), (ITEM, "update")}
    ),
    "stored": (stored, {(X, "value")}),
    "text": (lambda x: f"{x:.2f} {config.beta!r}", {(X, "value"), (BETA, "value")}),
    "super": (Method.fn, {(Call(Attribute(Call(Global("super"), ()), "fn"), (X,)), "value")}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_expressions_that_are_read(name: str) -> None:
    fn, wanted = CASES[name]
    found = {(one.expression, one.use) for one in reads_of(fn.__code__).reads}
    # Some versions of Python make the object of a method above by a call.
    assert found - {(Call(Global("super"), ()), "value")} == wanted


def test_what_a_variable_is_assigned_once() -> None:
    assert reads_of(assigned.__code__).assigned["held"] == Attribute(Global("config"), "inner")
    assert "held" not in reads_of(assigned_twice.__code__).assigned
    assert reads_of(counted.__code__).replaced == frozenset() and reads_of(looped.__code__).replaced == {"x"}
    assert (Attribute(Global("config"), "inner"), "value") in {
        (one.expression, one.use) for one in reads_of(assigned_twice.__code__).reads
    }
    assert reads_of(imported.__code__).assigned == {
        "pi": Attribute(Imported("math"), "pi"), "os": Imported("os"),
    }  # fmt: skip


@pytest.mark.parametrize("fn", [looped, tried])
def test_nothing_that_is_read_from_outside_is_lost_where_paths_meet(fn: Callable[..., Any]) -> None:
    def roots(expression: Expression) -> set[Expression]:
        match expression:
            case Attribute(of) | Item(of):
                return roots(of)
            case Call(of, args):
                return roots(of).union(*map(roots, args or ()))
            case _:
                return {expression}

    reads = reads_of(fn.__code__)
    found = set[Expression]().union(*[roots(one.expression) for one in reads.reads])
    wanted = {Global(name) for name in fn.__code__.co_names if name in globals()}
    assert wanted and wanted <= found
    assert all(one.line > fn.__code__.co_firstlineno for one in reads.reads)


def test_functions_inside_are_read_as_they_are_made() -> None:
    outer = reads_of((lambda: [lambda y: y * config.beta]).__code__)
    (inner,) = outer.inner
    assert {one.expression for one in reads_of(inner).reads} == {Local("y"), BETA}

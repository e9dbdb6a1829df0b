"""What a module holds besides parameters: a change of it is seen by every compiled function, as it is eagerly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import phlox as px
from phlox.errors import ModuleError
from phlox.module.statics import MOST_CONTENTS, static_key


class Settings:
    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.inner: Any = None
        self.more: Any = None

    def scaled(self, x: Any) -> Any:
        return x * self.scale


class Slotted:
    __slots__ = ("__weakref__", "scale", "unset")

    def __init__(self, scale: float) -> None:
        self.scale = scale


@dataclass(unsafe_hash=True)
class Compared:
    scale: float


def scaled_by(settings: Any, x: Any) -> Any:
    return x * settings.scale


def nested(scale: float) -> Settings:
    outer = Settings(1.0)
    outer.inner, outer.more = Settings(scale), {"list": [1, [2.0]], "self": outer, "array": np.ones(2)}
    return outer


def change_list(settings: Settings) -> None:
    settings.more["list"][1][0] = 5.0


def change_array(settings: Settings) -> None:
    settings.more["array"][0] = 5.0


def setter(name: str) -> Callable[[Any], None]:
    def change(holder: Any) -> None:
        setattr(holder, name, 10.0)

    return change


KINDS: dict[str, tuple[Callable[[], Any], Callable[[Any, Any], Any], Callable[[Any], None]]] = {
    # what makes the value, what the model computes with it, how it is changed
    "an object": (lambda: Settings(1.0), scaled_by, setter("scale")),
    "with slots": (lambda: Slotted(1.0), scaled_by, setter("scale")),
    "compared by value": (lambda: Compared(1.0), scaled_by, setter("scale")),
    "in an object": (lambda: nested(1.0), lambda it, x: x * it.inner.scale, lambda it: setter("scale")(it.inner)),
    "in a list": (lambda: nested(1.0), lambda it, x: x * it.more["list"][1][0], change_list),
    "in an array": (lambda: nested(1.0), lambda it, x: x * float(it.more["array"][0]), change_array),
    "in a partial": (
        lambda: partial(scaled_by, Settings(1.0)),
        lambda it, x: it(x),
        lambda it: setter("scale")(it.args[0]),
    ),
    "of a method": (lambda: Settings(1.0).scaled, lambda it, x: it(x), lambda it: setter("scale")(it.__self__)),
    "a new attribute": (lambda: Settings(1.0), lambda it, x: x * getattr(it, "late", 2.0), setter("late")),
}


class Holds(px.Module):
    def __init__(self, value: Any, uses: Any, device: Any) -> None:
        self.inside = [px.Param(px.ones((2,), device=device))]
        self.held, self.uses = value, uses

    def __call__(self, x: Any) -> Any:
        return self.uses(self.held, x * self.inside[0].val())


class Whole(px.Module):
    def __init__(self, part: Holds) -> None:
        self.part = part

    def __call__(self, x: Any) -> Any:
        return self.part(x)


def call(model: Any, x: Any) -> Any:
    return model(x)


def called_by_jit(model: Any, x: Any) -> Any:
    return _JITTED(model, x)


_JITTED = jax.jit(call)
MANNERS: dict[str, tuple[str, Any]] = {
    "px.compile": ("jax", px.compile(call)),
    "PyTorch": ("torch", px.compile(call)),
    "jax.jit": ("jax", called_by_jit),
}


@pytest.mark.parametrize("manner", MANNERS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_change_is_seen(kind: str, manner: str) -> None:
    if manner == "PyTorch" and kind not in ("an object", "in a list"):
        pytest.skip("one comparison serves all engines")
    make, uses, change = KINDS[kind]
    device, run = MANNERS[manner]
    value, x = make(), px.ones((2,), device=device)
    model = Whole(Holds(value, uses, device))
    if manner == "jax.jit":  # what comes out of a program has no fields until one is asked for
        model = jax.jit(lambda model: jax.tree.map(lambda leaf: leaf * 1.0, model))(model)
    first = run(model, x).numpy()
    np.testing.assert_array_equal(first, model(x).numpy())
    change(value)
    assert not np.array_equal(model(x).numpy(), first)
    np.testing.assert_array_equal(run(model, x).numpy(), model(x).numpy())


def test_an_argument_that_is_changed_is_seen() -> None:
    settings, run = Settings(1.0), px.compile(lambda settings, x: x * settings.scale)
    x = px.ones((2,), device="jax")
    assert run(settings, x).tolist() == [1.0, 1.0]
    settings.scale = 3.0
    assert run(settings, x).tolist() == [3.0, 3.0] and run.traces == 2
    assert run(settings, x).tolist() == [3.0, 3.0] and run.traces == 2


def test_what_is_large_or_not_compared_is_compared_by_identity() -> None:
    class Equal:
        def __eq__(self, other: object) -> bool:
            raise ValueError("no")

        __hash__ = None  # pyright: ignore[reportAssignmentType]

    one = Settings(1.0)
    one.inner, one.more = Equal(), list(range(2 * MOST_CONTENTS))
    key = static_key(one)
    assert key == static_key(one)
    one.more[0] = 7
    assert key == static_key(one)
    one.more = list(one.more)
    assert key != static_key(one)
    assert static_key(Settings(1.0)) != static_key(Settings(1.0))


STATIC: dict[str, Callable[[Any, Any], Any]] = {
    "static_argnums": lambda model, x: jax.jit(call, static_argnums=0)(model, x),
    "static_argnames": lambda model, x: jax.jit(call, static_argnames="model")(model=model, x=x),
    "jax.jit of a model": lambda model, x: jax.jit(model)(x),
    "jax.checkpoint of one": lambda model, x: jax.checkpoint(model)(x),
}


@pytest.mark.parametrize("how", STATIC)
def test_a_module_is_no_static_argument(how: str) -> None:
    model, x = Whole(Holds(Settings(1.0), scaled_by, "jax")), jnp.ones(2)
    # JAX says it of a static argument in an error of its own, which quotes ours.
    said = r"(?s)would keep the weights that this Whole has now.*jax\.jit\(lambda model, x"
    with pytest.raises(ValueError if how.startswith("static") else ModuleError, match=said):
        STATIC[how](model, x)
    assert len({model, model}) == 1 and {model: 1}[model] == 1
    jax.vmap(model)(jnp.ones((3, 2)))  # which keeps nothing
    jax.jit(lambda model, x: jax.lax.cond(x[0] > 0, model, jax.checkpoint(model), x))(model, x)
    jax.grad(lambda x: model(x).sum())(x)

"""Gradient checkpointing as a strategy: results of cheap operations are not saved for the backward pass.

A value that a derivative needs is saved only if it was expensive to compute. For a cheap value a recipe is saved: the
cheap operations that lead to it from expensive values. It is recomputed when it is needed. (Burn's balanced
checkpointing.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from phlox.autodiff.build import MultiOutputRule, Rule, as_general, build
from phlox.autodiff.rules.arithmetic import ARITHMETIC
from phlox.autodiff.rules.shape import SHAPE
from phlox.autodiff.rules.special import SPECIAL
from phlox.autodiff.tape import Tracked
from phlox.autodiff.taping import boxed, operation_node
from phlox.backend.contract import Backend
from phlox.backend.contract.types import Array, Gradients, Needed

CHEAP = frozenset({*ARITHMETIC, *SPECIAL, *SHAPE, "gelu"})
"""Operations that take about as long as reading their operands and writing their result."""


class Recipe:
    """How to recompute a value: a function and its arguments, which may be recipes too."""

    __slots__ = ("arguments", "function", "value")

    def __init__(self, function: Callable[..., Array], arguments: tuple[Any, ...]) -> None:
        self.function = function
        self.arguments = arguments
        self.value: Array | None = None

    def compute(self) -> Array:
        """The value, computed once, and kept as long as the recipe exists."""
        # The explicit stack allows chains of cheap operations that are longer than Python's recursion limit.
        stack: list[Recipe] = [self]
        while stack:
            recipe = stack[-1]
            # Read the arguments before the value: another thread that computes the value clears them afterwards.
            arguments = recipe.arguments
            missing = [x for x in arguments if type(x) is Recipe and x.value is None]
            if missing and recipe.value is None:
                stack.extend(missing)
                continue
            stack.pop()
            if recipe.value is None:
                recipe.value = recipe.function(*(x.value if type(x) is Recipe else x for x in arguments))
                recipe.arguments = ()
        return self.value


class Recomputed(Tracked):
    """A tracked value, with its recipe if it was cheap to compute."""

    __slots__ = ("recipe",)

    recipe: Recipe


def build_recomputing(inner: Backend, box: type[Tracked], name: str, rule: Rule) -> Callable[..., Any]:
    """As `build`, for an operation that saves recipes in place of cheap values."""
    if isinstance(rule, MultiOutputRule):
        return build(inner, box, name, rule)
    function = getattr(inner, name)
    general_rule = as_general(function, rule)
    count, cheap = general_rule.operands, name in CHEAP
    forward: Callable[..., tuple[Array, Any]] = general_rule.forward
    backward: Callable[..., Gradients] = general_rule.backward

    def operation(*arguments: Any) -> Array:
        operands, options = arguments[:count], arguments[count:]
        if not any(type(x) is box for x in operands):
            return function(*arguments)
        y, saved = forward(inner, *(x.value if type(x) is box else x for x in operands), *options)
        with_recipe = (cast(Any, x) for x in operands if type(x) is box and hasattr(x, "recipe"))
        recipes: dict[int, Recipe] = {id(x.value): x.recipe for x in with_recipe}
        recipe = None
        if cheap:
            sources = (getattr(x, "recipe", x.value) if type(x) is box else x for x in operands)
            recipe = recipes[id(y)] = Recipe(function, (*sources, *options))

        def differentiate(backend: Backend, saved: Any, g: Array, needed: Needed) -> Gradients:
            return backward(backend, _unpack(saved), g, needed, *options)

        result = boxed(box, y, operation_node(inner, box, operands, _pack(saved, recipes), differentiate))
        if recipe is not None:
            cast(Any, result).recipe = recipe
        return result

    return operation


def _pack(saved: Any, recipes: dict[int, Recipe]) -> Any:
    """The saved values, with recipes in place of the values that have one."""
    if isinstance(saved, (tuple, list)):
        return tuple(_pack(x, recipes) for x in cast("tuple[Any, ...]", saved))
    return recipes.get(id(saved), saved)


def _unpack(saved: Any) -> Any:
    if isinstance(saved, tuple):
        return tuple(map(_unpack, cast("tuple[Any, ...]", saved)))
    return saved.compute() if type(saved) is Recipe else saved

"""Selecting parameters of a module, for freezing and for the groups of an optimizer.

A selector is a path pattern, see `phlox.record.patterns`: `*`, `**`, `!`, and the path of a module for everything in
it. It can also be a predicate `(path, param) -> bool`, or a list or tuple of selectors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ForwardRef, TypeAlias, cast

import numpy as np

from phlox.errors import ModuleError
from phlox.module.fields import Fields
from phlox.module.param import Param
from phlox.record.patterns import Finder, no_match, select_in_order

if TYPE_CHECKING:
    from phlox.module.module import Module

if TYPE_CHECKING:
    Selector: TypeAlias = str | Callable[[str, Param], bool] | Sequence["Selector"]
else:  # a type at run time too, for annotations that are evaluated
    Selector = str | Callable[[str, Param], bool] | Sequence[ForwardRef("Selector", module=__name__)]
"""A pattern, a predicate, or a list or tuple of these."""


def select(module: Module, *which: Selector) -> dict[str, Param]:
    """The selected parameters of a module, by path, in the order of declaration; without selectors, all of them.

    A parameter at several paths is selected by each of them. Raises `ModuleError` for a pattern that no
    parameter matches (it suggests a similar path), and for a selector of the wrong type.

    >>> import phlox as px
    >>> from phlox import nn
    >>> model = nn.Sequential([nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 1)])
    >>> list(select(model, "*.*.bias", "layers.1"))
    ['layers.0.bias', 'layers.1.gamma', 'layers.1.beta', 'layers.2.bias']
    >>> list(select(model, lambda path, param: len(param.shape) == 2, "!layers.0"))
    ['layers.2.weight']
    """
    structure = module.structure()
    named = dict(structure.named())
    paths: dict[str, list[str]] = {path: [path] for path in named}
    for alias, first in structure.aliases.items():
        paths[first].append(alias)
    selected = select_among(which, named, paths) if which else set(named)
    return {path: param for path, param in named.items() if path in selected}


def select_among(which: Sequence[Any], named: dict[str, Param], paths: dict[str, list[str]]) -> set[str]:
    """The selected ones of these parameters; `paths` are all paths of each."""
    return _select(which, named, paths, Finder(paths))


def _select(which: Sequence[Any], named: dict[str, Param], paths: dict[str, list[str]], find: Finder) -> set[str]:
    return select_in_order(which, named, lambda selector: _select_one(selector, named, paths, find))


def _select_one(selector: Any, named: dict[str, Param], paths: dict[str, list[str]], find: Finder) -> set[str]:
    if isinstance(selector, str):
        matches = set(find(selector))
        if not matches:
            raise ModuleError(no_match(selector, [path for group in paths.values() for path in group], "parameter"))
        return matches
    if isinstance(selector, (list, tuple)):
        return _select(cast("Sequence[Any]", selector), named, paths, find)
    if callable(selector) and not isinstance(selector, (type, Fields)):
        return {first for first, group in paths.items() for p in group if _is_selected(selector, p, named[first])}
    raise ModuleError(
        f"{selector!r} does not select parameters; give a pattern of paths ('encoder.**', '*.bias'), a "
        "function (path, param) -> bool, or a list of these"
    )


def _is_selected(predicate: Callable[[str, Param], Any], path: str, param: Param) -> bool:
    try:
        result = predicate(path, param)
        if isinstance(result, (bool, np.bool_)):
            return bool(cast("bool", result))
    except Exception as error:
        error.add_note(f"The predicate was called for the parameter `{path}`.")
        raise
    raise ModuleError(f"a predicate must return True or False for the parameter `{path}`, got {result!r}")

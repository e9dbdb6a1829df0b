"""Which parameters of a module are meant: the one small language for freezing and for groups of an optimizer.

A pattern is a path with wildcards: `*` stands for any part of one segment, `**` for any number of segments. The path of
a module, or of a list or dict in it, means everything below. A pattern that starts with `!` takes away from what the
patterns before it have chosen, or from all parameters if it is the first. In place of a pattern may stand a predicate
`(path, param) -> bool`, or a list or tuple of patterns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

from phlox.errors import ModuleError
from phlox.module.fields import Fields
from phlox.module.param import Param
from phlox.record.names import nearest

if TYPE_CHECKING:
    from phlox.module.module import Module

Selector: TypeAlias = "str | Callable[[str, Param], bool] | Sequence[Selector]"
"""A pattern, a predicate, or a list or tuple of these."""


def select(module: Module, *which: Selector) -> dict[str, Param]:
    """The parameters of a module that are meant, by path, in the order of declaration; all of them for no patterns.

    A parameter that stands in several places is found by the path of each. Raises `ModuleError` for a pattern that
    no parameter matches, with the path that may have been meant, and for what is no pattern.

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
    chosen = _chosen(which, named, paths) if which else set(named)
    return {path: param for path, param in named.items() if path in chosen}


def _chosen(which: Sequence[Any], named: dict[str, Param], paths: dict[str, list[str]]) -> set[str]:
    chosen: set[str] = set()
    for place, one in enumerate(which):
        taken_away = isinstance(one, str) and one.startswith("!")
        found = _found(one[1:] if taken_away else one, named, paths)
        if taken_away:
            chosen = (chosen if place else set(named)) - found
        else:
            chosen |= found
    return chosen


def _found(one: Any, named: dict[str, Param], paths: dict[str, list[str]]) -> set[str]:
    if isinstance(one, str):
        found = {first for first, known in paths.items() if any(_matches(one, path) for path in known)}
        if not found:
            raise _no_match(one, [path for known in paths.values() for path in known])
        return found
    if isinstance(one, (list, tuple)):
        return _chosen(cast("Sequence[Any]", one), named, paths)
    if callable(one) and not isinstance(one, (type, Fields)):
        return {first for first, known in paths.items() for path in known if _judge(one, path, named[first])}
    raise ModuleError(
        f"{one!r} does not say which parameters are meant; give a pattern of paths ('encoder.**', '*.bias'), a "
        "function (path, param) -> bool, or a list of these"
    )


def _judge(predicate: Callable[[str, Param], Any], path: str, param: Param) -> bool:
    try:
        answer = predicate(path, param)
        if isinstance(answer, (bool, np.bool_)):
            return bool(cast("bool", answer))
    except Exception as error:
        error.add_note(f"The predicate was asked about the parameter `{path}`.")
        raise
    raise ModuleError(f"a predicate must say True or False of the parameter `{path}`, got {answer!r}")


@lru_cache(maxsize=512)
def _expression(pattern: str) -> re.Pattern[str]:
    """For paths with a dot at the end: those that match, and those below."""
    text = ""
    for segment in pattern.split("."):
        text += r"(?:[^.]+\.)*" if segment == "**" else "[^.]*".join(map(re.escape, segment.split("*"))) + r"\."
    return re.compile(f"{text}.*")


def _matches(pattern: str, path: str) -> bool:
    return _expression(pattern).fullmatch(f"{path}.") is not None


def _no_match(pattern: str, paths: list[str]) -> ModuleError:
    for other in _meant(pattern, paths):
        if other != pattern and any(_matches(other, path) for path in paths):
            return ModuleError(f"no parameter matches `{pattern}`; did you mean `{other}`?")
    shown = ", ".join(paths[:6]) + (", ..." if len(paths) > 6 else "")
    return ModuleError(f"no parameter matches `{pattern}`; the parameters are {shown or 'none'}")


def _meant(pattern: str, paths: list[str]) -> Iterator[str]:
    """What may have been meant: the same further down, or other names."""
    yield f"*{pattern}" if pattern.startswith("*.") else f"**.{pattern}"
    if "*" not in pattern:
        modules = dict.fromkeys(path[:end] for path in paths for end in range(len(path)) if path[end] == ".")
        yield nearest(pattern, [*paths, *modules]) or pattern
    names = dict.fromkeys(name for path in paths for name in path.split("."))
    segments = [one if "*" in one or one in names else nearest(one, names) or one for one in pattern.split(".")]
    yield ".".join(segments)
    yield ".".join(["**", *segments])

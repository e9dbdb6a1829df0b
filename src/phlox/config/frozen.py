"""Immutable lists and dicts: the values of config fields annotated with `list` and `dict`.

They are real lists and dicts (`[64] + config.hidden` and `isinstance` work), and they are hashable.
"""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar, cast

from phlox.errors import ConfigError

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


def _refusal(kind: str) -> Any:
    def refuse(self: object, *args: object, **kwargs: object) -> NoReturn:
        raise ConfigError(f"a {kind} in a config is immutable: change a copy, and set the field with `replace`")

    return refuse


class FrozenList(list[T]):
    """An immutable, hashable list.

    >>> sizes = FrozenList([64, 32])
    >>> sizes == [64, 32], [128] + sizes
    (True, [128, 64, 32])
    """

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refusal("list")
    append = clear = extend = insert = pop = remove = reverse = sort = _refusal("list")

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]  # list has None there
        return hash(tuple(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenList, (list(self),)


class FrozenDict(dict[K, V]):
    """An immutable, hashable dict.

    >>> FrozenDict(a=1) == {"a": 1}, FrozenDict(a=1) | {"b": 2}
    (True, {'a': 1, 'b': 2})
    """

    __setitem__ = __delitem__ = __ior__ = _refusal("dict")
    clear = pop = popitem = setdefault = update = _refusal("dict")

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]  # dict has None there
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenDict, (dict(self),)


def freeze(value: object) -> object:
    """Freeze every list and dict in `value`; other values are returned unchanged."""
    if isinstance(value, list):
        return FrozenList([freeze(item) for item in cast(list[object], value)])
    if isinstance(value, dict):
        return FrozenDict({key: freeze(item) for key, item in cast(dict[object, object], value).items()})
    return value

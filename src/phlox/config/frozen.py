"""Lists and dicts that cannot be changed: what a config holds where its fields are annotated with `list` and `dict`.

They are true lists and dicts (`[64] + config.hidden` works, as does every `isinstance`), and hashable besides.
"""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar, cast

from phlox.errors import ConfigError

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


def _refusal(kind: str) -> Any:
    def refuse(self: object, *args: object, **kwargs: object) -> NoReturn:
        raise ConfigError(f"a {kind} in a config cannot be changed: change a copy and `replace` the field by it")

    return refuse


class FrozenList(list[T]):
    """A list that never changes, and therefore has a hash.

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
    """A dict that never changes, and therefore has a hash.

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
    """Give `value` with every list and dict in it frozen; anything else is given back as it is."""
    if isinstance(value, list):
        return FrozenList([freeze(item) for item in cast(list[object], value)])
    if isinstance(value, dict):
        return FrozenDict({key: freeze(item) for key, item in cast(dict[object, object], value).items()})
    return value

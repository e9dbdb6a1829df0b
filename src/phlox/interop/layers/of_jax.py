"""What the adapters of libraries for JAX have in common: elements, and the paths of leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Self, cast

from phlox.interop.layers.wrapped import Key


def trees() -> Any:
    """JAX's functions of trees; imported only when a layer is wrapped."""
    from phlox.backend.jax import trees

    return trees


class Elements:
    """The element types of the leaves: keys and unsigned integers, which no tensor has, are signed in parameters."""

    def __init__(self, leaves: Sequence[Any]) -> None:
        of = trees()
        self._elements = [of.element_of(of.typed(leaf)) for leaf in leaves]
        self._odd = [isinstance(element, str) or element.kind in "iu" for element in self._elements]

    def to_params(self, leaves: Sequence[Any]) -> list[Any]:
        """The arrays that parameters may have."""
        of = trees()
        arrays: list[Any] = [of.typed(leaf) for leaf in leaves]
        return [of.as_signed(x) if odd else x for x, odd in zip(arrays, self._odd, strict=True)]

    def from_params(self, arrays: Sequence[Any]) -> list[Any]:
        """The inverse; floats have the precision of the model."""
        of = trees()
        pairs = zip(arrays, self._elements, self._odd, strict=True)
        return [of.from_signed(x, element) if odd else x for x, element, odd in pairs]

    def after(self, arrays: Sequence[Any], before: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
        """The arrays after a call, from the leaves before and after it: the same, where nothing changed."""
        new = self.to_params(leaves)
        return [x if new is old else y for x, old, new, y in zip(arrays, before, leaves, new, strict=True)]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Elements) and self._elements == other._elements

    def __hash__(self) -> int:
        return len(self._elements)


class FormOfJax:
    """A layer without its arrays, in both modes: the part that the libraries for JAX have in common."""

    engine = "jax"
    library = ""
    field_paths: tuple[tuple[Key, ...], ...] = ()

    def __init__(self, cls: type[Any], rests: Sequence[Any], elements: Elements, call: Callable[..., Any]) -> None:
        self._class, self._elements, self._call = cls, elements, call
        self._rests = tuple(rests)
        """The layer without its arrays: in evaluation mode, and in training mode."""

    @property
    def arrays(self) -> type[Any]:
        """The class of JAX's arrays."""
        return import_module("jax").Array

    def in_mode(self, training: bool) -> Any:
        """See `Form`."""
        return partial(self._apply, self._rests[training])

    def _apply(self, remainder: Any, arrays: Sequence[Any], args: Any, kwargs: Any) -> tuple[Any, Sequence[Any]]:
        raise NotImplementedError

    def _is_like(self, other: Any) -> bool:
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(self) is not type(other):
            return False
        its = cast("FormOfJax", other)
        return (self._call, self._elements) == (its._call, its._elements) and self._is_like(other)

    def __hash__(self) -> int:
        return hash((self._class, self._call))

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __repr__(self) -> str:
        return f"{self.library} {self._class.__name__}"


def path_of(keys: Sequence[Any]) -> tuple[Key, ...]:
    """The path of a leaf from JAX's keys."""
    path: list[Key] = []
    for key in keys:
        at: Any = next(getattr(key, name) for name in ("key", "idx", "name") if hasattr(key, name))
        path.append(at if isinstance(at, int) else str(at))
    return tuple(path)

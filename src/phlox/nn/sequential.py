"""A chain of layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast, overload

from phlox.errors import ModuleError, PhloxError
from phlox.module import Module

__all__ = ["Sequential"]

Layer = Callable[..., Any]


class Sequential(Module):
    """Call layers in order, each on the result of the previous one; any callable is a layer.

    Layers can be given as a list or one by one; a parameter then has a path such as `layers.0.weight`. Or they can be
    given by name, as a dict or as keywords; the path is then `layers.conv.weight`. Named paths do not change when a
    layer is inserted, so saved records still fit. The field `layers` holds the list or dict, which may be changed.

    An error raised in a layer names the layer. Raises `ModuleError` for a class instead of an instance, and, when
    called, for a layer that is not callable.

    >>> import phlox as px
    >>> from phlox import nn
    >>> model = nn.Sequential([nn.Linear(4, 8), nn.Relu(), nn.Linear(8, 1)])
    >>> model(px.ones((2, 4))).shape, model[:2](px.ones((2, 4))).shape
    ((2, 1), (2, 8))
    >>> named = nn.Sequential(first=nn.Linear(4, 8), act=nn.Relu(), head=nn.Linear(8, 1))
    >>> named["head"] is named[-1], [path for path, _ in named.named_params()][0]
    (True, 'layers.first.weight')
    """

    layers: Any
    """A list of layers, or a dict of layers by name."""

    def __init__(self, *layers: Layer | Sequence[Layer] | Mapping[str, Layer], **named: Layer) -> None:
        only: Any = layers[0] if len(layers) == 1 else None
        if isinstance(only, Mapping):
            self.layers = {**cast("Mapping[str, Layer]", only), **named}
        elif named:
            if layers:
                raise ModuleError("Sequential: name all layers, or none")
            self.layers = dict(named)
        else:
            self.layers = list(cast("Sequence[Layer]", only) if isinstance(only, (list, tuple)) else layers)
        for name, layer in self._items():
            if isinstance(layer, type) and issubclass(layer, Module):
                call = f"{layer.__name__}(...)"
                raise ModuleError(
                    f"Sequential: layer {name} is the class {layer.__name__}, not an instance; write {call}"
                )

    def __call__(self, x: Any) -> Any:
        index = 0
        try:
            for layer in self:
                x = layer(x)
                index += 1
        except Exception as error:
            name, layer = self._items()[index]
            if not callable(layer):
                raise ModuleError(f"layers.{name} is a {type(layer).__name__}, which is not callable") from None
            if isinstance(error, PhloxError) and not isinstance(layer, Module):  # modules add their path themselves
                error.args = (f"layers.{name}: {error}",)
            raise
        return x

    def _items(self) -> list[tuple[int | str, Any]]:
        layers: list[Any] | dict[str, Any] = self.layers
        return list(layers.items()) if isinstance(layers, dict) else list(enumerate(layers))

    @overload
    def __getitem__(self, key: int | str) -> Any: ...
    @overload
    def __getitem__(self, key: slice) -> Sequential: ...
    def __getitem__(self, key: int | str | slice) -> Any:
        """A layer by its index or name. A slice gives a `Sequential` of these layers, with their names."""
        if isinstance(key, str):
            return self.layers[key]
        items = self._items()[key]
        if isinstance(items, tuple):
            return items[1]
        if isinstance(self.layers, dict):
            return Sequential({str(name): layer for name, layer in items})
        return Sequential([layer for _, layer in items])

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[Any]:
        layers: list[Any] | dict[str, Any] = self.layers
        return iter(layers.values() if isinstance(layers, dict) else layers)

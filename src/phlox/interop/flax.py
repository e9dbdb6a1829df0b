"""Layers of Flax NNX in a model: `wrap`."""

# Flax is imported only when a layer is wrapped; of its objects only methods are used.

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any, cast

from phlox.backend import DeviceLike
from phlox.errors import ExtraNotInstalledError, ModuleError
from phlox.interop.layers import Leaf, Wrapped, check_layer
from phlox.interop.layers.of_jax import Elements, FormOfJax, path_of

_NAME = "phlox.interop.flax.wrap"


def wrap(layer: Any, *, call: Callable[..., Any] | None = None, device: DeviceLike | None = None) -> Wrapped:
    """A layer of Flax NNX as a module, with its weights: for a field of a `phlox.Module`, or by itself.

    Its variables are parameters with Flax's paths (`kernel`, `layers.0.bias`): those of `nnx.Param` are trained. The
    others (`nnx.BatchStat`, counts and keys of random streams) are not, but are saved, and a call changes them. `train`
    and `valid` are Flax's `train()` and `eval()`. The layer itself does not change, except for its random streams: the
    module continues the old ones, and the layer gets new ones, so that a later module of it draws other numbers.

    Args:
        layer: an instance of `nnx.Module`. A layer of Flax Linen becomes one by `nnx.bridge.ToNNX`.
        call: a function `(layer, *args, **kwargs)` of JAX's arrays, in place of the layer's `__call__`.
        device: where the parameters are; by default where the layer has them.

    Raises `ModuleError` for anything but a layer.

    >>> import phlox as px
    >>> from flax import nnx
    >>> layer = px.interop.flax.wrap(nnx.Linear(4, 2, rngs=nnx.Rngs(0)))
    >>> [path for path, _ in layer.named_params()], layer(px.ones((3, 4), device="jax")).shape
    (['bias', 'kernel'], (3, 2))
    """
    nnx = _library()
    check_layer(layer, nnx.Module, _NAME)
    if call is None and not callable(layer):
        raise ModuleError(f"{_NAME}: a {type(layer).__name__} has no __call__; give call=(function of the layer, ...)")
    form, leaves = _split(nnx, layer, call or _call)
    for node in {id(node): node for _, node in nnx.iter_graph(layer) if isinstance(node, nnx.RngStream)}.values():
        node.key.set_value(_moved_on(node.key.get_value()))
    return Wrapped(form, leaves, device)


def _library() -> Any:
    try:
        return import_module("flax.nnx")
    except ImportError as error:
        raise ExtraNotInstalledError(f"layers of Flax need Flax: pip install flax ({error})") from None


def _call(layer: Any, *args: Any, **kwargs: Any) -> Any:
    return layer(*args, **kwargs)


def _split(nnx: Any, layer: Any, call: Callable[..., Any]) -> tuple[_Form, list[Leaf]]:
    tree_util = import_module("jax").tree_util
    graph, state = nnx.split(layer)
    keyed_leaves, structure = tree_util.tree_flatten_with_path(state)
    trained = {path for path, _ in tree_util.tree_flatten_with_path(nnx.split(layer, nnx.Param, ...)[1])[0]}
    graphs: list[Any] = []
    for set_mode in (nnx.Module.eval, nnx.Module.train):
        twin = nnx.merge(graph, state)
        set_mode(twin)
        graphs.append(nnx.split(twin)[0])
    elements = Elements([leaf for _, leaf in keyed_leaves])
    form = _Form(cast("type[Any]", type(layer)), (graphs[0], graphs[1]), structure, elements, call)
    leaves = [
        Leaf(_path(keys), array, keys in trained, keys in trained, keys not in trained)
        for (keys, _), array in zip(keyed_leaves, elements.to_params([leaf for _, leaf in keyed_leaves]), strict=True)
    ]
    return form, leaves


def _path(keys: Sequence[Any]) -> Any:
    """The path of a leaf, without the step from a variable to its value."""
    return path_of([key for key in keys if getattr(key, "name", None) != "value"])


def _moved_on(keys: Any) -> Any:
    jax = import_module("jax")
    fold_in: Any = partial(jax.random.fold_in, data=0xFFFFFFFF)  # larger than any count
    return jax.vmap(fold_in)(keys.reshape(-1)).reshape(keys.shape)


class _Form(FormOfJax):
    """`_rests` are Flax's graphs, one for each mode."""

    library = "Flax NNX"

    def __init__(
        self, cls: type[Any], graphs: Sequence[Any], structure: Any, elements: Elements, call: Callable[..., Any]
    ) -> None:
        super().__init__(cls, graphs, elements, call)
        self._structure = structure

    def _apply(self, remainder: Any, arrays: Sequence[Any], args: Any, kwargs: Any) -> tuple[Any, Sequence[Any]]:
        nnx, tree_util = _library(), import_module("jax").tree_util
        before = self._elements.from_params(arrays)
        layer = nnx.merge(remainder, tree_util.tree_unflatten(self._structure, before))
        result = self._call(layer, *args, **kwargs)
        after, structure = tree_util.tree_flatten(nnx.split(layer)[1])
        if structure != self._structure:
            nnx.pop(layer, nnx.Intermediate)  # values that the layer has sown for inspection
            after, structure = tree_util.tree_flatten(nnx.split(layer)[1])
        if structure != self._structure:
            raise ModuleError(
                f"{_NAME}: the call of a {self._class.__name__} makes or drops variables; call the layer once before "
                "it is wrapped, so that it has them"
            )
        return result, self._elements.after(arrays, before, after)

    def _is_like(self, other: Any) -> bool:
        return (self._structure, self._rests) == (other._structure, other._rests)

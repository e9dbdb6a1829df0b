"""Layers of Equinox in a model: `wrap`."""

# Equinox is imported only when a layer is wrapped; of its objects only methods are used.

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, cast

from phlox.backend import DeviceLike
from phlox.errors import ExtraNotInstalledError, ModuleError
from phlox.interop.layers import Leaf, Wrapped, check_layer
from phlox.interop.layers.of_jax import Elements, FormOfJax, path_of

_NAME = "phlox.interop.equinox.wrap"


def wrap(
    layer: Any, state: Any = None, *, call: Callable[..., Any] | None = None, device: DeviceLike | None = None
) -> Wrapped:
    """A layer of Equinox as a module, with its weights: for a field of a `phlox.Module`, or by itself.

    Its arrays are parameters with Equinox's paths (`weight`, `layers.0.bias`); those of floats are trained. `train` and
    `valid` are `eqx.nn.inference_mode`; a layer that draws is given a `key=`, as in Equinox. Layers of Equinox take one
    example, without a batch; `call` says otherwise.

    Args:
        layer: an instance of `eqx.Module`.
        state: the `eqx.nn.State` that `eqx.nn.make_with_state` made with it. Its arrays are parameters that are not
            trained (`state.0`), but saved. A call passes it as `state=`, and takes it back: `(result, state)`.
        call: a function `(layer, *args, **kwargs)` of JAX's arrays, in place of the layer's `__call__`, such as
            `lambda layer, x: jax.vmap(layer)(x)`.
        device: where the parameters are; by default where the layer has them.

    Raises `ModuleError` for anything but a layer.

    >>> import jax, phlox as px
    >>> import equinox as eqx
    >>> rows = lambda layer, x: jax.vmap(layer)(x)
    >>> layer = px.interop.equinox.wrap(eqx.nn.Linear(4, 2, key=jax.random.key(0)), call=rows)
    >>> [path for path, _ in layer.named_params()], layer(px.ones((3, 4), device="jax")).shape
    (['weight', 'bias'], (3, 2))
    """
    eqx, jax = _library(), import_module("jax")
    check_layer(layer, eqx.Module, _NAME)
    if call is None and not callable(layer):
        raise ModuleError(f"{_NAME}: a {type(layer).__name__} has no __call__; give call=(function of the layer, ...)")
    if state is not None and not isinstance(state, eqx.nn.State):
        raise ModuleError(f"{_NAME}: state is an eqx.nn.State, of eqx.nn.make_with_state; got {type(state).__name__}")
    arrays, remainder = eqx.partition((layer, state), eqx.is_array)
    keyed_leaves = jax.tree_util.tree_flatten_with_path(arrays)[0]
    elements = Elements([leaf for _, leaf in keyed_leaves])
    signed = elements.to_params([leaf for _, leaf in keyed_leaves])
    of_state = [path_of(keys[:1]) == (1,) for keys, _ in keyed_leaves]
    trained = [eqx.is_inexact_array(leaf) and not kept for (_, leaf), kept in zip(keyed_leaves, of_state, strict=True)]
    leaves = [
        Leaf((*(("state",) if kept else ()), *path_of(keys[1:])), array, train, train, not train)
        for (keys, _), array, kept, train in zip(keyed_leaves, signed, of_state, trained, strict=True)
    ]
    rests = tuple([(eqx.nn.inference_mode(remainder[0], value=value), remainder[1]) for value in (True, False)])
    hull = jax.tree.map(_array, arrays)
    form = _Form(cast("type[Any]", type(layer)), hull, rests, elements, call or _call)
    return Wrapped(form, leaves, device)


def _array(x: Any) -> bool:
    """The placeholder of an array in a layer without its arrays."""
    return True


def _library() -> Any:
    try:
        return import_module("equinox")
    except ImportError as error:
        raise ExtraNotInstalledError(f"layers of Equinox need Equinox: pip install equinox ({error})") from None


def _call(layer: Any, *args: Any, **kwargs: Any) -> Any:
    return layer(*args, **kwargs)


class _Form(FormOfJax):
    library = "Equinox"

    def __init__(
        self, cls: type[Any], hull: Any, rests: Sequence[Any], elements: Elements, call: Callable[..., Any]
    ) -> None:
        super().__init__(cls, rests, elements, call)
        self._hull = hull

    def _apply(self, remainder: Any, arrays: Sequence[Any], args: Any, kwargs: Any) -> tuple[Any, Sequence[Any]]:
        eqx, jax = _library(), import_module("jax")
        before = self._elements.from_params(arrays)
        layer, state = eqx.combine(jax.tree.unflatten(jax.tree.structure(self._hull), before), remainder)
        if state is None:
            return self._call(layer, *args, **kwargs), arrays
        result, state = self._call(layer, *args, state=state, **kwargs)
        after = jax.tree.leaves(eqx.filter((layer, state), eqx.is_array))
        return result, self._elements.after(arrays, before, after)

    def _is_like(self, other: Any) -> bool:
        flatten = import_module("jax").tree.flatten
        own, structure = flatten((self._hull, self._rests))
        others, other_structure = flatten((other._hull, other._rests))
        same = structure == other_structure
        return same and all(type(x) is type(y) and (x is y or x == y) for x, y in zip(own, others, strict=True))

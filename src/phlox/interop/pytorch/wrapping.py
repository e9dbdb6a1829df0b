"""Layers of PyTorch in a model: `wrap`."""

# PyTorch is imported only when a layer is wrapped; of its objects only methods are used.

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib import import_module
from threading import RLock
from typing import Any, cast

from phlox.backend import DeviceLike
from phlox.errors import ModuleError
from phlox.interop.layers import Leaf, Wrapped, check_layer
from phlox.interop.layers.wrapped import Key

_NAME = "phlox.interop.pytorch.wrap"


def wrap(layer: Any, *, call: Callable[..., Any] | None = None, device: DeviceLike | None = None) -> Wrapped:
    """A layer of PyTorch as a module, with its weights: for a field of a `phlox.Module`, or by itself.

    Its parameters have PyTorch's names (`weight`, `0.bias`); those that require a gradient are trained. Buffers, such
    as running statistics, are parameters that are not trained, but are saved, and a call changes them. `train` and
    `valid` are PyTorch's `train()` and `eval()`. Dropout draws from PyTorch's own generator, `torch.manual_seed`. The
    layer itself stays as it is.

    To load the weights of a PyTorch model into a model of `phlox.nn`, use `load_state_dict`.

    Args:
        layer: an instance of `torch.nn.Module`.
        call: a function `(layer, *args, **kwargs)` of PyTorch's tensors, in place of the layer's `forward`.
        device: where the parameters are; by default where the layer has them.

    Raises `ModuleError` for anything but a layer, and for one whose parameters have no shapes yet (`LazyLinear`).

    >>> import torch, phlox as px
    >>> layer = px.interop.pytorch.wrap(torch.nn.Linear(4, 2))
    >>> [path for path, _ in layer.named_params()], layer(px.ones((3, 4), device="torch")).shape
    (['weight', 'bias'], (3, 2))
    """
    torch: Any = import_module("torch")
    check_layer(layer, torch.nn.Module, _NAME)
    tensors = [*layer.named_parameters(), *layer.named_buffers()]
    lazy = [name for name, x in tensors if torch.nn.parameter.is_lazy(x)]
    if lazy:
        raise ModuleError(f"{_NAME}: `{lazy[0]}` of the {type(layer).__name__} has no shape yet; call the layer once")
    leaves = [
        Leaf(_path(name), x.detach(), x.requires_grad, isinstance(x, torch.nn.Parameter), False) for name, x in tensors
    ]
    form = _Form(layer, [name for name, _ in tensors], [x.dtype for _, x in tensors], call)
    return Wrapped(form, leaves, device)


def _path(name: str) -> tuple[Key, ...]:
    return tuple([int(part) if part.isdecimal() else part for part in name.split(".")])


_UNSEEN = ("running_mean", "running_var")
"""Buffers that normalisations change without counting it in the tensor's version."""


class _Form:
    """A layer without its tensors: for each mode a copy without memory, which is called with given tensors."""

    engine, library = "torch", "PyTorch"
    field_paths: tuple[tuple[Key, ...], ...] = ()

    def __init__(self, layer: Any, names: list[str], types: list[Any], call: Callable[..., Any] | None) -> None:
        torch: Any = import_module("torch")
        self._class, self._types = cast("type[Any]", type(layer)), types
        self._first_buffer = len(list(layer.parameters()))
        self._names = names if call is None else [f"layer.{name}" for name in names]
        self._others = _ties(layer, "" if call is None else "layer.")
        with torch.no_grad():
            self._hulls = tuple([_hull(torch, layer, mode, call) for mode in (False, True)])
        self._lock = RLock()  # a hull holds the tensors of one call at a time

    @property
    def arrays(self) -> type[Any]:
        return import_module("torch").Tensor

    def in_mode(self, training: bool) -> Any:
        return partial(self._apply, self._hulls[training], [] if training else None)

    def _apply(
        self, hull: Any, drawn_from: list[Any] | None, arrays: Sequence[Any], args: Any, kwargs: Any
    ) -> tuple[Any, Sequence[Any]]:
        torch: Any = import_module("torch")
        tensors: dict[str, Any] = {}
        kept: list[tuple[int, Any]] = []
        for index, (name, x, dtype) in enumerate(zip(self._names, arrays, self._types, strict=True)):
            tensors[name] = x if dtype.is_floating_point else x.to(dtype)
            if index >= self._first_buffer:  # the call may change it in place, so it gets a copy
                tensors[name] = own = tensors[name].clone() if tensors[name] is x else tensors[name]
                kept.append((index, own))
        tensors |= {other: tensors[name] for other, name in self._others.items()}
        versions = _versions_of([own for _, own in kept])
        with self._lock, _same_draws(torch, drawn_from, arrays):
            result = torch.func.functional_call(hull, tensors, args, kwargs, tie_weights=False)
        after = list(arrays)
        for (index, own), before, now in zip(kept, versions, _versions_of([own for _, own in kept]), strict=True):
            new = tensors[self._names[index]]
            unseen = drawn_from is not None and self._names[index].endswith(_UNSEEN)
            if new is not own or before is None or now != before or unseen:
                after[index] = new.detach()
        return result, after

    def __deepcopy__(self, memo: dict[int, Any]) -> _Form:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, ({name: value for name, value in vars(self).items() if name != "_lock"},)

    def __repr__(self) -> str:
        return f"torch {self._class.__name__}"


def _restored(state: dict[str, Any]) -> _Form:
    form = object.__new__(_Form)
    vars(form).update(state, _lock=RLock())
    return form


def _ties(layer: Any, prefix: str) -> dict[str, str]:
    """Further names of tensors that have several -> the first name of each."""
    first: dict[int, str] = {}
    every = [*layer.named_parameters(remove_duplicate=False), *layer.named_buffers(remove_duplicate=False)]
    pairs = [(f"{prefix}{name}", first.setdefault(id(x), f"{prefix}{name}")) for name, x in every]
    return {other: name for other, name in pairs if other != name}


def _hull(torch: Any, layer: Any, training: bool, call: Callable[..., Any] | None) -> Any:
    twin = copy.deepcopy(layer).to("meta").train(training)
    if call is None:
        return twin
    around = torch.nn.Module()
    around.layer, around.forward = twin, partial(call, twin)
    return around


def _versions_of(tensors: list[Any]) -> Sequence[int | None]:
    """How often each was written to; None where PyTorch does not count."""
    return import_module("phlox.backend.torch.compat").versions_of(tensors) or [None] * len(tensors)


def _same_draws(torch: Any, drawn_from: list[Any] | None, arrays: Sequence[Any]) -> Any:
    """A scope in which a repeated call, for a second derivative, draws the same random numbers as the first."""
    if drawn_from is None:
        return nullcontext()
    devices = sorted({x.device.index for x in arrays if x.is_cuda})
    states = [torch.get_rng_state(), *[torch.cuda.get_rng_state(device) for device in devices]]
    if not drawn_from:
        drawn_from[:] = states
        return nullcontext()
    return _again(torch, drawn_from, devices)


@contextmanager
def _again(torch: Any, states: Sequence[Any], devices: Sequence[int]) -> Generator[None]:
    with torch.random.fork_rng(devices):
        torch.set_rng_state(states[0])
        for device, state in zip(devices, states[1:], strict=True):
            torch.cuda.set_rng_state(state, device)
        yield

"""`eval_shape`: the shapes and kinds that a function would return, without computing it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MethodType
from typing import Any, cast

import numpy as np

from phlox import random
from phlox.backend import Backend, Device, DeviceLike, Float, Kind, as_device
from phlox.backend.contract.backend import engine_of
from phlox.backend.kind import KINDS
from phlox.backend.levels import resumed
from phlox.errors import BackendError, CompileError, KindError, ShapeError, UnsupportedError
from phlox.host.signal_guard import scope
from phlox.module import Module, Param
from phlox.module.foreign_leaf import ForeignLeaf
from phlox.optim import Optimizer
from phlox.optim.optimizer import tracing
from phlox.tensor import Tensor
from phlox.tensor.creation import sizes_of
from phlox.tensor.dispatch import ops_of
from phlox.transform.tree import AnyTensor, map_parts

_RESULT = "eval_shape, result"


@dataclass(frozen=True, slots=True, init=False)
class TensorSpec:
    """The shape, kind and device of a tensor, without values; for `phlox.eval_shape`, summaries and exports.

    A name in place of a size is an open axis: the exported model gets its size from the inputs. Axes of the same name
    have the same size.

    >>> import phlox as px
    >>> px.TensorSpec((2, 3)).size
    6
    >>> px.TensorSpec(("batch", 1, 8, 8)).open_axes
    {0: 'batch'}
    """

    shape: tuple[int, ...]
    """The size of each axis, or the name of an open axis."""
    kind: type[Kind]
    device: Device

    def __init__(self, shape: Any, kind: type[Kind] = Float, device: DeviceLike | None = None) -> None:
        if kind not in KINDS.values():
            raise KindError(f"TensorSpec: the kind is phlox.Float, phlox.Int or phlox.Bool, got {kind!r}")
        object.__setattr__(self, "shape", _sizes(shape))
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "device", as_device(device))

    @property
    def backend(self) -> Backend:
        """The backend of the device."""
        return self.device.backend

    @property
    def dtype(self) -> Any:
        """The engine's own element type."""
        return engine_of(self.backend).element(self.kind)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def open_axes(self) -> dict[int, str]:
        """The open axes, with their names."""
        return {axis: name for axis, name in enumerate(cast("tuple[Any, ...]", self.shape)) if isinstance(name, str)}

    def with_sizes(self, sizes: Mapping[str, int]) -> TensorSpec:
        """The same spec with sizes in place of names; other names stay."""
        if not self.open_axes:
            return self
        return TensorSpec([sizes.get(cast(Any, one), one) for one in self.shape], self.kind, self.device)

    @property
    def size(self) -> int:
        """The number of elements; raises `ShapeError` if an axis is open."""
        check_closed("TensorSpec.size", self)
        total = 1
        for size in self.shape:
            total *= size
        return total

    def __repr__(self) -> str:
        return f"TensorSpec({self.shape}, {self.kind.__name__}, {self.device})"


def _sizes(shape: Any) -> tuple[int, ...]:
    entries = list(cast("list[Any]", shape)) if isinstance(shape, (tuple, list)) else []
    names = [entry for entry in entries if isinstance(entry, str)]
    for name in names:
        if not name.isidentifier():
            raise ShapeError(f"TensorSpec: an open axis is named like a variable (batch, time), got {name!r}")
    if not names:
        return sizes_of("TensorSpec", shape)
    sizes = iter(sizes_of("TensorSpec", [entry for entry in entries if not isinstance(entry, str)]))
    return tuple([cast(Any, entry) if isinstance(entry, str) else next(sizes) for entry in entries])


def check_closed(name: str, spec: TensorSpec) -> None:
    """Raise `ShapeError` if an axis is open."""
    if spec.open_axes:
        raise ShapeError(
            f"{name}: the axes {', '.join(spec.open_axes.values())} of {spec!r} are open, but {name} needs sizes; "
            "spec.with_sizes({name: size}) gives them; names are for phlox.export"
        )


def eval_shape(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return the result of `fn(*args, **kwargs)` with a `TensorSpec` in place of each tensor; nothing is computed.

    Arguments are tensors, `TensorSpec`s, modules, optimizers and any other values, in lists, tuples and dicts. Deferred
    parameters stay deferred. A module in the result has parameters with shapes and without values. The function may
    compute gradients, step optimizers and draw random numbers: the random stream, and modules and optimizers among the
    arguments, do not change.

    Raises `UnsupportedError` on a backend that cannot trace (NumPy), and `CompileError` if the function reads the value
    of a tensor.

    >>> import phlox as px
    >>> from phlox import nn
    >>> from phlox.backend import Jax
    >>> model = nn.Linear(1000, 10**6, device=Jax())
    >>> px.eval_shape(model, px.TensorSpec((64, 1000), device=Jax())).shape
    (64, 1000000)
    """
    if isinstance(fn, MethodType):
        fn, args = fn.__func__, (fn.__self__, *args)
    call = (fn, args, kwargs)
    specs: list[TensorSpec] = []
    _map(specs.append, call, "")
    for spec in specs:
        check_closed("eval_shape", spec)
    engines = {engine_of(spec.backend): spec for spec in specs}
    engine = next(iter(engines), engine_of(as_device(None).backend))
    _check(engine, engines)
    token = object()
    results: list[Any] = []

    def body(donated: Any, kept: Any) -> list[Any]:
        words, *arrays = kept
        remaining = iter(arrays)
        with scope(tracing, token), random.stream(random.TracedStream(words)), resumed(()):
            function, values, keywords = _map(lambda spec: next(remaining), call, "", token)
            results.append(_map(lambda spec: spec, function(*values, **keywords), _RESULT))
        return []

    blanks = [engine.abstract_array(spec.shape, spec.kind, spec.device.on(engine)) for spec in specs]
    try:
        engine.trace_only(body, [], [np.zeros(3, np.uint32), *blanks])
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, Exception) and engine.is_trace_error(cause):
                raise CompileError(
                    "eval_shape: the function reads the value of a tensor that has none (by item(), float(), "
                    "bool() or numpy()); use phlox.where, or compute it outside"
                ) from error
            cause = cause.__cause__
        raise
    return results[-1]


def _check(engine: Backend, engines: dict[Backend, TensorSpec]) -> None:
    for other in engines:
        if other is not engine:
            raise BackendError(
                f"eval_shape: the arguments are on different backends, {engine!r} and {other!r}; move one of them with "
                ".to_device(...)"
            )
    if not engine.compiles:
        raise UnsupportedError(
            f"eval_shape: {engine!r} computes at once, and has no shapes without values; use Jax or Torch: "
            "model.to_device('jax') leaves deferred parameters deferred, and TensorSpec(shape, device='jax') is a "
            "tensor without values there"
        )


def _map(leaf: Callable[[TensorSpec], Any], value: Any, path: str, token: object | None = None) -> Any:
    """A structure with `leaf(spec)` in place of each tensor.

    With the `token` of a program, `leaf` returns an array, and the structure gets a tensor around it.
    """
    if isinstance(value, TensorSpec):
        array = leaf(value)
        return array if token is None else Tensor.from_primitive(array, value.backend, value.kind)
    if isinstance(value, Tensor):
        tensor = cast("AnyTensor", value)
        result = _map(leaf, TensorSpec(tensor.shape, tensor.kind, tensor.device), path, token)
        return result.require_grad() if token is not None and tensor.is_require_grad() else result
    if isinstance(value, Module):
        structure = value.structure()
        return structure.build([_param(leaf, name, param, token) for name, param in structure.named()])
    if isinstance(value, Optimizer):
        return value if path.startswith(_RESULT) else _twin(value, token)
    return map_parts(lambda part, path: _map(leaf, part, path, token), value, path)


def _param(leaf: Callable[[TensorSpec], Any], name: str, param: Param, token: object | None) -> Param:
    array = leaf(TensorSpec(param.shape, param.kind, param.device))
    ops = ops_of(param.backend, param.kind)
    marks = param.trained, param.trainable, param.id, param.full_precision
    if token is not None:
        return Param.revive(ops, array, *marks)
    return Param.without_array(ForeignLeaf(array, ops, name), *marks)


def _twin(optimizer: Optimizer, token: object | None) -> Optimizer:
    """An optimizer with the same states, for use inside the program."""
    if token is None:
        optimizer.states  # noqa: B018  (unpacked now, before tracing)
        return optimizer
    twin = copy.copy(optimizer)
    twin._states, twin._home = dict(optimizer._states), token  # pyright: ignore[reportPrivateUsage]
    return twin

"""`check_gradients`: compare autodiff with finite differences."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np

from phlox.autodiff import Autodiff
from phlox.backend import Device, Float
from phlox.backend.numpy import NumPy
from phlox.errors import AutodiffError
from phlox.module import Module
from phlox.random import stream
from phlox.tensor import Tensor, tensor, zeros
from phlox.testing.close import central_difference, compare
from phlox.testing.tolerances import Tolerance

_Visit: TypeAlias = "Callable[[str, Tensor[Any, Any, Any]], Tensor[Any, Any, Any]]"

_TOLERANCE = Tolerance(1e-6, 1e-7)


def check_gradients(
    fn: Callable[..., Tensor[Any, Any, Any]],
    *inputs: Any,
    order: int = 1,
    step: float = 1e-6,
    tolerance: Tolerance = _TOLERANCE,
) -> None:
    """Raise `AssertionError` unless the gradients of `fn(*inputs)` match central finite differences.

    Inputs are Float tensors, modules (whose trained parameters are differentiated), and lists, tuples and dicts of
    these. Other inputs are passed unchanged. Everything is computed in float64: on the tensors' own engine if they are
    float64 already, otherwise on NumPy. `fn` returns one Float tensor of any shape; its random draws are the same in
    every call. `order=2` also compares second derivatives with finite differences of the gradients. The message names
    the input by its path, and its worst element.

    >>> import phlox as px
    >>> check_gradients(lambda x, y: (x * y).tanh(), px.tensor([0.5, -1.0]), px.tensor([2.0, 3.0]), order=2)
    >>> check_gradients(lambda x: x.detach() * x, px.tensor([0.5, -1.0]))
    Traceback (most recent call last):
    AssertionError: gradient towards inputs[0]: 2 of 2 elements are off; worst at (1,): ...
    """
    if order not in (1, 2):
        raise AutodiffError(f"check_gradients: order must be 1 or 2, got {order!r}")
    prepared = [_mapped(value, f"inputs[{i}]", _to(_device(inputs)), _same) for i, value in enumerate(inputs)]
    if not _call(fn, [_mapped(value, "", _STAY, _tracked) for value in prepared]).is_require_grad():
        raise AutodiffError("check_gradients: the result does not depend on any input through autodiff")
    _compare(fn, prepared, step, tolerance, "gradient")
    if order == 2:
        _compare(_Directional(fn), prepared, step, tolerance, "second derivative")


def _compare(
    fn: Callable[..., Tensor[Any, Any, Any]], inputs: list[Any], step: float, tolerance: Tolerance, name: str
) -> None:
    """Compare autodiff with finite differences."""

    def changed(visit: _Visit) -> list[Any]:
        return [_mapped(value, f"inputs[{i}]", _STAY, visit) for i, value in enumerate(inputs)]

    tracked = changed(_tracked)
    leaves = [leaf for i, value in enumerate(tracked) for leaf in _leaves(value, f"inputs[{i}]")]
    y = _call(fn, tracked)
    weights = _weights(y.shape)
    gradients = y.backward(tensor(weights, device=_below(y.device))) if y.is_require_grad() else None
    for path, leaf in leaves:
        values = leaf.numpy().astype(np.float64)
        gradient = None if gradients is None else leaf.grad(gradients)
        got = np.zeros_like(values) if gradient is None else gradient.numpy()
        expected = np.empty_like(values)

        def total(near: np.ndarray[Any, Any], path: str = path) -> float:
            return float((_call(fn, changed(_setter(path, near))).numpy() * weights).sum())

        for index in np.ndindex(*values.shape):
            expected[index] = central_difference(total, values, index, step)
        compare(got, expected, tolerance, f"{name} towards {path}")


class _Directional:
    """The directional derivative of a function, with its own tape on top of the inputs' backend."""

    def __init__(self, fn: Callable[..., Tensor[Any, Any, Any]]) -> None:
        self.fn = fn

    def __call__(self, *inputs: Any) -> Tensor[Any, Any, Any]:
        lifted = [_mapped(v, f"inputs[{i}]", _LIFT, _tracked) for i, v in enumerate(inputs)]
        y = self.fn(*lifted)
        below = _below(y.device)
        total = zeros((), device=below)
        if not y.is_require_grad():
            return total
        gradients = y.backward(tensor(_weights(y.shape), device=below))
        for i, value in enumerate(lifted):
            for _, leaf in _leaves(value, f"inputs[{i}]"):
                gradient = leaf.grad(gradients)
                if gradient is not None:
                    total = total + (gradient * tensor(_weights(gradient.shape), device=below)).sum()
        return total


def _weights(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Weights of the elements of a result; any nonzero values work."""
    return np.cos(np.arange(math.prod(shape), dtype=np.float64)).reshape(shape) + 0.5


def _call(fn: Callable[..., Tensor[Any, Any, Any]], inputs: list[Any]) -> Tensor[Any, Any, Any]:
    with stream(0):
        return fn(*inputs)


def _setter(path: str, values: np.ndarray[Any, Any]) -> _Visit:
    return lambda other, x: tensor(values, device=x.device) if other == path else x


def _below(device: Device) -> Device:
    """The same device on the inner backend of a decorator."""
    inner: Any = device.backend.inner
    return device.on(inner)


def _device(inputs: tuple[Any, ...]) -> Device:
    """The device to compute on: the device of the first float64 tensor, otherwise NumPy."""
    candidates = (leaf.device for _, leaf in _leaves(inputs, ""))
    device = next((d for d in candidates if d.backend.float_element == "f64"), NumPy(float="f64").device())
    return device if device.backend.differentiates else device.on(Autodiff(device.backend))


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Tensor[Any, Any, Any]]]:
    """The leaves to differentiate: Float tensors and trained parameters, with their paths."""
    if isinstance(value, Tensor):
        leaf = cast("Tensor[Any, Any, Any]", value)
        if leaf.kind is Float:
            yield path, leaf
    elif isinstance(value, Module):
        yield from ((f"{path}.{name}", param.val()) for name, param in value.named_params() if param.trained)
    elif isinstance(value, dict):
        for key, part in cast("dict[Any, Any]", value).items():
            yield from _leaves(part, f"{path}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for i, part in enumerate(cast("list[Any]", value)):
            yield from _leaves(part, f"{path}[{i}]")


class _Move(NamedTuple):
    """How tensors and modules are moved before their leaves are visited."""

    tensor: Callable[[Tensor[Any, Any, Any]], Tensor[Any, Any, Any]]
    module: Callable[[Module], Module]


def _to(device: Device) -> _Move:
    def of_tensor(x: Tensor[Any, Any, Any]) -> Tensor[Any, Any, Any]:
        return tensor(x.numpy(), device=device, kind=x.kind)

    def of_module(module: Module) -> Module:
        return module.to_device(device).init()

    return _Move(of_tensor, of_module)


def _unchanged(x: Any) -> Any:
    return x


def _lifted(module: Module) -> Module:
    return module.map(lambda name, param: param.holding(Tensor.from_inner(param.val())))


_STAY, _LIFT = _Move(_unchanged, _unchanged), _Move(Tensor.from_inner, _lifted)
"""No move; and a move onto one more tape, as constants, which keeps the history below."""


def _same(path: str, x: Tensor[Any, Any, Any]) -> Tensor[Any, Any, Any]:
    return x


def _tracked(path: str, x: Tensor[Any, Any, Any]) -> Tensor[Any, Any, Any]:
    return x.require_grad()


def _mapped(value: Any, path: str, move: _Move, visit: _Visit) -> Any:
    """The same structure after a move, with `visit(path, tensor)` in place of each tensor to differentiate."""
    if isinstance(value, Tensor):
        x = move.tensor(cast("Tensor[Any, Any, Any]", value))
        return visit(path, x) if x.kind is Float else x
    if isinstance(value, Module):
        return move.module(value).map(
            # `Param.map` would detach values from every tape, including the tape of the second order.
            lambda name, param: param.holding(visit(f"{path}.{name}", param.val())) if param.trained else param
        )
    if isinstance(value, dict):
        entries = cast("dict[Any, Any]", value)
        return {key: _mapped(part, f"{path}[{key!r}]", move, visit) for key, part in entries.items()}
    if isinstance(value, (list, tuple)):
        items = cast("list[Any]", value)
        mapped = [_mapped(part, f"{path}[{i}]", move, visit) for i, part in enumerate(items)]
        return mapped if isinstance(value, list) else tuple(mapped)
    return value

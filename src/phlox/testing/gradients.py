"""`check_gradients`: the tape against finite differences."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias, cast

import numpy as np

from phlox.autodiff import Autodiff
from phlox.backend import Device, Float
from phlox.backend.numpy import NumPy
from phlox.errors import AutodiffError
from phlox.module import Module
from phlox.random import stream
from phlox.tensor import Tensor, tensor
from phlox.testing.close import compare
from phlox.testing.tolerances import Tolerance

_Visit: TypeAlias = "Callable[[str, Tensor[Any, Any, Any]], Tensor[Any, Any, Any]]"

_TOLERANCE = Tolerance(1e-6, 1e-7)


def check_gradients(
    fn: Callable[..., Tensor[Any, Any, Any]],
    *inputs: Any,
    step: float = 1e-6,
    tolerance: Tolerance = _TOLERANCE,
) -> None:
    """Raise `AssertionError` unless `fn(*inputs)` has the gradients that central finite differences say it has.

    Inputs are Float tensors to differentiate, modules (their trained parameters are), lists, tuples and dicts of these,
    and anything else, which is passed as it is. All is computed in float64: on the tensors' own engine if they are so
    already, on NumPy otherwise. `fn` returns one Float tensor of any shape; its random draws are the same each time it
    is called. The message names the input by its path, and its worst element.

    >>> import phlox as px
    >>> check_gradients(lambda x, y: (x * y).tanh(), px.tensor([0.5, -1.0]), px.tensor([2.0, 3.0]))
    >>> check_gradients(lambda x: x.detach() * x, px.tensor([0.5, -1.0]))
    Traceback (most recent call last):
    AssertionError: gradient towards inputs[0]: 2 of 2 elements are off; worst at (1,): ...
    """
    device = _device(inputs)
    tracked = [_mapped(v, f"inputs[{i}]", device, lambda path, x: x.require_grad()) for i, v in enumerate(inputs)]
    leaves = [leaf for i, value in enumerate(tracked) for leaf in _leaves(value, f"inputs[{i}]")]
    y = _call(fn, tracked)
    weights = np.cos(np.arange(y.size, dtype=np.float64)).reshape(y.shape) + 0.5  # any will do, if none is zero
    if not y.is_require_grad():
        raise AutodiffError("check_gradients: the result does not depend on any input by way of the tape")
    gradients = y.backward(tensor(weights, device=Device(_inner(device), device.name)))

    for path, leaf in leaves:
        values = leaf.numpy().astype(np.float64)
        found = leaf.grad(gradients)
        got = np.zeros_like(values) if found is None else found.numpy()
        wanted = np.empty_like(values)
        for place in np.ndindex(*values.shape):
            h = step * max(1.0, abs(float(values[place])))
            sides: list[float] = []
            for moved in (values[place] + h, values[place] - h):
                near = values.copy()
                near[place] = moved
                shifted = [_mapped(v, f"inputs[{i}]", device, _setter(path, near)) for i, v in enumerate(inputs)]
                sides.append(float((_call(fn, shifted).numpy() * weights).sum()))
            wanted[place] = (sides[0] - sides[1]) / (2.0 * h)
        compare(got, wanted, tolerance, f"gradient towards {path}")


def _call(fn: Callable[..., Tensor[Any, Any, Any]], inputs: list[Any]) -> Tensor[Any, Any, Any]:
    with stream(0):
        return fn(*inputs)


def _setter(path: str, values: np.ndarray[Any, Any]) -> _Visit:
    return lambda other, x: tensor(values, device=x.device) if other == path else x


def _inner(device: Device) -> Any:
    return device.backend.inner


def _device(inputs: tuple[Any, ...]) -> Device:
    """Where to compute: on the first tensor's engine that has float64 floats, else on NumPy."""
    found = (leaf.device for _, leaf in _leaves(inputs, ""))
    device = next((d for d in found if d.backend.float_element == "f64"), NumPy(float="f64").device())
    return device if device.backend.differentiates else Device(Autodiff(device.backend), device.name)


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Tensor[Any, Any, Any]]]:
    """What there is to differentiate: Float tensors and trained parameters, with their paths."""
    if isinstance(value, Tensor):
        leaf = cast("Tensor[Any, Any, Any]", value)
        if leaf.kind is Float:
            yield path, leaf
    elif isinstance(value, Module):
        yield from ((f"{path}.{name}", param.val()) for name, param in value.named_params() if param.trained)
    elif isinstance(value, dict):
        for key, one in cast("dict[Any, Any]", value).items():
            yield from _leaves(one, f"{path}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for i, one in enumerate(cast("list[Any]", value)):
            yield from _leaves(one, f"{path}[{i}]")


def _mapped(value: Any, path: str, device: Device, visit: _Visit) -> Any:
    """The same structure on `device` with `visit(path, tensor)` in place of each tensor to differentiate."""
    if isinstance(value, Tensor):
        x = cast("Tensor[Any, Any, Any]", value)
        moved = tensor(x.numpy(), device=device)
        return visit(path, moved) if x.kind is Float else moved
    if isinstance(value, Module):
        module = value.to_device(device).init()
        return module.map(
            lambda name, param: param.map(lambda x: visit(f"{path}.{name}", x)) if param.trained else param
        )
    if isinstance(value, dict):
        entries = cast("dict[Any, Any]", value)
        return {key: _mapped(one, f"{path}[{key!r}]", device, visit) for key, one in entries.items()}
    if isinstance(value, (list, tuple)):
        items = cast("list[Any]", value)
        mapped = [_mapped(one, f"{path}[{i}]", device, visit) for i, one in enumerate(items)]
        return mapped if isinstance(value, list) else tuple(mapped)
    return value

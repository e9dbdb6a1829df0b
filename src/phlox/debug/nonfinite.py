"""`find_nan`: the first NaN or infinity of a computation, with its layer, operation and line."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, cast

from phlox.debug.operands import range_of
from phlox.debug.origins import NonFinite, Search, bad_input, bad_parameter
from phlox.debug.running import LossOf, inputs_on, loss_of, twin_of, undisturbed, with_tape
from phlox.errors import KindError
from phlox.module import GradientsParams, Module
from phlox.module.calls import with_function_layers
from phlox.optim import Optimizer
from phlox.tensor import Tensor
from phlox.transform.compile.api import Compiled
from phlox.transform.tree import AnyTensor, leaves_of, map_leaves, tensors_of


def find_nan(
    target: Module | Callable[..., Any],
    *args: Any,
    loss: LossOf | None = None,
    backward: bool = True,
    **kwargs: Any,
) -> NonFinite | None:
    """Find the first NaN or infinity of a model or a function on these arguments; None if all values are finite.

    The target runs eagerly, on its own engine, with the random numbers that a call would draw now. Nothing changes:
    neither parameters, nor optimizers, nor the random stream. The value is traced back to the operation that made it:
    `found.path` is the layer, `found.operation` the operation, `found.place` the line, `found.inputs` the ranges of its
    operands; `print(found)` shows all. An infinity that reaches neither a result nor a gradient (a mask of -inf) is not
    reported.

    Args:
        target: a model; or a function, compiled or not, such as a training step: the models and optimizers among its
            arguments are found. A compiled function runs eagerly, so a value that is not finite only in the compiled
            program is not found.
        args, kwargs: the arguments of the target; NumPy arrays become tensors.
        loss: a function from the outputs of a model to a scalar, which is differentiated; by default the sum of the
            outputs with fixed weights.
        backward: whether to differentiate a model, too. A function is only called.

    >>> import phlox as px
    >>> from phlox import nn
    >>> model = nn.Sequential([nn.Linear(2, 3, initializer=nn.Ones()), lambda x: x.log(), nn.Linear(3, 1)]).init(0)
    >>> found = px.debug.find_nan(model, -px.ones((1, 2)))
    >>> found.path, found.operation, found.what
    ('layers.1', 'log', 'NaN')
    """
    if isinstance(target, Module):
        return _in_model(target, args, kwargs, loss, backward)
    if not callable(target):
        raise KindError(f"find_nan: give a model or a function; got {type(target).__name__}")
    if loss is not None:
        raise KindError("find_nan: loss= is for a model; differentiate inside of a function (px.value_and_grad)")
    return _in_function(target, args, kwargs)


def _in_model(
    model: Module, args: tuple[Any, ...], kwargs: dict[str, Any], loss: LossOf | None, backward: bool
) -> NonFinite | None:
    view = with_function_layers(with_tape(model) if backward else model)
    args, kwargs = inputs_on(view, (args, kwargs))

    def run() -> tuple[Any, AnyTensor | None]:
        outputs: Any = view(*args, **kwargs)
        return outputs, loss_of(outputs, loss) if backward or loss is not None else None

    with undisturbed():
        named = [*leaves_of(args, Tensor, "args"), *leaves_of(kwargs, Tensor, "kwargs")]
        report = bad_parameter({"": view}) or bad_input(named)
        return report or search({"": view}, run, differentiate=backward)


def search(
    models: dict[str, Module], run: Callable[[], tuple[Any, AnyTensor | None]], *, differentiate: bool
) -> NonFinite | None:
    """The first value that is not finite in `run() -> (results, loss)`, or in the backward pass of that loss.

    Call it within `undisturbed`, after checking the parameters.
    """
    watch = Search(models, run.__code__)
    with watch.watching():
        try:
            results, loss = run()
        except Exception:
            # Some code checked the values, and raised.
            if watch.first_forward is not None:
                return watch.first_forward
            raise
        report = watch.origin_of([*_tensors(results), *([] if loss is None else [loss])])
        if report is not None or loss is None or not differentiate:
            return report
        gradients = loss.backward()
    for name, model in models.items():
        of_params = GradientsParams.from_grads(gradients, model)
        for path, param in model.named_params():
            gradient = of_params.get(param.id)
            span = None if gradient is None else range_of(gradient.backend, gradient.primitive)
            if gradient is not None and span is not None and not span.is_finite:
                origin = watch.known_origin(gradient.primitive) or watch.first_backward
                return origin or NonFinite("backward", path, "parameter", None, span, model=name)
    return None


def _tensors(value: Any) -> list[AnyTensor]:
    """All tensors in what a function returns."""
    return tensors_of(map_leaves(_tensors_of_gradients, value, GradientsParams))


def _tensors_of_gradients(gradients: GradientsParams) -> list[AnyTensor]:
    return list(gradients._tensors.values())  # pyright: ignore[reportPrivateUsage]


def _in_function(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NonFinite | None:
    bound: Any = getattr(function, "__self__", None)
    owner: tuple[Any, ...] = _bound_of(function) if isinstance(function, Compiled) else (bound,)
    models: dict[str, Module] = {}

    def named(name: str, value: Any) -> Any:
        def layered(leaf: Any) -> Any:
            if not isinstance(leaf, Module):
                return twin_of(leaf, trace) if isinstance(leaf, Optimizer) else leaf
            twin = with_function_layers(leaf)
            models[name if name not in models else f"{name}_{len(models)}"] = twin
            return twin

        return map_leaves(layered, value, (Module, Optimizer))

    with undisturbed() as trace:
        names = _names_of(cast("Any", function), len(args))
        positional = [named(name, value) for name, value in zip(names, args, strict=True)]
        by_name = {name: named(name, value) for name, value in kwargs.items()}
        if isinstance(owner[0] if owner else None, Module):
            models["self"] = owner[0]
        inputs = [
            (f"{name}{path}", x)
            for name, value in [*zip(names, positional, strict=True), *by_name.items()]
            for path, x in leaves_of(value, Tensor)
        ]
        report = bad_parameter(models) or bad_input(inputs)
        if report is not None:
            return report

        def run() -> tuple[Any, AnyTensor | None]:
            return cast("Any", function)(*positional, **by_name), None

        return search(models, run, differentiate=False)


def _bound_of(function: Any) -> tuple[Any, ...]:
    return function._bound


def _names_of(function: Callable[..., Any], count: int) -> list[str]:
    """The names of the positional arguments of a function."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return [*names[:count], *(f"argument {index}" for index in range(len(names), count))]

"""Checks of a learner's arguments: models, optimizers, schedules and scalars."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from phlox.backend import Device
from phlox.backend.contract.backend import engine_of
from phlox.config import Config
from phlox.errors import OptimizerError, RunError
from phlox.module import Module, Param
from phlox.module.calls import named_modules
from phlox.nn.batch_norm import BatchNorm
from phlox.optim import ConstantLr, Lbfgs, LrSchedule, Optimizer, OptimizerAdaptor
from phlox.other_names import described, equivalent
from phlox.tensor import Tensor
from phlox.train.observers.callback import Callback
from phlox.train.state import ONLY
from phlox.train.step.batch import without_tape

if TYPE_CHECKING:
    from phlox.distributed import Mesh
    from phlox.train.step.data_parallel import DataParallel

KINDS = "a config such as optim.AdamWConfig(), or an optimizer"


def named_models(model: Any) -> dict[str, Module]:
    """The models by name; a single model has the name `ONLY`."""
    if isinstance(model, Module):
        return {ONLY: model}
    if not isinstance(model, Mapping) or not model:
        raise RunError(
            f"model: give a module, or a dict of modules by name, got {described(cast('object', model))}"
            f"{_module_from(model)}"
        )
    named = dict(cast("Mapping[Any, Any]", model))
    for name, module in named.items():
        if not isinstance(module, Module):
            raise RunError(f"model: {name!r} must be a module, got {described(module)}{_module_from(module)}")
        if not isinstance(name, str) or not name or "." in name:
            raise RunError(f"model: {name!r} is no name of a model: a text, not empty, without a dot")
    return named


def _module_from(value: Any) -> str:
    """What to write to get a module from a value that is none."""
    if inspect.isclass(value) and issubclass(value, Module):
        return f"; create it: {value.__name__}(...)"
    if (package := type(cast("object", value)).__module__.partition(".")[0]) in ("torch", "flax", "equinox"):
        return f"; phlox.interop.{'pytorch' if package == 'torch' else package}.wrap(...) makes it a module"
    return ""


def device_of(model: Any) -> Device:
    """The device of a model's parameters; of full-precision parameters only if there are no others."""
    params = model.params()
    params = [param for param in params if not param.full_precision] or params
    if not params:
        raise RunError(f"model: this {type(model).__name__} has no parameters, so there is nothing to train")
    return params[0].device


def engine_behind(model: Any) -> Any:
    """The engine's backend, inside all decorators."""
    return engine_of(device_of(model).backend)


def team_of(mesh: Mesh) -> DataParallel:
    """The processes and devices of a mesh."""
    from phlox.train.step.data_parallel import DataParallel  # here, because most trainings do not need it

    return DataParallel(mesh)


def copied(model: Any, precision: str | None, team: DataParallel | None = None, *, narrows: bool = False) -> Any:
    """A copy of the model that a compiled step may overwrite, on the mesh if there is one, with the same ids.

    The copy has this `precision`. If a step narrows to half precision by itself (`narrows`), the copy has full
    precision, or keeps its own.
    """
    model = model if team is None else team.on_mesh(model)
    device = without_tape(device_of(model))
    twin: Module = model.map(_with_own_memory)
    if precision is None:
        return twin
    engine: Any = device.backend
    try:
        backend = engine.with_float(precision)
    except Exception as error:
        raise RunError(
            f"precision: {engine!r} has no {precision!r}: {error}{equivalent(precision, 'precision')}"
        ) from None
    if narrows and backend is not engine:
        backend = backend.full_precision()
    if team is not None:  # each parameter keeps its sharding
        return twin.map(lambda path, param: _at_precision(param, backend))
    return twin.to_device(device.on(backend))


def in_training(model: Module) -> Module:
    """The view of a model in training mode, except for layers that must keep their statistics.

    Layers with `training = False` stay so, unless the whole model is in inference mode. A layer with running statistics
    is put into inference mode if all trainable parameters in it, or in a module that contains it, are frozen.
    """
    view, is_mixed = model.train(), model.training is not False
    frozen = [path for path, layer in named_modules(model) if _is_frozen(layer)]
    for (path, own_layer), (_, layer) in zip(named_modules(model), named_modules(view), strict=True):
        is_below = any(not above or path == above or path.startswith(f"{above}.") for above in frozen)
        if (is_mixed and own_layer.training is False) or (is_below and _has_statistics(layer)):
            layer.training = False
    return view


def _is_frozen(module: Module) -> bool:
    trainable = [param for param in module.params() if param.trainable]
    return bool(trainable) and not any(param.trained for param in trainable)


def _has_statistics(module: Module) -> bool:
    return any(isinstance(value, Param) and not value.trainable for value in vars(module).values())


def remark_on_statistics(models: Mapping[str, Module], accumulate: int, shares: bool) -> str | None:
    """A warning about layers that normalize over only a part of the rows of a step; None if there are none.

    Args:
        models: the trained models, in the modes of the training.
        accumulate: the number of batches of a step.
        shares: does each process compute statistics from its own rows?
    """
    layers: dict[str, bool] = {}
    for name, model in models.items():
        modules = dict(named_modules(model))
        paths = [path for path, module in modules.items() if isinstance(module, BatchNorm)]
        for path, param in model.named_params():  # of layers of other libraries, too
            layer, _, last = path.rpartition(".")
            paths += [layer] * (last == "running_mean" and not param.trainable)
        for path in dict.fromkeys(paths):
            layer = next(modules[above] for above in _and_above(path) if above in modules)
            if layer.training is not False or getattr(layer, "running_mean", path) is None:
                layers[".".join(filter(None, (name, path))) or "model"] = getattr(layer, "synchronized", False)
    if accumulate > 1 and layers:
        return (
            f"{_listed(layers)}: batch norm takes the mean and the variance of each batch, so a step of accumulate="
            f"{accumulate} is not that of one batch of all the rows; take GroupNorm or LayerNorm, a larger batch_size "
            "without accumulate, or freeze the statistics: layer.training = False"
        )
    alone = [path for path, is_synchronized in layers.items() if not is_synchronized]
    if shares and alone:
        return (
            f"{_listed(alone)}: batch norm takes the mean and the variance of the rows of each process, so the step is "
            "not that of one process with all rows; make it BatchNorm(..., synchronized=True), or take GroupNorm or "
            "LayerNorm"
        )
    return None


def _and_above(path: str) -> Iterator[str]:
    """The path, and the paths of the modules that contain it, from the inside out."""
    while path:
        yield path
        path = path.rpartition(".")[0]
    yield ""


def _listed(paths: Iterable[str]) -> str:
    named = [f"`{path}`" for path in paths]
    return ", ".join(named[:3]) + (f" and {len(named) - 3} more" if len(named) > 3 else "")


def _at_precision(param: Param, engine: Any) -> Param:
    """The parameter at the precision of another backend of its engine, with the same sharding."""
    target = engine.full_precision() if param.full_precision else engine

    def cast_to(value: Tensor[Any, Any, Any]) -> Tensor[Any, Any, Any]:
        device = without_tape(value.device)
        plain = Tensor.from_primitive(value.backend.strip(value.primitive), device.backend, value.kind)
        if target.full_precision() is device.backend.full_precision():  # reads no value: some are in other processes
            return plain.from_full_precision(target)
        return plain.to_device(device.on(target))

    return param.map(cast_to) if param.is_initialized else param.to_device(param.device.on(engine))


def _with_own_memory(path: str, param: Param) -> Param:
    return param.map(_duplicate)


def _duplicate(value: Tensor[Any, Any, Any]) -> Tensor[Any, Any, Any]:
    backend = value.backend
    return Tensor.from_primitive(backend.duplicate(backend.strip(value.primitive)), backend, value.kind)


def optimizer_of(value: Any, name: str, *, skips: bool) -> Optimizer:
    """The optimizer of a config, or a copy of an optimizer; if `skips`, it skips steps that are not finite."""
    where = f"optimizer{f' of {name!r}' if name else ''}"
    if inspect.isclass(value) and issubclass(value, Config) and not inspect.isabstract(value):
        value = value()  # the class of a config means its defaults
    if isinstance(value, Config) and callable(getattr(value, "init", None)):
        config: Any = cast("Any", value)
        built = config.init(skip_nonfinite=True) if skips and not isinstance(config.init(), Lbfgs) else config.init()
        if isinstance(built, Optimizer):
            return built
    if not isinstance(value, Optimizer):
        raise RunError(f"{where}: give {KINDS}, got {described(value)}{equivalent(value, 'optimizer')}")
    if skips and isinstance(value, OptimizerAdaptor) and not value.skip_nonfinite:
        raise RunError(f"{where}: with loss_scaling it must skip steps that are not finite: init(skip_nonfinite=True)")
    return value.twin()


def schedule_of(value: Any, name: str) -> LrSchedule[Any]:
    """A constant schedule from a number, or a copy of a schedule."""
    if isinstance(value, LrSchedule):
        return copy.deepcopy(cast("LrSchedule[Any]", value))
    where = f"lr{f' of {name!r}' if name else ''}"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return ConstantLr(float(value))
        except OptimizerError as error:
            raise RunError(f"{where}: {error}") from None
    raise RunError(f"{where}: give a number or a schedule, got {described(value)}")


def whole(name: str, value: Any) -> int:
    """The value, if it is an integer of at least 1; `RunError` for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise RunError(f"{name}: a whole number of 1 or more is needed, got {value!r}")
    return int(cast("int", value))


def check_function(name: str, value: Any) -> None:
    """Raise `RunError` for anything but a function or None: for a class, and for a loss of another library."""
    is_foreign = type(value).__module__.partition(".")[0] in ("torch", "keras", "tensorflow")
    if value is not None and (not callable(value) or isinstance(value, type) or is_foreign):
        raise RunError(f"{name}: a function of tensors is needed, got {described(value)}{equivalent(value, 'loss')}")


def check_callbacks(value: Any) -> list[Callback]:
    """The callbacks as a list; `RunError` for an entry that is no callback."""
    if isinstance(value, Callback):
        raise RunError(f"callbacks: give a list of them, [{value!r}]")
    callbacks: list[Any] = list(value)
    for callback in callbacks:
        if not isinstance(callback, Callback):
            name = getattr(callback, "__name__", type(callback).__name__)
            raise RunError(f"callbacks: give instances of Callback, got {name}")
    return callbacks

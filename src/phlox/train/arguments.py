"""Checks of a learner's arguments: models, optimizers, schedules and scalars."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from phlox.backend import Device
from phlox.backend.contract.backend import engine_of
from phlox.config import Config
from phlox.errors import OptimizerError, RunError
from phlox.module import Module, Param
from phlox.optim import ConstantLr, Lbfgs, LrSchedule, Optimizer, OptimizerAdaptor
from phlox.tensor import Tensor
from phlox.train.steps import ONLY

if TYPE_CHECKING:
    from phlox.distributed import Mesh
    from phlox.train.parallel.team import Team

KINDS = "a config such as optim.AdamWConfig(), or an optimizer"


def named_models(model: Any) -> dict[str, Module]:
    """The models by name; a single model has the name `ONLY`."""
    if isinstance(model, Module):
        return {ONLY: model}
    if not isinstance(model, Mapping) or not model:
        raise RunError(
            f"model: give a module, or a dict of modules by name, got {type(cast('object', model)).__name__}"
        )
    named = dict(cast("Mapping[Any, Any]", model))
    for name, one in named.items():
        if not isinstance(one, Module):
            raise RunError(f"model: {name!r} must be a module, got {type(one).__name__}")
        if not isinstance(name, str) or not name or "." in name:
            raise RunError(f"model: {name!r} is no name of a model: a text, not empty, without a dot")
    return named


def device_of(model: Any) -> Device:
    """The device of a model's parameters; that of full-precision ones only if there are no others."""
    params = model.params()
    params = [param for param in params if not param.full_precision] or params
    if not params:
        raise RunError(f"model: this {type(model).__name__} has no parameters, so that there is nothing to train")
    return params[0].device


def engine_behind(model: Any) -> Any:
    """The engine's backend, inside all decorators."""
    return engine_of(device_of(model).backend)


def without_tape(place: Device) -> Device:
    """The device on its backend inside all tapes."""
    backend = place.backend
    while (lower := backend.without_tape()) is not None:
        backend = lower
    return place.on(backend)


def team_of(mesh: Mesh) -> Team:
    """The processes and devices of a mesh."""
    from phlox.train.parallel.team import Team  # which most trainings do without

    return Team(mesh)


def copied(model: Any, precision: str | None, team: Team | None = None) -> Any:
    """A copy of the model, which a compiled step may overwrite, on the mesh if there is one; it keeps the ids."""
    model = model if team is None else team.taken(model)
    place = without_tape(device_of(model))
    twin: Module = model.map(_with_own_memory)
    if precision is None:
        return twin
    engine: Any = place.backend
    try:
        wanted = type(engine)(float=precision, int=engine.int_element)
    except Exception as error:
        raise RunError(f"precision: {engine!r} has no {precision!r}: {error}") from None
    if team is not None:  # each parameter stays cut as it is
        return twin.map(lambda path, param: _at_precision(param, wanted))
    return twin.to_device(place.on(wanted))


def _at_precision(param: Param, engine: Any) -> Param:
    """The parameter at the precision of another backend of its engine, with the same sharding."""
    target = engine.full_precision() if param.full_precision else engine

    def cast_to(value: Tensor[Any, Any, Any]) -> Tensor[Any, Any, Any]:
        place = without_tape(value.device)
        plain = Tensor.from_primitive(value.backend.strip(value.primitive), place.backend, value.kind)
        if target.full_precision() is place.backend.full_precision():  # looks at no value: not all may be here
            return plain.from_full_precision(target)
        return plain.to_device(place.on(target))

    return param.map(cast_to) if param.is_initialized else param.to_device(param.device.on(engine))


def _with_own_memory(path: str, param: Param) -> Param:
    return param.map(_duplicate)


def _duplicate(value: Tensor[Any, Any, Any]) -> Tensor[Any, Any, Any]:
    backend = value.backend
    return Tensor.from_primitive(backend.duplicate(backend.strip(value.primitive)), backend, value.kind)


def optimizer_of(given: Any, name: str, *, skips: bool) -> Optimizer:
    """The optimizer of a config, or a copy of the given one; if `skips`, it skips steps that are not finite."""
    where = f"optimizer{f' of {name!r}' if name else ''}"
    if isinstance(given, Config) and callable(getattr(given, "init", None)):
        made: Any = cast("Any", given)
        built = made.init(skip_nonfinite=True) if skips and not isinstance(made.init(), Lbfgs) else made.init()
        if isinstance(built, Optimizer):
            return built
    if not isinstance(given, Optimizer):
        raise RunError(f"{where}: give {KINDS}, got {type(given).__name__}")
    if skips and isinstance(given, OptimizerAdaptor) and not given.skip_nonfinite:
        raise RunError(
            f"{where}: with loss_scaling it must leave out steps that are not finite: init(skip_nonfinite=True)"
        )
    return given.twin()


def schedule_of(given: Any, name: str) -> LrSchedule[Any]:
    """The schedule of a number, or a copy of the given one."""
    if isinstance(given, LrSchedule):
        return copy.deepcopy(cast("LrSchedule[Any]", given))
    where = f"lr{f' of {name!r}' if name else ''}"
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        try:
            return ConstantLr(float(given))
        except OptimizerError as error:
            raise RunError(f"{where}: {error}") from None
    raise RunError(f"{where}: give a number or a schedule, got {type(given).__name__}")


def whole(name: str, value: Any) -> int:
    """The value, if it is an integer of at least 1; `RunError` for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise RunError(f"{name}: a whole number of 1 or more is needed, got {value!r}")
    return int(cast("int", value))


def check_function(name: str, value: Any) -> None:
    """Raise `RunError` for anything but a function or None; a class is no function."""
    if value is not None and (not callable(value) or isinstance(value, type)):
        got = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
        raise RunError(f"{name}: a function is needed, got {got}")

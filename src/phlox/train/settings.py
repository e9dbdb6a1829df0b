"""The settings of a training as plain values by name, so that a resumed training can report which have changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, cast

import numpy as np

from phlox.config import BaseConfig
from phlox.optim import ConstantLr, Group, LrSchedule, Optimizer, OptimizerAdaptor
from phlox.optim.simple import SimpleOptimizer
from phlox.train.events import plain

_OPTIONS = ("groups", "grad_clipping", "skip_nonfinite", "master_weights")
"""The options of an `OptimizerAdaptor` that change what it computes."""
_DEEPEST, _LONGEST = 12, 400


def settings_of(parts: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of optimizers, schedules, configs and plain values, by the names of their fields.

    For any other object, the value is the name of its class; for a function, its own name.

    >>> from phlox import optim
    >>> found = settings_of({"optimizer": optim.SgdConfig(momentum=0.9).init(), "lr": optim.ConstantLr(0.1)})
    >>> found["optimizer"], found["optimizer.momentum"], found["lr"]
    ('SgdConfig', 0.9, 0.1)
    """
    return dict(pair for name, part in parts.items() for pair in _flat(part, name, 0))


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """The settings that differ, by name: the former and the present value, as texts.

    >>> differences({"lr": 0.1, "clip": None}, {"lr": 0.1, "clip": "GradientClipping", "clip.limit": 1.0})
    {'clip': ('None', 'GradientClipping(limit=1.0)')}
    """
    changed: dict[str, tuple[str, str]] = {}
    for name in {**before, **now}:
        parts = name.split(".")
        if any(".".join(parts[:end]) in changed for end in range(1, len(parts))):
            continue
        if repr(before.get(name)) != repr(now.get(name)):  # by repr, NaN equals NaN
            changed[name] = _text(before, name), _text(now, name)
    return changed


def _text(settings: Mapping[str, Any], name: str) -> str:
    """A setting with the settings below it, as text."""
    below = [f"{path[len(name) + 1 :]}={_text(settings, path)}" for path in settings if path.rpartition(".")[0] == name]
    return f"{settings[name]}({', '.join(below)})" if below else repr(settings.get(name))


def _flat(value: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
    label, children = _described(value)
    yield path, label
    if depth < _DEEPEST:
        for name, child in children.items():
            yield from _flat(child, f"{path}.{name}", depth + 1)


def _described(original: Any) -> tuple[Any, Mapping[str, Any]]:
    """A plain value that stands for an object, and its parts by name."""
    if isinstance(original, np.ndarray) and (shape := cast("np.ndarray[Any, Any]", original).shape):
        return f"an array of shape {shape}", {}
    value: Any = cast("Any", original) if isinstance(original, Mapping) else plain(original)
    name = type(value).__name__
    if value is None or isinstance(value, (bool, int, float, str)):
        return value, {}
    if isinstance(value, ConstantLr):
        return value.lr, {}
    if isinstance(value, LrSchedule):
        schedule = cast("LrSchedule[Any]", value)
        hidden = {"taken", *schedule.saved}
        return name, {key: part for key, part in _public(schedule).items() if key not in hidden}
    if isinstance(value, OptimizerAdaptor):
        label, children = _described(value.optimizer)
        return label, {**children, **{key: getattr(value, key) for key in _OPTIONS}}
    if isinstance(value, (Optimizer, SimpleOptimizer)):
        config = getattr(value, "config", None)
        return _described(config) if isinstance(config, BaseConfig) else (name, _public(value))
    if isinstance(value, Group):
        own = {"which": list(value.which), "name": value.name, "lr_factor": value.lr_factor}
        return name, {**own, "optimizer": value.optimizer, **value.settings}
    if isinstance(value, BaseConfig):
        return name, _public(value)
    if is_dataclass(value) and not isinstance(value, type):
        return name, {part.name: getattr(value, part.name) for part in fields(value)}
    if isinstance(value, Mapping):
        named = {str(key): part for key, part in cast("Mapping[Any, Any]", value).items()}
        return ", ".join(named), named
    if isinstance(value, list):
        items = cast("list[Any]", value)
        if all(part is None or isinstance(part, (bool, int, float, str)) for part in items):
            text = str(items)
            return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(items)} of them)", {}
        return f"{len(items)} of them", {str(number): part for number, part in enumerate(items)}
    return getattr(value, "__qualname__", name), {}


def _public(value: object) -> dict[str, Any]:
    return {name: part for name, part in vars(value).items() if not name.startswith("_")}

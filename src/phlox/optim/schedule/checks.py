"""Checks of the arguments of schedules: each returns a plain number, or raises an error with a remedy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NoReturn, cast

import numpy as np

from phlox.errors import OptimizerError


def is_scalar(value: object) -> bool:
    """Is it a real number of Python or NumPy, and not NaN?"""
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool) and value == value


def is_rate(value: object) -> bool:
    """Is it a finite number of at least zero?"""
    return is_scalar(value) and 0.0 <= cast("float", value) < math.inf


def is_count(value: object, least: int = 0) -> bool:
    """Is it a whole number of at least `least`?"""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and int(cast("int", value)) >= least


def refuse(owner: object, problem: str, cause: Exception | None = None) -> NoReturn:
    """Raise OptimizerError, naming the schedule."""
    raise OptimizerError(f"{type(owner).__name__}: {problem}") from cause


def rate(owner: object, name: str, value: Any) -> float:
    """A rate: finite and at least zero."""
    if not is_rate(value):
        refuse(owner, f"{name} must be a finite number of at least zero, got {value!r}")
    return float(value)


def positive(owner: object, name: str, value: Any) -> float:
    """A finite number greater than zero."""
    if not is_rate(value) or value == 0.0:
        refuse(owner, f"{name} must be a finite number greater than zero, got {value!r}")
    return float(value)


def count(owner: object, name: str, value: Any, *, least: int = 1) -> int:
    """A whole number of at least `least`."""
    if not is_count(value, least):
        minimum = {0: "zero", 1: "one"}.get(least, str(least))
        refuse(owner, f"{name} must be a whole number (int) of at least {minimum}, got {value!r}")
    return int(value)


def one_of(owner: object, name: str, value: Any, choices: Sequence[str]) -> Any:
    """One of several words."""
    if value not in choices:
        refuse(owner, f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
    return value


def ordered(owner: object, low: tuple[str, float], high: tuple[str, float]) -> None:
    """Check that `low` is at most `high`."""
    if low[1] > high[1]:
        refuse(owner, f"{low[0]} must be at most {high[0]}, got {low[1]} and {high[1]}; exchange them")


def milestones(owner: object, values: Any) -> tuple[int, ...]:
    """Steps at which something changes: at least one, each later than the one before."""
    if not isinstance(values, Iterable):
        refuse(owner, f"milestones must be several steps, such as [30, 60], got {values!r}")
    steps = tuple(
        count(owner, f"milestones[{index}]", value) for index, value in enumerate(cast("Iterable[Any]", values))
    )
    if not steps:
        refuse(owner, "milestones must be one step or more, got none; for a rate that never changes, take ConstantLr")
    for index, (step, next_step) in enumerate(pairwise(steps)):
        if next_step <= step:
            refuse(
                owner,
                f"milestones must increase, but milestones[{index + 1}] is {next_step}, after {step}; give each step "
                "once, in order",
            )
    return steps

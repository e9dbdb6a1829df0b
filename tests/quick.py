"""`--quick`: a part of the tests that answers within two minutes, chosen by rules.

Of the parameters of each test those on NumPy are taken more often than those on JAX and PyTorch, which compile; of each
engine at least one. A test that starts a process, or makes code with PyTorch's compiler, is skipped there.
"""

from __future__ import annotations

import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import pytest

EVERY = {"numpy": 4, "jax": 40, "torch": 12}
"""Of the parameters that name an engine, by engine: one of how many is taken."""
EVERY_OTHER = 6
"""Of those that name none, or another: they may use all engines."""

APART = ("tests/benchmarks/", "tests/tools/", "tests/smoke/", "tests/test_contributing.py", "tests/test_mirror.py[")
"""What tests no part of the library."""


def chosen(items: Iterable[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Those that are run, and the others."""
    groups: dict[tuple[str, str], list[pytest.Item]] = defaultdict(list)
    others: list[pytest.Item] = []
    for item in items:
        if item.nodeid.startswith(APART):
            others.append(item)
            continue
        groups[item.nodeid.partition("[")[0], engine_of(item)].append(item)
    kept: list[pytest.Item] = []
    for (_, engine), group in groups.items():
        every = EVERY.get(engine, EVERY_OTHER)
        for place, item in enumerate(group):
            (others if place % every else kept).append(item)
    return kept, others


def engine_of(item: pytest.Item) -> str:
    """The engine that the parameters of a test name; of several the one that takes longest."""
    callspec = getattr(item, "callspec", None)
    values = list(callspec.params.values()) if callspec else []
    values += [one for value in values if isinstance(value, (list, tuple)) for one in value]
    named = {name for value in values for name in names_in(value)}
    return next((engine for engine in ("jax", "torch", "numpy") if engine in named), "")


def names_in(value: Any) -> list[str]:
    """The name in a parameter, of a backend, a class of backends or by itself; a decorator has its engine's as well."""
    name = value if isinstance(value, str) else getattr(value, "name", None)
    return name.lower().replace(")", "").split("(") if isinstance(name, str) else []


@contextmanager
def without_processes() -> Iterator[None]:
    """Whoever starts a process in this scope, or makes code with PyTorch's compiler, is skipped."""

    def skipped(*arguments: Any, **options: Any) -> NoReturn:
        pytest.skip("starts a process, or PyTorch's compiler: not with --quick")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess.Popen, "__init__", skipped)
        patch.setattr("torch._inductor.compile", skipped)
        yield

"""`--quick`: a part of the tests that answers within two minutes, chosen by rules.

Of the parameters of each test those on NumPy are taken more often than those on JAX and PyTorch, which compile. Tests
marked `slow` are left out: by itself each takes seconds. One that starts a process, or makes code with PyTorch's
compiler, is skipped there.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import pytest

EVERY = {"numpy": 6, "jax": 60, "torch": 24}
"""One of how many is taken, by the engine that parameters or the names of test and file speak of.

On JAX, which compiles most of what is called, of all tests of a folder; otherwise of the parameters of each test.
"""
EVERY_OTHER = 12
"""Of those that speak of no engine: they may use all."""
APART = ("tests/benchmarks/", "tests/tools/", "tests/smoke/", "tests/test_contributing.py", "tests/test_mirror.py[")
"""What tests no part of the library."""


def chosen(items: Iterable[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Those that are run, and the others."""
    kept: list[pytest.Item] = []
    others: list[pytest.Item] = []
    seen: Counter[tuple[str, str]] = Counter()
    for item in items:
        engine = engine_of(item)
        test = item.nodeid.partition("[")[0]
        group = test.rpartition("/")[0] if engine == "jax" else test, engine
        apart = item.nodeid.startswith(APART) or item.get_closest_marker("slow") is not None
        taken = not apart and seen[group] % EVERY.get(engine, EVERY_OTHER) == 0
        seen[group] += not apart
        (kept if taken else others).append(item)
    return kept, others


def engine_of(item: pytest.Item) -> str:
    """The engine that a test speaks of; of several the one that takes longest."""
    callspec = getattr(item, "callspec", None)
    values = list(callspec.params.values()) if callspec else []
    values += [one for value in values if isinstance(value, (list, tuple)) for one in value]
    named = {name for value in values for name in names_in(value)}
    named.update(re.findall("jax|torch", item.nodeid.partition("[")[0].replace("optax", "jax")))
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

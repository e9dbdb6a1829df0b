"""The table is whole: no operation of the contract, and no public method, is in no row; and derivatives have rules.

Serves: phlox/testing/conformance/rows/
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox.autodiff.rules import CONSTANT, RULES
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch
from phlox.backend.contract.catalogue import DERIVED, REQUIRED
from phlox.testing.conformance import rows, running

OPERATIONS = (REQUIRED | set(DERIVED)) - {name for name in REQUIRED if name.startswith("random_")}


class Spy(NumPy):
    """NumPy, noting which operations are asked for."""

    asked: set[str]
    """From outside."""
    called: set[str]
    """From anywhere."""

    def setup(self) -> None:
        self.asked, self.called, self.depth = set(), set(), 0
        for name in OPERATIONS:
            setattr(self, name, self.noting(name, getattr(self, name)))

    def noting(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any) -> Any:
            self.called.add(name)
            if self.depth == 0:
                self.asked.add(name)
            self.depth += 1
            try:
                return function(*arguments)
            finally:
                self.depth -= 1

        return noted


@cache
def spied() -> tuple[set[str], set[str], set[str]]:
    """What the table asks for: by its values, and with derivatives; and what is called at all."""
    spy = Spy(float="f64")
    forward: set[str] = set()
    with np.errstate(all="ignore"):
        for row in rows.ROWS:
            for sample in row.samples + row.specials:
                spy.asked.clear()
                row.call(*running.tensors(sample, spy))
                forward |= spy.asked
        both = set(forward)
        for row in rows.ROWS:
            spy.asked.clear()
            for sample in row.samples:
                if running.differentiable(row, sample):
                    running.gradients(row, sample, spy)
                    if row.second:
                        running.second_gradients(row, sample, spy)
            both |= spy.asked
    return forward, both, set(spy.called)


def test_every_operation_of_the_contract_is_in_the_table() -> None:
    _, asked, _ = spied()
    assert sorted(OPERATIONS - asked) == []


def test_every_rule_is_for_an_operation_in_the_table() -> None:
    _, asked, _ = spied()
    assert sorted({*RULES, *CONSTANT} - asked) == []


@pytest.mark.parametrize("backend", [NumPy(), Jax(), Torch()], ids=repr)
def test_autodiff_differentiates_what_a_backend_overrides(backend: Any) -> None:
    """An operation on floats is traced, is a constant, or is derived, on `Autodiff` too, from others that are."""
    autodiff = Autodiff(backend)
    for name in sorted(OPERATIONS):
        if name in RULES or name in CONSTANT or name.startswith(("int_", "bool_", "random_")) or name == "float_full":
            continue
        # What the decorated backend runs must be the definition (or the decorator's own), never the engine's function.
        own = getattr(type(autodiff), name, None)
        assert own is not None, f"Autodiff has no rule for {name}"
        assert name not in vars(autodiff), f"Autodiff({backend!r}).{name} goes past the tape"
        assert getattr(own, "__module__", "").startswith(("phlox.backend.contract", "phlox.autodiff")), name


# --- methods


CASES = Path(rows.__file__).parent


class Watch:
    """Stands for a method or function and notes that a row called it."""

    def __init__(self, name: str, function: Any, seen: set[str]) -> None:
        self.name, self.function, self.seen = name, function, seen

    def note(self, frame: Any) -> None:
        if Path(frame.f_code.co_filename).parent == CASES:
            self.seen.add(self.name)

    def __get__(self, instance: Any, owner: Any) -> Any:
        self.note(sys._getframe(1))
        return self if instance is None else self.function.__get__(instance, owner)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self.note(sys._getframe(1))
        return self.function(*arguments, **options)


ELSEWHERE = {
    # values, devices, the tape and Python's protocols: tests/test_import.py, test_errors.py, tests/autodiff
    "backend", "backward", "device", "from_inner", "from_primitive", "grad", "inner", "is_require_grad", "item", "kind",
    "ndim", "numpy", "primitive", "require_grad", "shape", "size", "to_device", "tolist", "lift", "Tensor",
    "Gradients", "__array__", "__bool__", "__class_getitem__", "__copy__", "__deepcopy__", "__dlpack__",
    "__dlpack_device__", "__float__", "__hash__", "__init__", "__init_subclass__", "__int__", "__reduce__", "__repr__",
    "__len__", "__array_function__", "__complex__", "__format__", "__getattr__", "__index__", "__round__", "__trunc__",
    "__setitem__",
    # tests/tensor/test_engine_arrays.py
    "dtype", "itemsize", "nbytes", "__rmatmul__",
    # tests/tensor/test_interop.py, tests/backend/contract/test_widening.py
    "from_dlpack", "from_full_precision", "to_full_precision",
}  # fmt: skip


def public() -> Iterator[tuple[type, str, Any]]:
    for owner in px.Tensor.__mro__[:-2]:
        if owner.__module__.startswith("phlox."):
            for name, value in vars(owner).items():
                plain = not name.startswith("_") or (name.startswith("__") and callable(value))
                if plain and (callable(value) or isinstance(value, (property, staticmethod))):
                    yield owner, name, value


def test_every_method_and_function_is_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[str] = set()
    wanted: set[str] = set()
    for owner, name, value in list(public()):
        if name not in ELSEWHERE:
            wanted.add(name)
            monkeypatch.setattr(owner, name, Watch(name, value, seen))
    for module in (px, px.functional):
        for name in module.__all__:
            function = getattr(module, name)
            home = getattr(function, "__module__", None) or ""
            shown = module is px or home.startswith(module.__name__)
            if shown and callable(function) and home.startswith("phlox.tensor") and name not in ELSEWHERE:
                wanted.add(f"{module.__name__}.{name}")
                monkeypatch.setattr(module, name, Watch(f"{module.__name__}.{name}", function, seen))
    assert len(wanted) > 100
    with np.errstate(all="ignore"):
        for row in rows.ROWS:
            for sample in row.samples[:1] or row.specials[:1]:
                row.call(*running.tensors(sample, NumPy()))
    assert sorted(wanted - seen) == []


def test_no_two_families_of_the_contract_share_a_name() -> None:
    """The families are one class in the end: a helper of the same name in two of them would be one for both."""
    seen: dict[str, type] = {}
    clashes: list[str] = []
    for family in [cls for cls in Backend.__mro__ if cls.__module__.startswith("phlox.backend.contract")]:
        for name, value in vars(family).items():
            if (callable(value) or isinstance(value, staticmethod)) and not name.startswith("__"):
                other = seen.setdefault(name, family)
                if other is not family:
                    clashes.append(f"{name}: {other.__name__} and {family.__name__}")
    assert clashes == []

"""Backends by name: those of the table, those registered, and those that installed packages declare."""

from __future__ import annotations

import importlib.metadata
from importlib.metadata import EntryPoint
from typing import Any

import pytest

import phlox as px
from phlox.backend import Autodiff, NumPy, backend_names, load_backend, register_backend, registry
from phlox.errors import DeviceError
from tests.backend.plain import Plain

HERE = "tests.backend.plain:Plain"


@pytest.fixture(autouse=True)
def _tables_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_BACKENDS", dict(registry._BACKENDS))
    monkeypatch.setattr(registry, "_DECORATORS", dict(registry._DECORATORS))


def test_the_engines_are_known() -> None:
    assert {"numpy", "jax", "torch"} <= set(backend_names())
    assert load_backend("numpy") is NumPy
    assert registry.backend_by_name("numpy") == NumPy()


def test_a_registered_one_is_a_device_by_its_name() -> None:
    register_backend("plain", HERE)
    assert "plain" in backend_names() and load_backend("plain") is Plain
    assert type(px.tensor([1.0, 2.0], device="plain").backend) is Plain


def test_one_of_an_installed_package_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(*, group: str) -> Any:
        return [EntryPoint("elsewhere", HERE, group)] if group == "phlox.backends" else []

    monkeypatch.setattr(importlib.metadata, "entry_points", found)
    assert "elsewhere" in backend_names() and load_backend("elsewhere") is Plain


def test_a_registered_one_goes_before_an_installed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [EntryPoint("numpy", "nowhere:Nothing", "phlox.backends")]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda *, group: entries)
    assert load_backend("numpy") is NumPy
    assert backend_names().count("numpy") == 1


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(DeviceError, match=r"unknown device 'nunpy'.*\(known: .*jax.*numpy.*torch.*\)"):
        load_backend("nunpy")
    with pytest.raises(DeviceError, match="no decorator 'nothing'; .*register_decorator"):
        registry.load_decorator("nothing")


def test_decorators() -> None:
    assert registry.load_decorator("autodiff") is Autodiff
    registry.register_decorator("mine", HERE)
    assert registry.load_decorator("mine") is Plain

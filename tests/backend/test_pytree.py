"""Classes that are PyTree nodes: an engine hears of those announced before it listens, and after."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from phlox.backend import pytree
from phlox.backend.pytree import PyTreeNode, add_listener, register_node, register_with_imported_engines


@pytest.fixture(autouse=True)
def _empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pytree, "_nodes", [])
    monkeypatch.setattr(pytree, "_listeners", [])


def node(cls: type[Any]) -> PyTreeNode:
    return PyTreeNode(cls, lambda x: ((), None), lambda structure, leaves: cls())


def test_each_listener_hears_of_all_once_and_in_order() -> None:
    first, second = list[Any](), list[Any]()
    register_node(node(int))
    add_listener(lambda found: first.append(found.cls))
    register_node(node(str))
    add_listener(lambda found: second.append(found.cls))
    register_node(node(bytes))
    assert first == second == [int, str, bytes]


def test_an_engine_that_is_imported_is_met_once(monkeypatch: pytest.MonkeyPatch) -> None:
    imported: list[str] = []
    monkeypatch.setattr(pytree, "import_module", imported.append)
    monkeypatch.delitem(sys.modules, "jax", raising=False)
    monkeypatch.delitem(sys.modules, "phlox.backend.jax", raising=False)
    add_listener(lambda found: None)  # as of another engine
    register_with_imported_engines()
    assert imported == []
    monkeypatch.setitem(sys.modules, "jax", sys)
    register_with_imported_engines()
    assert imported == ["phlox.backend.jax"]
    monkeypatch.setitem(sys.modules, "phlox.backend.jax", sys)
    register_with_imported_engines()
    assert len(imported) == 1

"""A PyTorch that lacks private names: they are hidden from all who look, for the time of a test."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NoReturn

import pytest
import torch

from phlox.backend.torch import compat
from phlox.backend.torch.cpu import gemm
from phlox.backend.torch.ops import conv


class _Missing:
    """An attribute of a class that nobody finds, not even where a base class has it."""

    def __get__(self, *_: object) -> NoReturn:
        raise AttributeError("hidden")


def hide(name: str, patch: pytest.MonkeyPatch) -> None:
    """Hide one name; the patch brings it back."""
    path, _, last = name.rpartition(".")
    if path == "torch":
        patch.delattr(torch, last)
    elif path.startswith("torch.ops.") and not last.startswith("_schema"):
        _hide_operator(name, patch)
    else:
        parent = _found(path)
        if name in sys.modules:
            patch.setitem(sys.modules, name, None)
        if isinstance(parent, type):
            patch.setattr(parent, last, _Missing(), raising=False)
        else:
            patch.delattr(parent, last)


def _hide_operator(name: str, patch: pytest.MonkeyPatch) -> None:
    _, _, space, operator, *overload = name.split(".")
    owner: Any = getattr(torch.ops, space)
    hidden = operator
    if overload and overload != ["default"]:
        owner, (hidden,) = getattr(owner, operator, None), overload
        if owner is None:
            return  # it is hidden as a whole
    before, kind = type(owner).__getattr__, type(owner)

    def looked_up(self: Any, attribute: str) -> Any:
        if self is owner and attribute == hidden:
            raise AttributeError(attribute)
        return before(self, attribute)

    patch.delitem(vars(owner), hidden, raising=False)
    patch.setattr(kind, "__getattr__", looked_up)


def _found(path: str) -> Any:
    module, *rest = path.split(".")
    found: Any = torch
    for part in rest:
        module += f".{part}"
        found = getattr(found, part, None) or import_module(module)
    return found


@contextmanager
def lacking(*names: str) -> Iterator[None]:
    """A scope in which PyTorch lacks these names, and Phlox has not looked yet."""
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            _found(name.removesuffix(".default").rpartition(".")[0])  # what has to be loaded is, as long as it can be
        for name in names:
            hide(name, patch)
        _forget()
        try:
            yield
        finally:
            patch.undo()
            _forget()


def _forget() -> None:
    compat.reset()
    gemm._is_faster.cache_clear()
    conv._has_bfloat16.cache_clear()

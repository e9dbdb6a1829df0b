"""What a table of operations says of one that it does not have."""

from __future__ import annotations

from typing import Any

import pytest

import phlox as px
from phlox.backend import NumPy
from phlox.errors import BackendError, KindError


class FloatsAlone(NumPy):
    """A backend that is not complete."""

    def __getattribute__(self, name: str) -> Any:
        if name == "int_add":
            raise AttributeError(name)
        return super().__getattribute__(name)


def test_what_a_backend_lacks_is_not_blamed_on_the_kind() -> None:
    x = px.tensor([1, 2], device=FloatsAlone())
    with pytest.raises(BackendError, match=r"FloatsAlone\(\) does not support `int_add`"):
        _ = x + x
    assert (x.float() + 1.0).tolist() == [2.0, 3.0]


def test_what_no_backend_has_for_a_kind_names_the_conversion() -> None:
    with pytest.raises(KindError, match=r"Int tensors have no `exp`; convert with \.float\(\) first"):
        px.tensor([1, 2]).exp()

from __future__ import annotations

import pytest

import phlox as px
from phlox import transform


@pytest.mark.parametrize("name", ["Change", "Recompile", "checks", "explain_recompiles", "find_nonfinite"])
def test_the_old_place_of_debug_warns(name: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"`phlox\.debug\.{name}` now"):
        found = getattr(transform.debug, name)
    assert found is getattr(px.debug, name)
    assert not hasattr(transform.debug, "compare")

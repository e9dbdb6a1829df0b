"""The times of the operations of a program, by the scopes in which they were traced."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phlox.backend import Float, Jax, NumPy
from phlox.backend.jax.profiling import scopes_of

TEXT = """HloModule jit_body

%fused_computation (param_0: f32[4]) -> f32[4] {
  %param_0 = f32[4]{0} parameter(0)
  %exp.0 = f32[4]{0} exponential(%param_0), metadata={op_name="jit(body)/one/exp"}
  ROOT %mul.0 = f32[4]{0} multiply(%exp.0, %exp.0), metadata={op_name="jit(body)/two/mul"}
}

%body.1 (arg: (s32[], f32[4])) -> (s32[], f32[4]) {
  %arg = (s32[], f32[4]{0}) parameter(0)
  ROOT %tuple.1 = (s32[], f32[4]{0}) tuple(%arg)
}

ENTRY %main.3 (x.1: f32[4]) -> f32[4] {
  %x.1 = f32[4]{0} parameter(0)
  %fusion = f32[4]{0} fusion(%x.1), kind=kLoop, calls=%fused_computation
  %while.2 = (s32[], f32[4]{0}) while(%tuple), condition=%c, body=%body.1, metadata={op_name="jit(body)/loop/while"}
  %call.4 = f32[4]{0} call(%fusion), to_apply=%f, metadata={op_name="jit(body)/while(x)/call"}
  ROOT %sin.9 = f32[4]{0} sine(%fusion), metadata={op_name="jit(body)/while(x)/sin"}
}
"""


def test_the_scopes_of_operations_fusions_and_what_runs_others() -> None:
    found = scopes_of(TEXT)
    assert found["fusion"] == "jit(body)/two/mul" and found["exp.0"] == "jit(body)/one/exp"
    assert found["sin.9"] == "jit(body)/while(x)/sin" and found["x.1"] == ""
    assert "while.2" not in found and "call.4" not in found


@pytest.mark.parametrize("backend", [Jax(), Jax(float="f64")], ids=["f32", "f64"])
def test_operations_carry_the_scope_in_which_they_were_traced(backend: Jax) -> None:
    def body(donated: list[jax.Array], kept: list[jax.Array]) -> list[jax.Array]:
        with backend.named_scope("mine=a="):
            y = kept[0] @ kept[0]
        with backend.named_scope("mine=b="):
            return [jnp.tanh(y).T @ kept[0]]

    x = backend.from_host(np.eye(64), Float, backend.device())
    found = backend.profile_operations(backend.compile(body, lambda: None), [], [x], 2)
    assert found is not None
    scopes = {scope for one in found for scope in ("mine=a=", "mine=b=") if scope in one.scope}
    assert scopes == {"mine=a=", "mine=b="}
    assert all(one.seconds >= 0.0 and one.start >= 0.0 and one.thread for one in found)
    assert [one.start for one in found] == sorted(one.start for one in found)


def test_an_older_jax_and_other_engines_tell_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(jax.profiler, "ProfileData")
    assert Jax().profile_operations(lambda donated, kept: [], [], [], 1) is None
    assert NumPy().profile_operations(lambda donated, kept: [], [], [], 1) is None
    with NumPy().named_scope("mine"):
        pass

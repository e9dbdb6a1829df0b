"""Whether traced programs become code, or run operation by operation."""

from __future__ import annotations

import os

from phlox.errors import CompileError

VARIABLE = "PHLOX_TORCH_CODEGEN"
"""The environment variable that says who makes code of a graph: `inductor`, or `none` to run it as it was traced."""


def codegen() -> str:
    """Gives "inductor" or "none", as the environment says; `CompileError` for anything else."""
    found = os.environ.get(VARIABLE, "inductor")
    if found not in ("inductor", "none"):
        raise CompileError(f"the environment variable {VARIABLE} is `inductor` or `none`, got {found!r}")
    return found

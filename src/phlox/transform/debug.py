"""`phlox.debug`: finding what is wrong inside compiled functions."""

from __future__ import annotations

from phlox.backend.tracing.checks import checks
from phlox.transform.compile.recompiles import Change, Recompile, explain_recompiles

__all__ = ["Change", "Recompile", "checks", "explain_recompiles"]

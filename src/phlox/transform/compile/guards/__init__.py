"""Guards: the values that a compiled function reads from outside of its arguments, and whether they have changed."""

from __future__ import annotations

from phlox.transform.compile.guards.finding import guard_of
from phlox.transform.compile.guards.guard import Guard
from phlox.transform.compile.guards.roots import Holder, roots_of

__all__ = ["Guard", "Holder", "guard_of", "roots_of"]

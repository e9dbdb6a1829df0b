"""The passes over a traced graph before Inductor compiles it, one in each file."""

from __future__ import annotations

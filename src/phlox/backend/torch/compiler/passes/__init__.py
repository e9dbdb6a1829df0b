"""What is done to a traced graph before Inductor compiles it, one pass a file."""

from __future__ import annotations

"""One step of an optimizer over a whole module."""

from __future__ import annotations

"""L-BFGS, its curvature, its line search."""

from __future__ import annotations

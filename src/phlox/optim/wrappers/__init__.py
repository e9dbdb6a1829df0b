"""Helpers around an optimizer's steps: averages of weights, accumulation of gradients, loss scaling."""

from __future__ import annotations

"""Whole models, each built from its config, and how they are trained."""

from __future__ import annotations

from phlox.models.digits import DigitsConfig, DigitsNet
from phlox.models.gpt import Gpt, GptConfig
from phlox.models.recipe import DigitsRecipe, DigitsRun, DigitsTraining, Verification

__all__ = [
    "DigitsConfig",
    "DigitsNet",
    "DigitsRecipe",
    "DigitsRun",
    "DigitsTraining",
    "Gpt",
    "GptConfig",
    "Verification",
]

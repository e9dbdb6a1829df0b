"""Other people's models and weights: PyTorch state dicts and the files of the Hugging Face world."""

from __future__ import annotations

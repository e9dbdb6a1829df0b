"""For pytest: Phlox is imported whole before its files are collected one by one, and examples may take their time."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

# Before any engine is imported: tests run side by side, and what they compute is small.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# PyTorch's compiler takes many seconds a program; where its code is what is tested, the test says so.
os.environ.setdefault("PHLOX_TORCH_CODEGEN", "none")

import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

# Collecting `phlox/tensor/*.py` first would leave the package under the name of the function `phlox.tensor`.
import phlox as phlox  # noqa: E402

# A shared machine may stall at any example; how fast things are is measured in `benchmarks/`.
settings.register_profile("phlox", settings.default, deadline=None)
settings.load_profile("phlox")


@pytest.fixture
def hears_ctrl_c() -> Iterator[None]:
    """Ctrl-C as it is in a terminal: what starts in the background of a script ignores it, and so do its children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)

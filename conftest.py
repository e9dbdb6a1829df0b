"""For pytest: the environment of the tests, `--quick`, and memory given back between them.

Phlox is imported whole before its files are collected one by one, and examples may take their time.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

# Before any engine is imported: tests run side by side, and what they compute is small.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# Most of what JAX costs here is making machine code fast that runs once; XLA's own passes run as ever.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

# PyTorch's compiler takes many seconds a program; where its code is what is tested, the test says so.
os.environ.setdefault("PHLOX_TORCH_CODEGEN", "none")

import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

# Collecting `phlox/tensor/*.py` first would leave the package under the name of the function `phlox.tensor`.
import phlox as phlox  # noqa: E402
from tests import quick  # noqa: E402

# A shared machine may stall at any example; how fast things are is measured in `benchmarks/`.
settings.register_profile("phlox", settings.default, deadline=None)
settings.register_profile("quick", settings.default, deadline=None, max_examples=10)
settings.load_profile("phlox")


@pytest.fixture
def hears_ctrl_c() -> Iterator[None]:
    """Ctrl-C as it is in a terminal: what starts in the background of a script ignores it, and so do its children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


# --- an answer within two minutes


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="a part of the tests, by the rules of tests/quick.py")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--quick"):
        settings.load_profile("quick")


def pytest_collection_finish() -> None:
    """From here on, garbage is not looked for among tens of thousands of tests, which live to the end anyhow."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--quick"):
        kept, others = quick.chosen(items)
        config.hook.pytest_deselected(items=others)
        items[:] = kept


@pytest.fixture(scope="session", autouse=True)
def _quick(request: pytest.FixtureRequest) -> Iterator[None]:
    with quick.without_processes() if request.config.getoption("--quick") else nullcontext():
        yield


# --- memory


GROWTH = 800 << 20
"""Bytes by which a process may grow before it forgets what the engines keep: XLA never forgets a program by itself."""

in_use = 0
"""Bytes, when it last forgot."""


def resident() -> int:
    """The bytes of memory that this process has in use; 0 where the system does not say so."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def forget_programs() -> None:
    """Drop all compiled programs, which are compiled again where they are needed, and give their memory back."""
    if (jax := sys.modules.get("jax")) is not None:
        jax.clear_caches()
    if (dynamo := sys.modules.get("torch._dynamo")) is not None:
        dynamo.reset()
    gc.collect()
    # XLA's compiler leaves the heap full of holes, which glibc keeps unless it is asked.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    global in_use
    if resident() > in_use + GROWTH:
        forget_programs()
        in_use = resident()

"""For pytest: the environment of the tests, which of them are run, and memory given back between them.

Phlox is imported whole before its files are collected one by one, and examples may take their time.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

# Before any engine is imported: tests run side by side, and what they compute is small.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# Most of what JAX costs here is making machine code fast that runs once; XLA's own passes run as ever. All processes of
# the tests, and the next run, share what was compiled.
XLA_FLAGS = "--xla_backend_optimization_level=0"
if importlib.util.find_spec("jaxlib") and metadata.version("jaxlib").startswith("0.10."):
    XLA_FLAGS += " --xla_cpu_use_fusion_emitters=false"  # an option that is unknown, as it is later, ends the process
os.environ.setdefault("XLA_FLAGS", XLA_FLAGS)
MOST_COMPILED = 100_000  # files, about half a gigabyte
COMPILED = Path(__file__).parent / ".pytest_cache" / "xla"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(COMPILED))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

# PyTorch's compiler takes many seconds a program; where its code is what is tested, the test says so.
os.environ.setdefault("PHLOX_TORCH_CODEGEN", "none")
os.environ.setdefault("PHLOX_CACHE", "off")

import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

# Collecting `phlox/tensor/*.py` first would leave the package under the name of the function `phlox.tensor`.
import phlox as phlox  # noqa: E402
from phlox.backend import reproducible  # noqa: E402
from tests import costs, reproducible_mode, selection  # noqa: E402

# A shared machine may stall at any example; how fast things are is measured in `benchmarks/`.
settings.register_profile("phlox", settings.default, deadline=None)
settings.register_profile("small", settings.default, deadline=None, max_examples=25)
settings.load_profile("phlox")


@pytest.fixture
def hears_ctrl_c() -> Iterator[None]:
    """Ctrl-C as it is in a terminal: what starts in the background of a script ignores it, and so do its children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


# --- which tests are run, and what they cost


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", choices=["check", "note"], help="what folders cost: see tests/costs.py")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--costs"):
        config.pluginmanager.register(costs.Watch(config.getoption("--costs") == "note"))
    if config.getoption("markexpr") == "not full":
        settings.load_profile("small")
    if "PYTEST_XDIST_WORKER" not in os.environ and len(list(COMPILED.glob("*"))) > MOST_COMPILED:
        shutil.rmtree(COMPILED)


@pytest.hookimpl(tryfirst=True)  # before `-m` and `-k` choose
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    selection.mark_cells(items)


def pytest_collection_finish() -> None:
    set_aside()


# --- memory


MODULES = 200
"""This many further modules are set aside: an engine has come."""

set_aside_modules = 0
"""How many modules there were when objects were last set aside."""


def set_aside() -> None:
    """From here on, look for garbage only among what is new: tests and modules live to the end anyhow."""
    global set_aside_modules
    gc.collect()
    gc.freeze()
    set_aside_modules = len(sys.modules)


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
    if reproducible.is_installed and not reproducible.is_reproducible():
        reproducible_mode.forget()
    if len(sys.modules) > set_aside_modules + MODULES:
        set_aside()
    if resident() > in_use + GROWTH:
        forget_programs()
        in_use = resident()

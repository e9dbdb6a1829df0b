"""Does Phlox work with the lowest versions of its dependencies that pyproject.toml allows?

    make floors

They are installed into the environment that runs this, once, and a part of the tests and both of the engines that come
without PyTorch are run with them. Where the packages cannot be had, it says so, and that is no failure.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
EXTRAS = ("jax", "train", "zstd", "fast")
_NAME = re.compile(r"[<>=!\[;]")
FOR_TESTS = ("pytest", "hypothesis")
"""What the tests below need of the extra `test`."""

TESTS = (
    "src/phlox",  # the examples in the docstrings: a little of everything
    *("--ignore=src/phlox/testing", "--ignore=src/phlox/backend/torch", "--ignore=src/phlox/optim/optax/adaptor.py"),
    *("tests/record/formats/test_own_formats.py", "tests/config/test_base.py", "tests/train/test_progress.py"),
)
DEMOS = (("--device", "numpy"), ("--device", "jax", "--compile"))


def floors() -> list[str]:
    """The lowest version of each dependency, as pip takes it.

    >>> [floor for floor in floors() if floor.startswith("numpy")]
    ['numpy==2.0']
    """
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(one for extra in EXTRAS for one in optional[extra])]
    without = [one for one in wanted if ">=" not in one]
    if without:
        raise SystemExit(f"floors: {without[0]!r} in pyproject.toml has no lowest version; give it one with >=")
    # What the tests need may be of any version.
    for_tests = [one for one in optional["test"] if _NAME.split(one)[0] in FOR_TESTS]
    return [one.replace(">=", "==", 1) for one in wanted] + for_tests


def installed(pins: list[str]) -> bool:
    """Installs them unless they are there; False where packages cannot be had at all, an error for these only."""
    stamp = Path(sys.prefix) / "floors"
    if stamp.exists() and stamp.read_text() == "\n".join(pins):
        return True
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    done = subprocess.run([*pip, "install", "--only-binary=:all:", *pins], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        stamp.write_text("\n".join(pins))
        return True
    with tempfile.TemporaryDirectory() as folder:
        probe = [*pip, "download", "--no-deps", "--dest", folder, "typing_extensions"]
        has_index = subprocess.run(probe, capture_output=True, check=False).returncode == 0
    if not has_index or sys.version_info >= (3, 13):
        why = "there is no package index" if not has_index else "they have no wheels for this Python"
        print(f"floors: skipped: the lowest versions cannot be installed here, {why}")
        return False
    errors = [line for line in done.stderr.splitlines() if not line.startswith("WARNING")]
    raise SystemExit("floors: the lowest versions that pyproject.toml allows do not go together:\n" + "\n".join(errors))


def main() -> None:
    """Install and try."""
    pins = floors()
    if not installed(pins):
        return
    print(f"floors: {', '.join(pins)}", flush=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OPENBLAS_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        commands = [["pytest", "-q", "-W", "default", "-p", "no:cacheprovider", *TESTS]]
        commands += [
            ["phlox", "demo", "--epochs", "1", "--out", f"{folder}/{i}", *demo] for i, demo in enumerate(DEMOS)
        ]
        for command in commands:
            if subprocess.run([sys.executable, "-m", *command], cwd=ROOT, env=environment, check=False).returncode:
                raise SystemExit(f"floors: failed with the lowest versions: {' '.join(command)}")


if __name__ == "__main__":
    main()

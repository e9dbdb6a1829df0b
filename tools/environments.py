"""Environments with chosen packages, for `make floors`, `make versions` and `make release`.

Each is a folder below .venv-versions and is made once: a stamp in it says what it holds. Where its packages cannot be
had, `Skipped` says why, and that is no failure.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / ".venv-versions"
EXTRAS = ("jax", "train", "data", "zstd", "fast", "distributed", "onnx", "grammar", "text", "serve")
"""The extras of pyproject.toml whose lowest versions are tried together; those of `torch` are tried apart."""

FOR_TESTS = ("pytest", "hypothesis")
"""What the tests need of the extra `test`, at any version."""

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""The index of PyTorch's CPU builds. Those on PyPI for Linux bring gigabytes of CUDA."""
NIGHTLY_INDEX = "https://download.pytorch.org/whl/nightly/cpu"
"""The same for what comes before a release."""

_PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
_GIVE_UP_SOON = ("--retries", "1", "--timeout", "15")
_NAME = re.compile(r"[<>=!\[; ]")
_WRONG = ("ResolutionImpossible", "No matching distribution found")
"""What pip says when the versions themselves are at fault."""


class Skipped(Exception):
    """An environment that cannot be made here; the message says why."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment with these packages and no others."""

    name: str
    pins: tuple[str, ...]
    """As pip takes them. A CPU build of PyTorch (`torch==2.13.0+cpu`) comes from PyTorch's own index."""

    base: str = sys.executable
    """The Python that it is made with."""

    chosen: bool = True
    """Were the versions chosen? Then a newer Python may lack wheels of them, and that is no failure."""

    @property
    def folder(self) -> Path:
        """Where it lies."""
        return FOLDER / self.name

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")

    @property
    def is_there(self) -> bool:
        """Whether it was made before, of these packages, for this Python, in this place."""
        stamp = self.folder / "holds.json"
        return stamp.exists() and stamp.read_text(encoding="utf-8") == self._holds()

    def make(self) -> None:
        """Install it, unless it is there.

        Raises:
            Skipped: the packages cannot be had here.
            SystemExit: they can, but these versions do not go together.
        """
        if self.is_there:
            return
        print(f"{self.name}: installing {', '.join(self.pins)} (once)", flush=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        subprocess.run([self.base, "-m", "venv", "--without-pip", str(self.folder)], check=True)
        torch = [pin for pin in self.pins if pin.startswith("torch==") and "+cpu" in pin]
        if torch:
            index = NIGHTLY_INDEX if ".dev" in torch[0] else CPU_INDEX
            self._install(torch, "--index-url", index, "--no-deps", *_GIVE_UP_SOON)
        self._install(self.pins)
        (self.folder / "holds.json").write_text(self._holds(), encoding="utf-8")

    def run(self, *command: str, **variables: str) -> bool:
        """`python -m command` in it, on this source; whether it succeeded."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OPENBLAS_NUM_THREADS": "1", **variables}
        done = subprocess.run([str(self.python), "-m", *command], cwd=ROOT, env=environment, check=False)
        return done.returncode == 0

    def _holds(self) -> str:
        return json.dumps({"pins": self.pins, "python": version_of(self.base), "folder": str(self.folder)}, indent=1)

    def pip(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`pip arguments` for this environment, which needs no pip of its own."""
        return subprocess.run(
            [*_PIP, "--python", str(self.python), *arguments], capture_output=True, text=True, check=False
        )

    def _install(self, pins: Sequence[str], *options: str) -> None:
        done = self.pip("install", "--quiet", "--only-binary=:all:", *options, *pins)
        if done.returncode:
            shutil.rmtree(self.folder, ignore_errors=True)
            self._fail(
                pins, options, [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["pip failed"]
            )

    def _fail(self, pins: Sequence[str], options: Sequence[str], errors: list[str]) -> None:
        if options:
            raise Skipped(f"no CPU build of {pins[0]} can be had here")
        if newest("typing_extensions") is None:
            raise Skipped("there is no package index")
        if not any(sign in line for line in errors for sign in _WRONG):
            raise Skipped(errors[-1])  # the network or the disk
        if self.chosen and sys.version_info >= (3, 13):
            raise Skipped("there are no wheels of these versions for this Python")
        raise SystemExit(f"{self.name}: these versions do not go together: {', '.join(pins)}\n" + "\n".join(errors))


@cache
def version_of(python: str) -> str:
    """What an interpreter says of its version."""
    if python == sys.executable:
        return sys.version
    command = [python, "-c", "import sys; print(sys.version)"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def lowest(*extras: str) -> tuple[str, ...]:
    """The lowest version of each dependency that pyproject.toml allows, as pip takes it, and what the tests need.

    >>> [pin for pin in lowest("jax") if pin.startswith(("numpy", "jax"))]
    ['numpy==2.0', 'jax==0.10']
    """
    wanted = requirements(*extras)
    without = [one for one in wanted if ">=" not in one]
    if without:
        raise SystemExit(f"{without[0]!r} in pyproject.toml has no lowest version; give it one with >=")
    return (*(one.replace(">=", "==", 1) for one in wanted), *_for_tests())


def newest_python() -> str:
    """The newest Python that is supported and installed: on the path, by pyenv, or this one."""
    newest = int(supported()["python"][1].split(".")[1])
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for minor in range(newest, sys.version_info.minor, -1):
        for program in (shutil.which(f"python3.{minor}"), *map(str, versions.glob(f"3.{minor}.*/bin/python"))):
            # A name on the path may be that of a program which only looks for others.
            command = [program or "", "-c", "import venv"]
            if program and subprocess.run(command, capture_output=True, check=False).returncode == 0:
                return program
    return sys.executable


def newest_of(*extras: str, pre: bool = False, python: str = "") -> tuple[str, ...] | None:
    """The newest version of each dependency that the package index has for a Python; None without an index.

    Of those that pyproject.toml supports; with `pre`, of all, pre-releases too.
    """
    pins: list[str] = []
    options = [*(["--pre"] if pre else []), *(["--python-version", python] if python else [])]
    for one in requirements(*extras):
        version = newest(name_of(one), *options, most="" if pre else most_of(name_of(one)))
        if version is None:
            return None
        pins.append(f"{name_of(one)}=={version}")
    return (*pins, *_for_tests())


def newest(package: str, *options: str, like: str = "", most: str = "") -> str | None:
    """The newest version of a package with `like` in it, up to the series `most`; None where it cannot be found out."""
    command = [*_PIP, "index", "versions", "--only-binary=:all:", *_GIVE_UP_SOON, *options, package]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"Available versions: (.*)", done.stdout)
    versions = found[1].split(", ") if done.returncode == 0 and found else []
    return next((version for version in versions if like in version and within(version, most)), None)


def within(version: str, most: str) -> bool:
    """Is a version at most one of this series?

    >>> within("2.4.6", "2.4"), within("2.10.0+cpu", "2.9"), within("3.0", "")
    (True, False, True)
    """
    series = [int(number) for number in re.findall(r"\d+", most)]
    return [int(number) for number in re.findall(r"\d+", version)][: len(series)] <= series


def most_of(package: str) -> str:
    """The newest series of a package that is supported; empty if any is.

    >>> most_of("msgspec")
    ''
    """
    return supported().get(package, ("", ""))[1]


def name_of(requirement: str) -> str:
    """The package that a requirement names.

    >>> name_of("rich>=13.7")
    'rich'
    """
    return _NAME.split(requirement)[0]


def pyproject() -> dict[str, Any]:
    """What pyproject.toml says."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def project() -> dict[str, Any]:
    """The table `project` of pyproject.toml."""
    return pyproject()["project"]


def supported() -> dict[str, tuple[str, str]]:
    """The lowest version and the newest series of Python and of the engines.

    >>> supported()["python"][0]
    '3.11'
    """
    return {name: (lowest, newest) for name, (lowest, newest) in pyproject()["tool"]["phlox"]["versions"].items()}


NAMES = {"python": "Python", "numpy": "NumPy", "jax": "JAX", "torch": "PyTorch"}


def supported_table() -> str:
    """The same for a page."""
    rows = [f"| {NAMES[name]} | {lowest} | {newest} |" for name, (lowest, newest) in supported().items()]
    return "\n".join(["| | lowest | newest |", "|---|---|---|", *rows])


def requirements(*extras: str) -> list[str]:
    """What Phlox with these extras asks for; an extra that is made of others is replaced by theirs.

    >>> requirements("fast")[-2:]
    ['isal>=1.7', 'numkong>=7.8']
    >>> set(requirements("all")) >= set(requirements("jax", "torch"))
    True
    """
    return list(dict.fromkeys([*project()["dependencies"], *(one for extra in extras for one in of_extra(extra))]))


def of_extra(extra: str) -> list[str]:
    """What an extra asks for by itself.

    >>> of_extra("fast")
    ['isal>=1.7', 'numkong>=7.8']
    """
    found: list[str] = []
    for one in project()["optional-dependencies"][extra]:
        if own := re.fullmatch(r"phlox\[(.*)\]", one):
            found += [inner for name in own[1].split(",") for inner in of_extra(name.strip())]
        else:
            found.append(one)
    return found


def _for_tests() -> list[str]:
    return [one for one in project()["optional-dependencies"]["test"] if name_of(one) in FOR_TESTS]

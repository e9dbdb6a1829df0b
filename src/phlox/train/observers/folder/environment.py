"""`environment`: the versions, hardware and seeds of a training, so that its result can be reproduced."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from phlox.backend import Device
from phlox.host.threads import cores
from phlox.train.events import plain
from phlox.version import __version__

_PACKAGES = (
    "numpy", "ml_dtypes", "msgspec", "jax", "jaxlib", "torch", "optax", "safetensors", "datasets", "tokenizers",
    "transformers", "scipy", "scikit-learn", "pillow", "isal", "numkong",
)  # fmt: skip
_SECRET = re.compile(r"(?i)(token$|passw|secret|credential|api.?key)")


def environment(device: Device | None = None, seeds: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The versions, the machine, the device, the seeds, and the commit of the program's repository, as plain values.

    Packages that are not installed are left out; no package is imported.

    >>> found = environment(seeds={"weights": 7})
    >>> found["seeds"], "numpy" in found["packages"]
    ({'weights': 7}, True)
    """
    return {
        "phlox": __version__,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": platform.platform(),
        "machine": platform.machine(),
        "processors": cores(),
        "packages": _versions(),
        "device": None if device is None else str(device),
        "git": _commit(_program_folder()),
        "seeds": plain(seeds or {}),
    }


def command_line(arguments: Sequence[str]) -> list[str]:
    """The arguments of this process, without the folder of the program, and with secrets replaced.

    >>> command_line(["/home/me/code/train.py", "--data", "digits", "--hub-token", "abc", "--api_key=123"])
    ['train.py', '--data', 'digits', '--hub-token', '***', '--api_key=***']
    """
    hidden: list[str] = []
    is_secret = False
    for number, argument in enumerate(arguments):
        name, equals, _ = argument.partition("=")
        if number == 0:
            hidden.append(os.path.basename(argument))  # noqa: PTH119 -- not a path where it is "-c"
        elif is_secret and not argument.startswith("-"):
            hidden.append("***")
        elif equals and _SECRET.search(name):
            hidden.append(f"{name}=***")
        else:
            hidden.append(argument)
        is_secret = number > 0 and argument.startswith("-") and not equals and bool(_SECRET.search(argument))
    return hidden


def _versions() -> dict[str, str]:
    versions: dict[str, str] = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _program_folder() -> Path:
    program = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(program).resolve().parent if program else Path.cwd()


def _commit(folder: Path) -> dict[str, Any] | None:
    """The commit that is checked out in a folder, and whether files differ from it; None without a repository."""
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return None
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "modified": None if changes is None else bool(changes)}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(folder), *arguments],
            capture_output=True, text=True, errors="replace", timeout=5, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None

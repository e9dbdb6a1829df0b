"""`phlox info`: what is installed: versions, engines with their devices, and caches."""

from __future__ import annotations

import argparse
import json
import os
from getpass import getuser
from importlib import import_module
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from phlox.cli.command import DONE, Command
from phlox.host.cache_folder import root
from phlox.host.page import Table, facts
from phlox.host.text import size, terminal_width


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--json", action="store_true", help="print a JSON object")


def run(options: argparse.Namespace) -> int:
    """Run the command, and return the exit status."""
    import phlox
    from phlox.train.observers.folder.environment import environment

    here = environment()
    engines = [_engine(name) for name in ("numpy", "jax", "torch")]
    caches = [_cache(name, Path(path)) for name, path in _caches().items()]
    if options.json:
        print(json.dumps({**here, "engines": engines, "caches": caches}, indent=2))
        return DONE
    about = [("phlox", f"{here['phlox']}, {Path(phlox.__file__).parent}"), ("python", here["python"])]
    about += [("platform", here["platform"]), ("processors", str(here["processors"]))]
    engine_rows = [[engine["name"], engine["version"] or "-", ", ".join(engine["devices"])] for engine in engines]
    packages = [[name, version] for name, version in here["packages"].items()]
    cache_rows = [[cache["name"], cache["path"], size(cache["bytes"])] for cache in caches]
    parts = [
        facts(about),
        Table(["engine", "version", "devices"], engine_rows, {0, 1, 2}),
        Table(["package", "version"], packages, {0, 1}),
        Table(["cache", "folder", "size"], cache_rows, {0, 1}),
    ]
    print("\n\n".join("\n".join(part.text(terminal_width())) for part in parts))
    return DONE


def _engine(name: str) -> dict[str, Any]:
    """An engine: its version, and its devices or why there are none."""
    from phlox.backend import load_backend
    from phlox.errors import EngineNotInstalledError

    try:
        backend: Any = load_backend(name)()
    except EngineNotInstalledError:
        return {"name": name, "version": None, "devices": ["not installed"]}
    count = backend.local_device_count()
    devices = [str(backend.device())] + [f"and {count - 1} more"] * (count > 1)
    return {"name": name, "version": import_module(name).__version__, "devices": devices}


def _caches() -> dict[str, str]:
    """The folders in which engines keep compiled programs, by name."""
    own = Path(gettempdir()) / f"torchinductor_{getuser()}"
    return {
        "compiled programs": str(root() or ""),
        "XLA's programs": os.environ.get("JAX_COMPILATION_CACHE_DIR", ""),
        "PyTorch's programs": os.environ.get("TORCHINDUCTOR_CACHE_DIR", str(own)),
    }


def _cache(name: str, path: Path) -> dict[str, Any]:
    files = [entry for entry in path.rglob("*") if entry.is_file()] if path.name and path.is_dir() else []
    return {"name": name, "path": str(path) if path.name else "none", "bytes": sum(f.stat().st_size for f in files)}


COMMAND = Command(
    description="Show versions, engines with their devices, installed packages that Phlox uses, and the folders of "
    "compiled programs.",
    arguments=arguments,
    run=run,
)

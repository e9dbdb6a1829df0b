"""Instructions of Python in the key paths, and what importing Phlox brings in."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable

from benchmarks.guard.counting import count
from benchmarks.guard.figures import Entry, Section, entries_of, lacking, versions_of
from benchmarks.guard.paths import PATHS, KeyPath

KEY = f"instructions, Python {sys.version_info[0]}.{sys.version_info[1]}"
IMPORT = "import phlox"

_IMPORTED = """
import json, sys
before = set(sys.modules)
import phlox
print(json.dumps(sorted(set(sys.modules) - before - set(sys.builtin_module_names))))
"""


def section(paths: Iterable[KeyPath] = PATHS) -> Section:
    """Of all paths whose packages are installed."""
    paths = list(paths)
    absent = {path.name: package for path in paths if (package := lacking(path.needs)) is not None}
    makers: dict[str, Callable[[], Entry]] = {
        path.name: lambda path=path: counted(path) for path in paths if path.name not in absent
    }
    entries, failed = entries_of(makers | {IMPORT: imported})
    return Section(KEY, entries, absent, failed)


def counted(path: KeyPath) -> Entry:
    """The instructions of a path."""
    found = count(path.make())
    parts = {name: (calls, size) for name, (calls, size) in found.functions.items()}
    return Entry({"instructions": found.instructions}, parts, versions_of(path.needs))


def imported() -> Entry:
    """Modules of Phlox, and other packages that are none of Python's own, which `import phlox` loads."""
    done = subprocess.run([sys.executable, "-c", _IMPORTED], check=True, stdout=subprocess.PIPE, text=True)
    names: list[str] = json.loads(done.stdout)
    ours = [name for name in names if name.split(".")[0] == "phlox"]
    others = {name.split(".")[0] for name in names} - {"phlox"} - sys.stdlib_module_names
    parts: dict[str, tuple[int, int]] = {}
    parts.update(dict.fromkeys((*ours, *sorted(others)), (1, 1)))
    return Entry({"modules": len(ours), "other packages": len(others)}, parts, versions_of(("numpy",)))

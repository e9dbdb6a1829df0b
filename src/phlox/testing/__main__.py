"""`python -m phlox.testing package.module:Class`: run the conformance suite on a backend, at each precision."""

from __future__ import annotations

import argparse
import sys
from typing import Any, cast

from phlox.backend import Autodiff, Backend, EngineBackend, backend_names, load, load_backend
from phlox.errors import PhloxError
from phlox.testing.suite import PARTS, Case, check_backend


def main(arguments: list[str] | None = None) -> int:
    """Run and print; returns 0 for success, 1 for failures, 2 if the suite cannot run."""
    parser = argparse.ArgumentParser(
        prog="python -m phlox.testing", description="Run the conformance suite on a backend."
    )
    parser.add_argument("backend", help=f"package.module:Class, or a name ({', '.join(backend_names())})")
    parser.add_argument("--float", action="append", metavar="ELEMENT", help="f64, f32, bf16 or f16; by default all")
    parser.add_argument("--only", metavar="TEXT", help="only cases with this text in their name")
    parser.add_argument("--part", action="append", choices=PARTS, help="a part of the suite; by default all")
    parser.add_argument("--autodiff", action="store_true", help="run it on Autodiff(backend)")
    options = parser.parse_args(arguments)
    try:
        backends = _backends(options.backend, options.float)
    except (PhloxError, ImportError, AttributeError, TypeError) as error:
        sys.stderr.write(f"phlox.testing: {options.backend}: {error}\n")
        return 2
    ok = True
    for backend in backends:
        report = check_backend(
            Autodiff(backend) if options.autodiff else backend,
            only=options.only,
            parts=options.part or PARTS,
            raises=False,
            progress=_Progress() if sys.stderr.isatty() else None,
        )
        sys.stdout.write(f"{report}\n")
        ok = ok and report.ok
    return 0 if ok else 1


class _Progress:
    """Shows the part that is running on the terminal."""

    def __init__(self) -> None:
        self.part = ""

    def __call__(self, case: Case) -> None:
        if case.part != self.part:
            self.part = case.part
            sys.stderr.write(f"\r\033[K{case.part} ...")
            sys.stderr.flush()


def _backends(location: str, elements: list[str] | None) -> list[Backend]:
    """The backend with each requested float dtype, or with each supported one."""
    cls: Any = load(location) if ":" in location else load_backend(location)
    if isinstance(cls, Backend):
        return [cls]
    if not isinstance(cls, type) or not issubclass(cls, EngineBackend):
        raise TypeError("expected a subclass of phlox.backend.EngineBackend, or an instance of one")
    return [cls(float=element) for element in cast("list[Any]", elements or list(cls.floats))]


if __name__ == "__main__":
    sys.exit(main())

"""Does Phlox work with the oldest and the newest versions that it supports of NumPy, JAX, PyTorch and msgspec?

    make versions                       ARGS="newest torch-newest", ARGS=prerelease, ARGS=--cuda-builds

The smoke suite (tests/smoke) runs in four environments, with the versions of the table `tool.phlox.versions` in
pyproject.toml; the newest JAX on the newest Python that is installed, by its name or by pyenv. They are made once; the
newest ones again when there is something newer for their Python. Two more are made by name: they hold the newest
versions of all, pre-releases too. Which of them cannot be had here is said, and that is no failure.

On Linux, PyPI has PyTorch with gigabytes of CUDA only. Without `--cuda-builds` these are not installed: an environment
for which there is no CPU build is skipped, unless it was made before.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable

from tools.environments import (
    CPU_INDEX,
    EXTRAS,
    FOLDER,
    NIGHTLY_INDEX,
    Environment,
    Skipped,
    lowest,
    most_of,
    name_of,
    newest,
    newest_of,
    newest_python,
    version_of,
)  # fmt: skip

CPU = "" if sys.platform == "darwin" else "+cpu"
"""What PyTorch's CPU builds have in their version."""

SUITE = ("pytest", "-q", "-W", "default", "-W", "error:PyTorch's compiler does not work", "-p", "no:cacheprovider")


def _lowest(cuda: bool) -> Environment:
    return Environment("lowest", lowest(*EXTRAS))


def _newest(cuda: bool) -> Environment:
    base = newest_python()  # newer engines need a newer Python
    pins = newest_of("jax", python=version_of(base).split()[0])
    return _last("newest", base) if pins is None else Environment("newest", pins, base)


def _prerelease(cuda: bool) -> Environment:
    return _last("prerelease") if (pins := newest_of("jax", pre=True)) is None else Environment("prerelease", pins)


def _torch_lowest(cuda: bool) -> Environment:
    [oldest] = [pin.removeprefix("torch==") for pin in lowest("torch") if name_of(pin) == "torch"]
    return _torch("torch-lowest", oldest, lowest(), cuda)


def _torch_newest(cuda: bool) -> Environment:
    name, pins = "torch-newest", newest_of()
    version = newest("torch", "--index-url", CPU_INDEX, like=CPU, most=most_of("torch"))
    if cuda and pins and (any_build := newest("torch", most=most_of("torch"))):
        return Environment(name, (f"torch=={any_build}", *pins))
    if not pins or not version:
        return _last(name)
    return _torch(name, version.removesuffix(CPU), pins, cuda)


def _torch_prerelease(cuda: bool) -> Environment:
    name, pins = "torch-prerelease", newest_of(pre=True)
    version = newest("torch", "--pre", "--index-url", NIGHTLY_INDEX, like=CPU)
    return Environment(name, (f"torch=={version}", *pins)) if pins and version else _last(name)


def _torch(name: str, version: str, pins: tuple[str, ...], cuda: bool) -> Environment:
    with_cuda = Environment(name, (f"torch=={version}", *pins))
    return with_cuda if cuda or with_cuda.is_there else Environment(name, (f"torch=={version}{CPU}", *pins))


def _last(name: str, base: str = sys.executable) -> Environment:
    """The environment as it was made the last time, where nobody can say what is newest."""
    try:
        pins = json.loads((FOLDER / name / "holds.json").read_text(encoding="utf-8"))["pins"]
    except OSError:
        raise Skipped("no package index says what is newest") from None
    return Environment(name, tuple(pins), base)


ENVIRONMENTS: dict[str, Callable[[bool], Environment]] = {
    "lowest": _lowest,
    "newest": _newest,
    "torch-lowest": _torch_lowest,
    "torch-newest": _torch_newest,
    "prerelease": _prerelease,
    "torch-prerelease": _torch_prerelease,
}
AT_EACH_CHANGE = ("lowest", "newest", "torch-lowest", "torch-newest")


def tried(name: str, cuda: bool) -> bool:
    """Makes an environment and runs the suite in it; False where that fails."""
    begin = time.monotonic()
    try:
        environment = ENVIRONMENTS[name](cuda)
        environment.make()
    except Skipped as reason:
        print(f"versions: {name}: skipped: {reason}", flush=True)
        return True
    except SystemExit as error:
        print(f"versions: {error}", flush=True)
        return False
    print(f"versions: {name}: {', '.join(environment.pins)}", flush=True)
    codegen = "inductor" if any(map(shutil.which, ("g++", "clang++", "cl"))) else "none"
    passed = environment.run(*SUITE, "tests/smoke", PHLOX_TORCH_CODEGEN=codegen)
    print(f"versions: {name}: {'passed' if passed else 'FAILED'} after {time.monotonic() - begin:.0f} s", flush=True)
    return passed


def main(arguments: list[str] | None = None) -> int:
    """Try the environments named, or all."""
    parser = argparse.ArgumentParser(prog="versions", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(ENVIRONMENTS)}; the first four if none"
    )
    parser.add_argument("--cuda-builds", action="store_true", help="install PyTorch from PyPI, CUDA and all")
    given = parser.parse_args(arguments)
    for name in given.names:
        if name not in ENVIRONMENTS:
            parser.error(f"there is no environment {name!r}; there are {', '.join(ENVIRONMENTS)}")
    results = [tried(name, given.cuda_builds) for name in given.names or AT_EACH_CHANGE]  # all, after a failure too
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Builds a release, checks it as a stranger would meet it, and says what is left to a person.

    make release                  ARGS=--full, ARGS="--only 3.12-jax 3.12-bare", ARGS=--files

1. The version, CHANGELOG.md and git are of one mind: a version that is not yet released, with its date.
2. An sdist, and a wheel made from it, are built twice, from the files that git tracks, and come out the same to the
   byte, whatever the clock, the time zone, the umask and the order of the files are. Every tracked file of `src` is in
   the wheel, every tracked file in the sdist, and nothing else. `twine check` passes, and what the wheel asks for is
   what pyproject.toml says.
3. The unpacked sdist passes its own tests: those of `make test`, or with `--full` those of `make test-all`.
4. The wheel is installed in an environment for each Python that is promised and found here, with NumPy alone and with
   each extra, and tools/release_smoke.py is run there, outside of the checkout. What an extra installs is kept in
   .venv-versions for the next time, unless `--fresh`; the wheel is installed each time.
5. A bill of materials (CycloneDX) in build/ says what the wheel with all extras was tried with.

`--files` does the second alone, on the files as they are: a part of `.ci/run`. PyTorch is a CPU build; where none can
be had for a Python, its environments are skipped, and the table says so.
"""

from __future__ import annotations

import argparse
import datetime
import email
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path, PurePosixPath
from typing import Any

from tools.environments import ROOT, Environment, Skipped, name_of, of_extra, project, requirements
from tools.versions import CPU

DIST = ROOT / "dist"
SBOMS = ROOT / "build"
BUILDERS = ("build==1.6.1", "hatchling==1.33.0", "twine==7.0.0", "readme_renderer[md]==46.0")
"""Pinned, so that whoever builds a release again gets the same bytes."""
SBOM_TOOL = "cyclonedx-bom==7.5.0"
TORCH = next(one for one in project()["optional-dependencies"]["test"] if name_of(one) == "torch") + CPU
"""The PyTorch that is installed for `torch` and `all`."""

GENERATED = {"PKG-INFO"}
"""What the sdist has and git has not."""
DIST_INFO = {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE", "licenses/src/phlox/data/DIGITS.md"}


class Wrong(Exception):
    """A check that failed; the message says how."""


# ------------------------------------------------------------------------------------------------------ pure parts


@dataclass(frozen=True)
class Section:
    """A release in CHANGELOG.md."""

    version: str
    date: str | None
    text: str


def sections(changelog: str) -> list[Section]:
    """The releases of a changelog, newest first; what is not yet released is called "Unreleased".

    >>> [(one.version, one.date) for one in sections("# C\\n## [Unreleased]\\n\\n## [0.2.0] - 2026-11-26\\n\\n- a\\n")]
    [('Unreleased', None), ('0.2.0', '2026-11-26')]
    """
    parts = re.split(r"^## \[(.*?)\](.*)$", changelog, flags=re.MULTILINE)[1:]
    return [
        Section(version, date.strip(" -") or None, text.strip())
        for version, date, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    ]


def numbers(version: str) -> tuple[int, ...]:
    """The numbers of a version.

    >>> numbers("0.10.2") > numbers("0.9.0")
    True
    """
    if not re.fullmatch(r"\d+(\.\d+)*", version):
        raise Wrong(f"{version} is no version of a release")
    return tuple(map(int, version.split(".")))


def check_version(version: str, changelog: str, tags: Iterable[str], tag: str | None = None) -> str:
    """Is this version in the changelog, above all that were released, and not yet tagged? Gives its date.

    With a `tag`, it is being released by that tag, which then has to be its own.
    """
    unreleased, *released = sections(changelog) or [Section("", None, "")]
    if unreleased.version != "Unreleased":
        raise Wrong("CHANGELOG.md does not begin with [Unreleased]")
    if unreleased.text:
        raise Wrong(f"CHANGELOG.md has entries under [Unreleased]: move them to [{version}]")
    if not released or released[0].version != version:
        raise Wrong(f"CHANGELOG.md does not have [{version}] after [Unreleased]")
    if len(released) > 1 and numbers(version) <= numbers(released[1].version):
        raise Wrong(f"{version} is not above {released[1].version}, the last release in CHANGELOG.md")
    if tag not in (None, f"v{version}"):
        raise Wrong(f"the tag {tag} is not that of {version}, which is v{version}")
    if tag is None and f"v{version}" in tags:
        raise Wrong(f"{version} has a tag, so it was released: raise src/phlox/version.py")
    date = released[0].date
    try:
        datetime.date.fromisoformat(date or "")
    except ValueError:
        raise Wrong(f"CHANGELOG.md has no date for [{version}]: write ## [{version}] - YYYY-MM-DD") from None
    return date or ""


def differences(what: str, found: Iterable[str], expected: Iterable[str]) -> list[str]:
    """What an archive lacks of these files, and what it has besides.

    >>> differences("the wheel", ["a", "b"], ["b", "c"])
    ['the wheel lacks c', 'the wheel has a, which git does not track']
    """
    found, expected = set(found), set(expected)
    lines = [f"{what} lacks {one}" for one in sorted(expected - found)]
    return lines + [f"{what} has {one}, which git does not track" for one in sorted(found - expected)]


def of_wheel(tracked: Iterable[str], dist_info: str) -> set[str]:
    """The files that a wheel has to have.

    >>> sorted(of_wheel(["src/phlox/py.typed", "docs/a.md"], "phlox-1.dist-info"))[-1]
    'phlox/py.typed'
    """
    inside = {path.removeprefix("src/") for path in tracked if path.startswith("src/")}
    return inside | {f"{dist_info}/{name}" for name in DIST_INFO}


def requirement_key(text: str) -> tuple[str, ...]:
    """A requirement of a wheel's metadata or of pyproject.toml, in a form in which both can be compared.

    >>> requirement_key("Phlox[jax,data]>=1; extra == 'x'") == requirement_key('phlox[data,jax] >= 1 ; extra == "x"')
    True
    """
    plain, _, marker = text.lower().replace('"', "'").replace(" ", "").partition(";")
    found = re.fullmatch(r"([\w.-]+)(?:\[(.*?)\])?(.*)", plain)
    if found is None:
        raise Wrong(f"{text!r} is no requirement")
    extras, versions = (",".join(sorted((part or "").split(","))) for part in (found[2], found[3]))
    return re.sub(r"[-_.]+", "-", found[1]), extras, versions, marker.replace("(", "").replace(")", "")


def asked_for() -> set[tuple[str, ...]]:
    """The requirements that pyproject.toml has, as metadata have them: without extras that are made of others."""
    here = project()
    wanted = {requirement_key(one) for one in here["dependencies"]}
    for extra in here["optional-dependencies"]:
        for one in of_extra(extra):
            plain, _, marker = one.partition(";")
            wanted.add(requirement_key(f"{plain}; {marker + ' and ' if marker else ''}extra == '{extra}'"))
    return wanted


def check_metadata(metadata: Message, version: str) -> None:
    """Do a wheel's metadata say what pyproject.toml says?"""
    here = project()
    for key, expected in (
        ("Name", here["name"]), ("Version", version), ("Requires-Python", here["requires-python"]),
        ("Description-Content-Type", "text/markdown"), ("License-Expression", here["license"]),
    ):  # fmt: skip
        if metadata[key] != expected:
            raise Wrong(f"the metadata have {key} {metadata[key]!r}, not {expected!r}")
    extras = {str(one) for one in metadata.get_all("Provides-Extra", [])}
    if extras != set(here["optional-dependencies"]):
        raise Wrong(f"the metadata have the extras {sorted(extras)}")
    found = {requirement_key(str(one)) for one in metadata.get_all("Requires-Dist", [])}
    if different := found ^ asked_for():
        raise Wrong(f"pyproject.toml and the metadata do not ask for the same: {sorted(different)}")


def entry_problems(sdist: Path, wheel: Path, epoch: int) -> list[str]:
    """What depends on who builds, and when: modes, owners and times of the entries of both archives."""
    with tarfile.open(sdist) as archive:
        found = [(one.name, one.mode, (one.uid, one.gid, one.uname, one.gname), one.mtime) for one in archive]
    with zipfile.ZipFile(wheel) as archive:
        for one in archive.infolist():
            time = datetime.datetime(*one.date_time, tzinfo=datetime.UTC).timestamp()
            found.append((one.filename, one.external_attr >> 16 & 0o777, (0, 0, "", ""), int(time)))
    even = epoch - epoch % 2  # a zip file has every other second
    return [
        f"{name} has the mode {mode:o}, the owner {owner}, the time {time}"
        for name, mode, owner, time in found
        if mode not in (0o644, 0o755) or owner != (0, 0, "", "") or time not in (epoch, even)
    ]


def sbom_problems(sbom: dict[str, Any], version: str, installed: Iterable[str]) -> list[str]:
    """What a bill of materials lacks: Phlox and its version, and each of the packages as `name==version`."""
    root = sbom.get("metadata", {}).get("component", {})
    there = {f"{one['name']}=={one['version']}": one.get("purl") for one in sbom.get("components", [])}
    lines = [] if sbom.get("bomFormat") == "CycloneDX" else ["it is not of CycloneDX"]
    if (root.get("name"), root.get("version")) != ("phlox", version):
        lines.append(f"it is of {root.get('name')} {root.get('version')}")
    return lines + [f"it lacks {one}" for one in sorted(installed) if not there.get(one)]


def relative_links(page: str) -> list[str]:
    """Links of a Markdown page that lead nowhere on PyPI.

    >>> relative_links("[a](docs/a.md#x) [b](https://b.org) ![c](c.svg) [d](#d)")
    ['c.svg', 'docs/a.md']
    """
    text = re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'<img[^>]* src="([^"]+)"', text)
    found = [one.partition("#")[0] for one in found if not re.match(r"[a-z]+:", one)]
    return sorted({one for one in found if one})


def promised() -> list[str]:
    """The Pythons of pyproject.toml.

    >>> promised()[0]
    '3.11'
    """
    return re.findall(r"Python :: (3\.\d+)", "\n".join(project()["classifiers"]))


def extras() -> list[str]:
    """The environments for each Python: NumPy alone, and each extra for users.

    >>> extras()[:3]
    ['bare', 'jax', 'torch']
    """
    return ["bare", *(one for one in project()["optional-dependencies"] if one not in ("test", "lint", "docs"))]


def pins_of(extra: str) -> tuple[str, ...]:
    """What the environment of an extra holds besides the wheel; PyTorch as a CPU build, at one version.

    >>> [pin for pin in pins_of("torch") if pin.startswith("torch")] == [TORCH]
    True
    """
    wanted = requirements() if extra == "bare" else requirements(extra)
    return tuple(TORCH if name_of(one) == "torch" else one for one in wanted)


def table(rows: list[Row]) -> str:
    """What was checked, and how it went."""
    wide = max(len(row.what) for row in rows)
    return "\n".join(f"{row.what:<{wide}}  {row.result:<7}  {row.seconds:4.0f} s  {row.note}".rstrip() for row in rows)


def left_to_do(version: str, links: list[str], skipped: list[str]) -> str:
    """What a person does after `make release`."""
    steps = [
        f"git tag -a v{version} -m 'Phlox {version}'",
        f"git push origin main v{version}     (a tag starts .github/workflows/release.yml, which publishes)",
        f"without that workflow: twine upload dist/phlox-{version}*",
        f"in a new environment: pip install phlox=={version}; phlox demo",
        f"announce it, with the section [{version}] of CHANGELOG.md",
    ]
    before: list[str] = []
    if skipped:
        before.append(f"on a machine that has what was missing here: {', '.join(skipped)}")
    if not project().get("urls"):
        before.append("once: give pyproject.toml [project.urls], and create the publisher of PyPI and its environment")
    if links:
        before.append(f"README.md has {len(links)} relative links, which lead nowhere on PyPI: make them absolute")
    return "\n".join(f"  {i}. {step}" for i, step in enumerate([*before, *steps], 1))


# ---------------------------------------------------------------------------------------------------- what it runs


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    what: str
    result: str
    note: str
    seconds: float


@dataclass
class Release:
    """A release that is being checked."""

    rows: list[Row] = field(default_factory=list[Row])
    version: str = ""

    def check(self, what: str, run: Callable[[], str]) -> bool:
        """Run one check, which gives a note, and keep how it went; False if it failed."""
        print(f"release: {what} ...", flush=True)
        begin, result = time.monotonic(), "ok"
        try:
            note = run()
        except Skipped as reason:
            result, note = "skipped", str(reason)
        except (Wrong, SystemExit) as error:
            result, note = "FAILED", str(error)
            print(f"release: {what}: {note}", flush=True)
        self.rows.append(Row(what, result, (note.splitlines() or [""])[0][:100], time.monotonic() - begin))
        return result != "FAILED"

    @property
    def failed(self) -> bool:
        """Did anything fail?"""
        return any(row.result == "FAILED" for row in self.rows)


def git(*arguments: str) -> str:
    """What git says."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Wrong(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def tracked() -> list[str]:
    """The files that git tracks and that are there."""
    return [one for one in git("ls-files", "-z").split("\0") if one and (ROOT / one).exists()]


def clean() -> str:
    """Is the tree what git has?"""
    if changes := git("status", "--porcelain"):
        raise Wrong(f"the tree is not clean:\n{changes}")
    return f"commit {git('rev-parse', '--short', 'HEAD').strip()}"


def version_here() -> str:
    """The version of this source."""
    text = (ROOT / "src" / "phlox" / "version.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "(.*)"$', text, re.MULTILINE)
    if found is None:
        raise Wrong("src/phlox/version.py has no line __version__")
    return found[1]


def builders() -> Environment:
    """The environment of the tools that build and check archives."""
    environment = Environment("release-builders", BUILDERS, chosen=False)
    environment.make()
    return environment


def epoch() -> int:
    """The time of the last commit, which is that of all entries of the archives."""
    return int(git("log", "-1", "--format=%ct"))


def build(into: Path, tools: Environment, *, elsewhere: bool = False) -> tuple[Path, Path]:
    """The sdist, and the wheel that is made from it, of the files that git tracks.

    `elsewhere`: as on another machine, with another umask, time zone, order and age of the files.
    """
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "phlox"
        for name in reversed(tracked()) if elsewhere else tracked():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
            if elsewhere:
                os.utime(source / name, (0, 1e9))
                (source / name).chmod(0o700 if os.access(source / name, os.X_OK) else 0o600)
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch()), **({"TZ": "Asia/Tokyo"} if elsewhere else {})}
        command = [str(tools.python), "-m", "build", "--no-isolation", "--outdir", str(into), str(source)]
        umask = 0o077 if elsewhere else -1
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, umask=umask)
    if done.returncode:
        raise Wrong(f"the build failed:\n{done.stdout}{done.stderr}")
    [sdist], [wheel] = into.glob("*.tar.gz"), into.glob("*.whl")
    return sdist, wheel


def built(version: str) -> str:
    """Build both twice, and put them into dist/."""
    tools = builders()
    with tempfile.TemporaryDirectory() as folder:
        twice = [build(Path(folder) / "a", tools), build(Path(folder) / "b", tools, elsewhere=True)]
        for one, other in zip(*twice, strict=True):
            if one.read_bytes() != other.read_bytes():
                raise Wrong(f"{one.name} is not the same when it is built again")
        if lines := entry_problems(*twice[0], epoch()):
            raise Wrong("\n".join(lines))
        shutil.rmtree(DIST, ignore_errors=True)
        DIST.mkdir()
        for one in twice[0]:
            shutil.copy(one, DIST)
    names = {path.name for path in DIST.iterdir()}
    if names != {f"phlox-{version}.tar.gz", f"phlox-{version}-py3-none-any.whl"}:
        raise Wrong(f"the build made {sorted(names)}")
    return ", ".join(f"{path.name} {path.stat().st_size / 1e6:.1f} MB" for path in sorted(DIST.iterdir()))


def archives(version: str) -> tuple[Path, Path]:
    """The sdist and the wheel in dist/."""
    return DIST / f"phlox-{version}.tar.gz", DIST / f"phlox-{version}-py3-none-any.whl"


def contents(version: str) -> str:
    """Is everything in the archives, and nothing else?"""
    sdist, wheel = archives(version)
    files = tracked()
    with tarfile.open(sdist) as archive:
        inside = [str(PurePosixPath(*PurePosixPath(one.name).parts[1:])) for one in archive if not one.isdir()]
    lines = differences("the sdist", set(inside) - GENERATED, files)
    with zipfile.ZipFile(wheel) as archive:
        lines += differences("the wheel", archive.namelist(), of_wheel(files, f"phlox-{version}.dist-info"))
    if lines:
        raise Wrong("\n".join(lines))
    return f"{len(files)} files"


def metadata(version: str) -> str:
    """Do the metadata say what they should, and is the page rendered?"""
    sdist, wheel = archives(version)
    with zipfile.ZipFile(wheel) as archive:
        check_metadata(email.message_from_bytes(archive.read(f"phlox-{version}.dist-info/METADATA")), version)
    command = [str(builders().python), "-m", "twine", "check", "--strict", str(sdist), str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Wrong(done.stdout + done.stderr)
    return "twine check passed"


def own_tests(version: str, full: bool) -> str:
    """The tests of the unpacked sdist, with this Python's packages and none of the checkout."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(archives(version)[0]) as archive:
            archive.extractall(folder, filter="data")
        there = Path(folder) / f"phlox-{version}"
        environment = {**os.environ, "PYTHONPATH": str(there / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        where = [sys.executable, "-c", "import phlox; print(phlox.__file__)"]
        found = subprocess.run(where, cwd=there, env=environment, capture_output=True, text=True, check=True).stdout
        if not Path(found.strip()).is_relative_to(there):
            raise Wrong(f"the tests of the sdist would try {found.strip()}")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--dist", "worksteal"]
        command += ["--numprocesses", "auto", *(() if full else ("-m", "not full"))]
        lines: list[str] = []
        with subprocess.Popen(command, cwd=there, env=environment, stdout=subprocess.PIPE, text=True) as process:
            for line in process.stdout or ():
                print(line, end="", flush=True)
                lines.append(line.strip("= \n"))
    last = lines[-1] if lines else "the tests printed nothing"
    if process.returncode:
        raise Wrong(last)
    return last


def python_for(version: str) -> str:
    """An interpreter of this version: this one, one of the PATH, or one of pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    pyenvs = sorted(pyenv.glob(f"{version}.*"), key=lambda path: [int(n) for n in re.findall(r"\d+", path.name)])
    candidates = [sys.executable, shutil.which(f"python{version}"), *(str(one / "bin/python") for one in pyenvs[::-1])]
    code = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
    for one in candidates:
        if one is None:
            continue
        done = subprocess.run([one, "-c", code], capture_output=True, text=True, check=False)
        if done.returncode == 0 and done.stdout.strip() == version:
            return one
    raise Skipped(f"there is no Python {version} here")


def environment_of(python: str, extra: str) -> Environment:
    """Where the wheel is tried on a Python with an extra."""
    return Environment(f"release-{python}-{extra}", pins_of(extra), base=python_for(python), chosen=False)


def installed(version: str, python: str, extra: str, fresh: bool) -> str:
    """Install the wheel with an extra, and try it."""
    environment = environment_of(python, extra)
    if fresh:
        shutil.rmtree(environment.folder, ignore_errors=True)
    environment.make()
    wheel = archives(version)[1]
    wanted = str(wheel) if extra == "bare" else f"{wheel}[{extra}]"
    for command in (
        ("install", "--quiet", "--no-index", "--no-deps", "--force-reinstall", str(wheel)),
        ("install", "--quiet", "--no-index", wanted),  # fails if the wheel asks for more than the environment holds
        ("check",),
    ):
        if (done := environment.pip(*command)).returncode:
            raise Wrong(f"pip {' '.join(command)}: {done.stdout}{done.stderr}")
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(ROOT / "tools" / "release_smoke.py", folder)
        variables = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PHLOX_"))}
        command = [str(environment.python), "-I", "release_smoke.py", extra]
        done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = f"{done.stdout}{done.stderr}".strip().splitlines() or ["it ended without a word"]
        raise Wrong("\n".join([lines[-1], *lines]))  # the error, then how it came to it
    return ", ".join(main_packages(environment))


def sbom(version: str, environment: Environment) -> str:
    """Write the bill of materials of an environment in which the wheel is installed."""
    if not environment.is_there:
        raise Skipped(f"there is no environment {environment.name}")
    tool = Environment("release-sbom", (SBOM_TOOL,), chosen=False)
    tool.make()
    file = SBOMS / f"phlox-{version}.cdx.json"
    file.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        here, dynamic = Path(folder) / "pyproject.toml", 'dynamic = ["version"]'  # which the tool does not look up
        text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        here.write_text(text.replace(dynamic, f'version = "{version}"'), encoding="utf-8")
        options = ["--output-reproducible", "--mc-type", "library", "--pyproject", str(here)]
        command = [str(tool.python), "-m", "cyclonedx_py", "environment", *options, str(environment.python)]
        variables = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch())}
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Wrong(done.stderr)
    found = json.loads(done.stdout)
    installed = environment.pip("list", "--format", "freeze", "--exclude", "phlox").stdout.split()
    if lines := sbom_problems(found, version, installed):
        raise Wrong("\n".join(lines))
    file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return f"{file.parent.name}/{file.name}, {len(installed)} packages"


def main_packages(environment: Environment) -> list[str]:
    """The versions of the engines that it holds."""
    listed = environment.pip("list", "--format", "freeze").stdout.splitlines()
    return [line.replace("==", " ") for line in listed if line.partition("==")[0] in ("numpy", "jax", "torch", "onnx")]


def main(arguments: list[str] | None = None) -> int:
    """Build, check, and say what is left."""
    parser = argparse.ArgumentParser(
        prog="release", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--full", action="store_true", help="run all tests of the sdist, not only those of `make test`")
    parser.add_argument("--files", action="store_true", help="build and check the files alone, on a tree as it is")
    parser.add_argument("--tag", help="it is being released by this tag; then nothing may be skipped")
    parser.add_argument("--fresh", action="store_true", help="make all environments anew")
    parser.add_argument("--only", nargs="+", metavar="ENV", help="only these environments: 3.12-jax, 3.11-bare, ...")
    given = parser.parse_args(arguments)
    environments = [(python, extra) for python in promised() for extra in extras()]
    for one in given.only or ():
        if one not in {"-".join(pair) for pair in environments}:
            parser.error(f"there is no environment {one!r}; one is {'-'.join(environments[0])}")

    release, version = Release(), version_here()
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if not given.files:
        tags = git("tag").split()
        release.check("version", lambda: f"{version}, {check_version(version, changelog, tags, given.tag)}")
        release.check("tree", clean)
    if release.check("build", lambda: built(version)) and release.rows[-1].result == "ok":
        release.check("contents", lambda: contents(version))
        release.check("metadata", lambda: metadata(version))
        if not given.files:
            if not given.only:
                release.check("tests of the sdist", lambda: own_tests(version, given.full))
            for python, extra in environments:
                if not given.only or f"{python}-{extra}" in given.only:
                    release.check(
                        f"{python} {extra}",
                        lambda python=python, extra=extra: installed(version, python, extra, given.fresh),
                    )
            if not given.only:
                release.check("bill of materials", lambda: sbom(version, environment_of(promised()[0], "all")))
    print(f"\nPhlox {version}\n{table(release.rows)}")
    skipped = [row.what for row in release.rows if row.result == "skipped"]
    if given.tag and skipped:
        print(f"\nNot ready: a tag is released only where nothing is skipped, but {', '.join(skipped)} was")
        return 1
    if not given.files and not release.failed:
        links = relative_links((ROOT / "README.md").read_text(encoding="utf-8"))
        print(f"\nLeft to a person:\n{left_to_do(version, links, skipped)}")
    elif release.failed:
        print("\nNot ready: see FAILED above")
    return 1 if release.failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Do the tests of `make test` notice mistakes? Random ones are made in a copy of the sources, one at a time.

    python -m tools.mutants --number 20 --seed 0
    python -m tools.mutants --number 5 --area metrics

A mutant is one change: an operator or a comparison swapped, a number off by one, a condition negated, a statement left
out. The tests of its area, those of `make test`, run against it, the file's own first; one that passes them all
survives, and is shown. Look at each survivor: it is a test that is missing, or a change without effect. The same seed
makes the same mutants; `--full` takes the tests of `make test-all`.

DeMillo, Lipton, Sayward 1978: "Hints on test data selection: help for the practicing programmer".
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LIMIT = 900
"""Seconds that the tests may take; a mutant that keeps them busy for longer is noticed."""

AREAS: dict[str, list[str]] = {
    "autodiff/rules": ["tests/tensor/test_conformance.py", "tests/autodiff", "tests/transform/test_derivatives.py"],
    "record/formats": ["tests/record"],
    "optim/rules": ["tests/optim"],
    "metrics": ["tests/metrics"],
    "train/loop": ["tests/train"],
}
"""Folder below src/phlox -> the tests that should notice."""

SWAPPED: dict[type[ast.AST], Callable[[], Any]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.And: ast.Or, ast.Or: ast.And,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
"""Operator -> what is written instead."""

FOREIGN = {"float_mul": "float_add", "float_add": "float_sub", "float_sub": "float_add", "float_div": "float_mul"}
"""The same for operations of a backend."""


@dataclass(frozen=True)
class Mutant:
    """A file with one change."""

    path: Path
    line: int
    what: str
    text: str


def runs(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that are run when the module is used: no annotations, docstrings, error messages or lists of names."""
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params") or isinstance(
            node, ast.Raise | ast.Assert
        ):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.Import | ast.ImportFrom | ast.JoinedStr):
                continue
            if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                continue
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if isinstance(child, ast.Assign) and "__all__" in ast.unparse(child.targets[0]):
                continue
            yield from runs(child)


def changes(node: Any) -> Iterator[tuple[str, Callable[[], None]]]:
    """What could be changed at a node: its description, and what changes it in place."""
    if isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp) and type(node.op) in SWAPPED:
        new = SWAPPED[type(node.op)]()
        yield type(new).__name__, lambda: setattr(node, "op", new)
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPPED:
        compared = SWAPPED[type(node.ops[0])]()
        yield type(compared).__name__, lambda: node.ops.__setitem__(0, compared)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield str(not node.value), lambda: setattr(node, "value", not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        more = node.value + 1
        yield f"{more}", lambda: setattr(node, "value", more)
    elif isinstance(node, ast.Attribute) and node.attr in FOREIGN:
        yield FOREIGN[node.attr], lambda: setattr(node, "attr", FOREIGN[node.attr])
    elif isinstance(node, ast.If | ast.While | ast.IfExp):
        yield "the condition negated", lambda: setattr(node, "test", ast.UnaryOp(ast.Not(), node.test))
    for field in ("body", "orelse", "finalbody"):
        block = getattr(node, field, None)
        if isinstance(block, list) and not isinstance(node, ast.Module | ast.ClassDef):
            for at, statement in enumerate(block):
                if isinstance(statement, ast.AugAssign) or (
                    isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
                ):
                    left_out = f"left out: {ast.unparse(statement).splitlines()[0]}"
                    yield left_out, lambda block=block, at=at: block.__setitem__(at, ast.Pass())


def mutants_of(path: Path) -> Iterator[Callable[[], Mutant]]:
    """Every mutant of a file, each made when it is called."""
    text = path.read_text(encoding="utf-8")
    places = [
        (n, m)
        for n, node in enumerate(runs(ast.parse(text)))
        for m, _ in enumerate(changes(node))
    ]  # fmt: skip

    def made(n: int, m: int) -> Mutant:
        tree = ast.parse(text)
        node: Any = list(runs(tree))[n]
        what, change = list(changes(node))[m]
        line, before = getattr(node, "lineno", 0), ast.unparse(node).splitlines()[0]
        change()
        ast.fix_missing_locations(tree)
        told = what if what.startswith("left out") else f"{before[:80]}  ->  {what}"
        return Mutant(path, line, told, ast.unparse(tree) + "\n")

    for n, m in places:
        yield lambda n=n, m=m: made(n, m)


def own_tests(path: Path) -> list[str]:
    """The file of tests that mirrors a module, or else the folder.

    >>> own_tests(ROOT / "src/phlox/train/loop/batch_stream.py"), own_tests(ROOT / "src/phlox/optim/rules/sgd.py")
    (['tests/train/loop/test_batch_stream.py'], ['tests/optim/rules'])
    """
    mirror = Path("tests", *path.relative_to(ROOT / "src").parts[1:]).with_name(f"test_{path.name}")
    return [str(test) for test in (mirror, mirror.parent) if (ROOT / test).exists()][:1]


def is_noticed(mutant: Mutant, sources: Path, area: list[str], chosen: list[str]) -> bool:
    """Does a test fail with it? The file of the copy is as it was afterwards."""
    there = sources / mutant.path.relative_to(ROOT / "src")
    there.write_text(mutant.text, encoding="utf-8")
    try:
        return any(fails(sources, tests, chosen) for tests in (own_tests(mutant.path), area) if tests)
    finally:
        shutil.copy(mutant.path, there)


def fails(sources: Path, tests: list[str], chosen: list[str]) -> bool:
    """Does one of the tests fail with these sources?"""
    command = [sys.executable, "-m", "pytest", "-x", "-q", *chosen, "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(sources), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=LIMIT, check=False)
    except subprocess.TimeoutExpired:
        return True
    if done.returncode not in (0, 1, 2, 3, 4, 5):
        raise SystemExit(f"{' '.join(command)} could not be run: {done.stderr.decode()[-500:]}")
    return done.returncode not in (0, 5)


def main(arguments: list[str] | None = None) -> int:
    """Make so many mutants, and tell which of them survive."""
    parser = argparse.ArgumentParser(prog="mutants", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--number", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--area", choices=AREAS, action="append", help="only this folder")
    parser.add_argument("--full", action="store_true", help="with the tests of `make test-all`")
    given = parser.parse_args(arguments)
    chance = random.Random(given.seed)
    areas = given.area or list(AREAS)
    chosen = [] if given.full else ["-m", "not full"]
    survivors: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        sources = Path(folder) / "src"
        shutil.copytree(ROOT / "src", sources, ignore=shutil.ignore_patterns("__pycache__"))
        for n in range(given.number):
            area = areas[n % len(areas)]
            files = [
                path for path in sorted((ROOT / "src" / "phlox" / area).rglob("*.py")) if path.name != "__init__.py"
            ]
            candidates = [one for path in files for one in mutants_of(path)]
            mutant = chance.choice(candidates)()
            noticed = is_noticed(mutant, sources, AREAS[area], chosen)
            line = f"{mutant.path.relative_to(ROOT)}:{mutant.line}: {mutant.what}"
            print(f"{'killed  ' if noticed else 'SURVIVED'} {line}", flush=True)
            if not noticed:
                survivors.append(line)
    print(f"{given.number - len(survivors)} of {given.number} mutants were killed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())

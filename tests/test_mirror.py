"""The tests mirror the source: what tests src/phlox/x/y.py is tests/x/test_y.py, or says otherwise in its head.

Serves: tests/

A module is served by `tests/x/test_y.py`, by `tests/x/test_y_*.py` beside it, or by a suite, such as one driven by a
table, whose docstring has lines like this one's: `Serves:` and paths, of files or of folders (with what is below them),
from src/ or the root of the repository; `x/{y,z}.py` are two. Modules without behaviour need no test: those in which
nothing is written that could be called.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE, TESTS = ROOT / "src", ROOT / "tests"
LEAST_SERVED = 0.9

SUITES = sorted(path for path in TESTS.rglob("test_*.py"))
MODULES = sorted(path for path in (SOURCE / "phlox").rglob("*.py") if path.name != "__init__.py")


def is_stub(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Is nothing done in it, as in an overload, a protocol, or a declaration that says `...` or raises?"""
    decorators = {ast.unparse(decorator).rpartition(".")[2] for decorator in function.decorator_list}
    if decorators & {"overload", "abstractmethod"}:
        return True
    rest = [line for line in function.body if not (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant))]
    return all(isinstance(line, (ast.Pass, ast.Raise)) for line in rest)


def has_behaviour(text: str) -> bool:
    """Is there a function with a body, a lambda, or a name that is given to a function of an engine's?"""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not is_stub(node):
            return True
        if isinstance(node, ast.Lambda):
            return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "staticmethod":
            return True
    return False


def served_paths(text: str) -> list[str]:
    """What the head of a suite says that it serves."""
    lines = (ast.get_docstring(ast.parse(text)) or "").splitlines()
    paths = [path for line in lines if line.startswith("Serves:") for path in line.removeprefix("Serves:").split(", ")]
    return [path for one in paths for path in expanded(one.strip())]


def expanded(path: str) -> list[str]:
    """The paths that one with braces stands for, as in a shell."""
    before, brace, rest = path.partition("{")
    names, _, after = rest.partition("}")
    return [f"{before}{name}{after}" for name in names.split(",")] if brace else [path]


def located(path: str) -> Path | None:
    return next((base / path for base in (SOURCE, ROOT) if (base / path).exists()), None)


@cache
def serves(suite: Path) -> list[str]:
    return served_paths(suite.read_text(encoding="utf-8"))


def mirrors(suite: Path, module: Path) -> bool:
    name = suite.stem.removeprefix("test_")
    at_its_place = module.parent == SOURCE / "phlox" / suite.parent.relative_to(TESTS)
    return at_its_place and (name == module.stem or name.startswith(f"{module.stem}_"))


@cache
def told() -> set[Path | None]:
    """What the heads of all suites name."""
    return {located(path) for suite in SUITES for path in serves(suite)}


def is_served(module: Path) -> bool:
    return not told().isdisjoint({module, *module.parents}) or any(mirrors(suite, module) for suite in SUITES)


def test_nine_of_ten_modules_have_a_test() -> None:
    wanted = [module for module in MODULES if has_behaviour(module.read_text(encoding="utf-8"))]
    missing = [str(module.relative_to(SOURCE)) for module in wanted if not is_served(module)]
    assert len(wanted) > 300
    assert len(missing) <= (1 - LEAST_SERVED) * len(wanted), "\n".join([f"no test of {len(missing)}:", *missing])


def test_every_suite_has_something_to_test() -> None:
    """A suite stands where its module does; and what a head names is there."""
    wrong = [
        f"{suite.relative_to(ROOT)} serves {path}, which is not there"
        for suite in SUITES
        for path in serves(suite)
        if located(path) is None
    ]
    wrong += [
        f"{suite.relative_to(ROOT)}: no such module: say what it `Serves:`"
        for suite in SUITES
        if not serves(suite) and not any(mirrors(suite, module) for module in MODULES)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "text, expected",
    [
        ('"""Types."""\nfrom x import y\nA = list[int]\nSIZES = (1, 2)\n', False),
        ('class A(Protocol):\n    def f(self) -> int:\n        """An int."""\n        ...\n', False),
        ("@overload\ndef f(x: int) -> int: return 1\n", False),
        ('class A:\n    x: int = 3\n    def f(self):\n        """None."""\n        raise NotImplementedError\n', False),
        ("def f(x): return x\n", True),
        ("class A:\n    def f(self, x):\n        yield x\n", True),
        ('TABLE = {"exp": lambda x: x}\n', True),
        ("class A:\n    exp = staticmethod(np.exp)\n", True),
    ],
)
def test_what_has_behaviour(text: str, expected: bool) -> None:
    assert has_behaviour(text) == expected


def test_what_a_head_says() -> None:
    text = '"""Much.\n\nServes: a/, b/c.py\nServes: d.py, e/{f,g}.py\n"""\n'
    assert served_paths(text) == ["a/", "b/c.py", "d.py", "e/f.py", "e/g.py"]
    assert served_paths('"""Much, Serves: nothing."""\n') == []
    assert served_paths("x = 1\n") == []

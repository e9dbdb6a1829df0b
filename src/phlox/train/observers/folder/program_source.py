"""The source of classes of the program itself, which no other program can import."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable
from pathlib import Path

from phlox.errors import RunError


def source_of(names: Iterable[str], module: str = "__main__") -> str:
    """A program that defines these classes and functions, and nothing else of the program that is running.

    It consists of the statements that define them, and of all that these use: imports, constants, functions and other
    classes of the top level. In a notebook the cells that ran are the program; a name has its last definition.

    Raises `RunError` if the source is not known, or defines a name only within other statements.
    """
    text = _text_of(module)
    tree = ast.parse(text)
    statements: dict[str, ast.stmt] = {}
    for statement in tree.body:
        for name in _defined(statement):
            statements[name] = statement
    kept: dict[int, ast.stmt] = {
        statement.lineno: statement
        for statement in tree.body
        if isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
    }
    wanted = [name.partition(".")[0] for name in names]
    if missing := [name for name in wanted if name not in statements]:
        raise RunError(f"{missing[0]} is defined neither at the top level of the program nor in one of its imports")
    while wanted:
        statement = statements[wanted.pop()]
        if kept.setdefault(statement.lineno, statement) is statement and not isinstance(
            statement, ast.Import | ast.ImportFrom
        ):
            used = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
            wanted += [name for name in used if name in statements and statements[name].lineno not in kept]
    lines = text.splitlines()
    parts: list[str] = []
    for statement in sorted(kept.values(), key=lambda statement: statement.lineno):
        first = min([statement.lineno, *(each.lineno for each in getattr(statement, "decorator_list", []))])
        parts.append("\n".join(lines[first - 1 : statement.end_lineno]))
    return "\n\n".join(parts) + "\n"


def _text_of(module: str) -> str:
    """The source of a module; in a notebook, all cells that ran, without those that are no Python."""
    there = sys.modules[module]
    file, cells = getattr(there, "__file__", None), getattr(there, "In", None)
    if file is not None and Path(file).is_file():
        return Path(file).read_text(encoding="utf-8")
    if isinstance(cells, list):
        return "\n".join(cell for cell in map(str, cells) if _is_python(cell))  # pyright: ignore[reportUnknownArgumentType]
    raise RunError("the program was typed into an interpreter, which keeps no source")


def _is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    return True


def _defined(statement: ast.stmt) -> list[str]:
    """The names that a statement of the top level defines."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [statement.name]
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name.partition(".")[0] for alias in statement.names]
    if isinstance(statement, (ast.Assign, ast.AnnAssign, getattr(ast, "TypeAlias", ast.Assign))):
        return [
            node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        ]
    if isinstance(statement, ast.Try | ast.If):  # an import that may fail, or that only a type checker needs
        return [name for inner in statement.body for name in _defined(inner)]
    return []

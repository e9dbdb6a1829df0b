"""The picture of the floors, and the table of ARCHITECTURE.md, from the import contract in pyproject.toml.

    python tools/architecture.py             writes docs/architecture.svg, docs/architecture-dark.svg and the table
    python tools/architecture.py --check     says what is out of date, and changes nothing
    python tools/architecture.py --lines     prints the lines of code of each package, and its budget
    python tools/architecture.py --circles   prints the modules that import each other in circles

The floors are the layers of the contract; what is said of a package is the first line of its docstring. Python alone is
needed.
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "phlox"
PAGE = ROOT / "ARCHITECTURE.md"
BEGIN, END = "<!-- tools/architecture.py: begin -->", "<!-- tools/architecture.py: end -->"
LOWEST = "host"
"""The package of floor 0; below it are modules alone."""
TOTAL = "total"


@dataclass(frozen=True)
class Package:
    """A package, or a module that stands by itself."""

    name: str
    says: str
    """What is in it, in a sentence."""
    rooms: tuple[str, ...]
    """The packages in it."""


@dataclass(frozen=True)
class Floor:
    """What stands side by side."""

    label: str
    packages: tuple[Package, ...]


def floors() -> list[Floor]:
    """From the top down; the modules below the lowest floor are the last one.

    >>> [floor.label for floor in floors() if any(package.name == "tensor" for package in floor.packages)]
    ['3']
    """
    contracts = _settings()["importlinter"]["contracts"]
    [layers] = [one["layers"] for one in contracts if one.get("containers") == ["phlox"]]
    named = [[name.strip(" ()") for name in re.split(r"[:|]", layer)] for layer in layers]
    rows = [tuple(package(name) for name in names if _file(name) is not None) for names in named]
    ground = next(i for i, row in enumerate(rows) if any(one.name == LOWEST for one in row))
    found = [Floor(_label(row, ground - i), row) for i, row in enumerate(rows[: ground + 1]) if row]
    return [*found, Floor("", tuple(one for row in rows[ground + 1 :] for one in row))]


def _settings() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]


def _label(row: tuple[Package, ...], number: int) -> str:
    return "" if row[0].name in ("cli", "testing") else str(number)


def package(name: str) -> Package:
    """What is known of a package or module of Phlox."""
    file = _file(name)
    assert file is not None
    line = (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").partition("\n")[0]
    says = re.sub(r"^Floor \d+: ", "", line)
    rooms = sorted(one.parent.name for one in (SOURCE / name).glob("*/__init__.py"))
    return Package(name, says[:1].upper() + says[1:], tuple(rooms))


def _file(name: str) -> Path | None:
    found = [file for file in (SOURCE / name / "__init__.py", SOURCE / f"{name}.py") if file.exists()]
    return found[0] if found else None


# --- lines of code, and their budget


_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")


def code_lines(text: str) -> int:
    """The lines of Python code: not blank, no comment alone, and no docstring.

    A string that is a statement is a docstring, also below an attribute.

    >>> code_lines("x = 1  # one\\n'What it holds.'\\n\\n# next\\ny = 2")
    2
    """
    documented: set[int] = set()
    nodes: list[ast.AST] = [ast.parse(text)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            documented.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        nodes += [one for block in _BLOCKS for one in getattr(node, block, ())]
    stripped = enumerate(map(str.strip, text.splitlines()), 1)
    return sum(bool(line) and line[0] != "#" and number not in documented for number, line in stripped)


def lines_of_packages(source: Path = SOURCE) -> dict[str, int]:
    """The lines of code by package, and of all Python below `source`."""
    counted: dict[str, int] = {}
    for file in sorted(source.rglob("*.py*")):
        if file.suffix in (".py", ".pyi"):
            name, *rest = file.relative_to(source).parts
            lines = code_lines(file.read_text(encoding="utf-8"))
            for one in (name, TOTAL) if rest else (TOTAL,):
                counted[one] = counted.get(one, 0) + lines
    return counted


def budgets() -> dict[str, int]:
    """The most lines that each package and all together may have."""
    return _settings()["phlox"]["lines"]


def over_budget(counted: dict[str, int]) -> list[str]:
    """What has more lines than its budget, or has no budget."""
    budget = budgets()
    return [
        f"{name}: {lines:,} lines of code, the budget is {budget.get(name, 0):,} (pyproject.toml, tool.phlox.lines)"
        for name, lines in counted.items()
        if lines > budget.get(name, 0)
    ]


# --- circles of imports

FEW = 4
"""So many files of one folder may import each other: a class, and the files of its parts."""


def imports(source: Path = SOURCE) -> dict[str, set[str]]:
    """By module, the modules of the package that it imports: at its top, for type checkers alone, or in functions.

    Left out is what a function imports from a file `pages.py`: by that, values show themselves in notebooks.
    """
    files = {_module(file, source): file for file in sorted(source.rglob("*.py"))}
    return {
        name: set(_imported(ast.parse(file.read_text(encoding="utf-8")), files)) - {name}
        for name, file in files.items()
    }


def _module(file: Path, source: Path) -> str:
    parts = file.relative_to(source.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(node: ast.AST, known: Collection[str], in_function: bool = False) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        names: list[str] = []
        if isinstance(child, ast.Import):
            names = [alias.name for alias in child.names]
        elif isinstance(child, ast.ImportFrom) and child.module is not None:
            within = [f"{child.module}.{alias.name}" for alias in child.names]
            names = [name if name in known else child.module for name in within]
        yield from (name for name in names if name in known and not (in_function and name.endswith(".pages")))
        yield from _imported(child, known, in_function or isinstance(child, ast.FunctionDef))


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """The sets of modules of which each leads to all others, largest first (Tarjan 1972).

    >>> circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}})
    [['b', 'c']]
    """
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    open_: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        order[name] = lowest[name] = len(order)
        open_.append(name)
        for other in sorted(graph[name]):
            if other not in order:
                visit(other)
                lowest[name] = min(lowest[name], lowest[other])
            elif other in open_:
                lowest[name] = min(lowest[name], order[other])
        if lowest[name] == order[name]:
            start = open_.index(name)
            if len(open_) - start > 1:
                found.append(sorted(open_[start:]))
            del open_[start:]

    for name in graph:
        if name not in order:
            visit(name)
    return sorted(found, key=len, reverse=True)


def unmeant(found: Iterable[list[str]]) -> list[list[str]]:
    """The circles that are neither small nor in `tool.phlox.circles`: by what they are, the packages they lie in."""
    meant = [tuple(f"phlox.{name}" for name in names) for names in _settings()["phlox"]["circles"].values()]

    def is_meant(circle: list[str]) -> bool:
        small = len(circle) <= FEW and len({name.rpartition(".")[0] for name in circle}) == 1
        return small or any(
            all(f"{name}.".startswith(tuple(f"{one}." for one in names)) for name in circle) for names in meant
        )

    return [circle for circle in found if not is_meant(circle)]


# --- the table


def table() -> str:
    """The floors as Markdown."""
    budget = budgets()
    lines = ["| floor | package | lines | what is in it |", "|---|---|---:|---|"]
    for floor in floors():
        for one in floor.packages:
            path = f"src/phlox/{one.name}/" if (SOURCE / one.name).is_dir() else f"src/phlox/{one.name}.py"
            link = f"[`{path.removeprefix('src/phlox/')}`]({path})"
            most = f"{budget[one.name]:,}" if one.name in budget else ""
            lines.append(f"| {floor.label or '-'} | {link} | {most} | {one.says} |")
    return "\n".join([*lines, f"| | all | {budget[TOTAL]:,} | |"])


def page(text: str) -> str:
    """The page with the table as it is now."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{PAGE.name}: the marks {BEGIN} and {END} are not there")
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


# --- the picture

WIDTH, MARGIN, LABEL, GAP = 960, 12, 56, 10
LINE, CHARACTER = 16, 6.0
"""Pixels of a line, and of a character of the text, about."""

LIGHT = {
    "page": "#ffffff", "band": "#f2f5f9", "box": "#ffffff", "edge": "#d0d7de", "name": "#1f2328", "text": "#57606a",
    "accent": "#0969da",
}  # fmt: skip
DARK = {
    "page": "#0d1117", "band": "#161b22", "box": "#21262d", "edge": "#3d444d", "name": "#f0f6fc", "text": "#a5afba",
    "accent": "#58a6ff",
}  # fmt: skip
SANS = "-apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
MONO = "ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace"


def picture(colours: dict[str, str]) -> str:
    """The floors as an SVG."""
    parts: list[str] = []
    y = MARGIN
    for floor in floors():
        height, drawn = _band(floor, y)
        parts += drawn
        y += height + GAP
    parts.append(
        f'<text class="text" x="{WIDTH / 2}" y="{y + 10}" text-anchor="middle">'
        "A floor imports only what is below it; packages side by side import each other in one direction only.</text>"
    )
    height = y + 24
    style = (
        f".band {{ fill: {colours['band']} }} .box {{ fill: {colours['box']}; stroke: {colours['edge']} }} "
        f".name {{ font: 600 14px {MONO}; fill: {colours['name']} }} "
        f".text {{ font: 12px {SANS}; fill: {colours['text']} }} "
        f".rooms {{ font: 11px {MONO}; fill: {colours['accent']} }} "
        f".label {{ font: 600 22px {SANS}; fill: {colours['accent']} }}"
    )
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">',
        "<title>The floors of Phlox</title>",
        f"<style>{style}</style>",
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="{colours["page"]}"/>',
        *parts,
        "</svg>\n",
    ])  # fmt: skip


def _band(floor: Floor, y: int) -> tuple[int, list[str]]:
    room = WIDTH - 2 * MARGIN - LABEL - GAP
    each = (room - GAP * (len(floor.packages) - 1)) / len(floor.packages)
    texts = [list(_lines(one, each)) for one in floor.packages]
    inside = 30 + LINE * max(map(len, texts))
    height = inside + 2 * GAP
    drawn = [f'<rect class="band" x="{MARGIN}" y="{y}" width="{WIDTH - 2 * MARGIN}" height="{height}" rx="6"/>']
    if floor.label:
        middle = f'x="{MARGIN + LABEL / 2}" text-anchor="middle"'
        drawn.append(f'<text class="label" {middle} y="{y + height / 2 + 4}">{floor.label}</text>')
        drawn.append(f'<text class="text" {middle} y="{y + height / 2 + 18}">floor</text>')
    for i, (one, lines) in enumerate(zip(floor.packages, texts, strict=True)):
        x = MARGIN + LABEL + i * (each + GAP)
        drawn.append(
            f'<rect class="box" x="{x:.1f}" y="{y + GAP}" width="{each:.1f}" height="{inside}" rx="5"/>'
            f'<text class="name" x="{x + 10:.1f}" y="{y + GAP + 20}">{one.name}</text>'
        )
        drawn += [
            f'<text class="{kind}" x="{x + 10:.1f}" y="{y + GAP + 38 + LINE * j}">{escape(line)}</text>'
            for j, (kind, line) in enumerate(lines)
        ]
    return height, drawn


def _lines(one: Package, width: float) -> Iterator[tuple[str, str]]:
    """What stands in a box below the name: kind and text of each line."""
    for line in textwrap.wrap(one.says.replace("`", ""), int((width - 20) / CHARACTER)):
        yield "text", line
    for line in textwrap.wrap("  ".join(f"{room}/" for room in one.rooms), int((width - 20) / 6.8)):
        yield "rooms", line


# --- names that the page mentions

_MENTIONED = re.compile(r"`(?P<path>[\w/]+(?:\.(?:py|cpp|toml|md)|/))(?::(?P<name>\w+))?`")


def missing(text: str) -> list[str]:
    """Files of Phlox, and names in them (`tensor/base.py:binary`), that a page mentions and that are not there."""
    return [found[0] for found in _MENTIONED.finditer(text) if not _is_there(found["path"], found["name"])]


def _is_there(path: str, name: str | None) -> bool:
    files = [base / path for base in (SOURCE, ROOT) if (base / path).exists()]
    if not files or name is None:
        return bool(files)
    defined = rf"^\s*(?:def|class) {name}\b|^{name}\b.*="
    return re.search(defined, files[0].read_text(encoding="utf-8"), re.MULTILINE) is not None


def outputs() -> dict[Path, str]:
    """What the tool writes, by file."""
    return {
        ROOT / "docs" / "architecture.svg": picture(LIGHT),
        ROOT / "docs" / "architecture-dark.svg": picture(DARK),
        PAGE: page(PAGE.read_text(encoding="utf-8")),
    }


def main(arguments: list[str]) -> int:
    """Write the files, say which are out of date, or print the lines of code."""
    if "--lines" in arguments:
        counted, budget = lines_of_packages(), budgets()
        for name, lines in sorted(counted.items(), key=lambda one: -one[1]):
            print(f"{name:12}{lines:8,} of {budget.get(name, 0):7,}{'  TOO MANY' * (lines > budget.get(name, 0))}")
        return 1 if over_budget(counted) else 0
    if "--circles" in arguments:
        for circle in circles(imports()):
            print(f"{len(circle):4}  {' '.join(name.removeprefix('phlox.') for name in circle)}")
        return 0
    out_of_date = 0
    for path, text in outputs().items():
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        out_of_date += 1
        if "--check" in arguments:
            print(f"{path.relative_to(ROOT)} is out of date: python tools/architecture.py")
        else:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")
    return 1 if out_of_date and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

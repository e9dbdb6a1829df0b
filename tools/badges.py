"""The badges of the README: facts of `pyproject.toml`, as small pictures, so that none is out of date unseen.

`python -m tools.badges` writes them; a test compares them with the files.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "badges"
CHARACTER = 6.4
"""The mean width of a character, in pixels, of 11 pixels' height."""


def facts() -> dict[str, tuple[str, str]]:
    """What each badge says: its label and its text."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = re.search(r'__version__ = "(.*)"', (ROOT / "src/phlox/version.py").read_text(encoding="utf-8"))
    assert version is not None
    pythons = [one.rpartition(" ")[2] for one in project["classifiers"] if re.search(r":: 3\.\d+$", one)]
    return {
        "version": ("version", version[1]),
        "python": ("Python", " | ".join(pythons)),
        "engines": ("engines", "NumPy | JAX | PyTorch"),
        "licence": ("licence", project["license"]),
    }


def badge(label: str, text: str) -> str:
    """The SVG of a label beside a text; readable on light and dark pages."""
    left, right = (round(len(part) * CHARACTER) + 12 for part in (label, text))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" '
        f'aria-label="{label}: {text}"><title>{label}: {text}</title>'
        f'<rect width="{left + right}" height="20" rx="3" fill="#4a4f55"/>'
        f'<path d="M{left} 0h{right - 3}a3 3 0 0 1 3 3v14a3 3 0 0 1 -3 3h-{right - 3}z" fill="#0b6e99"/>'
        '<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">'
        f'<text x="{left / 2:g}" y="14">{label}</text><text x="{left + right / 2:g}" y="14">{text}</text></g></svg>\n'
    )


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, (label, text) in facts().items():
        (FOLDER / f"{name}.svg").write_text(badge(label, text), encoding="utf-8")


if __name__ == "__main__":
    main()

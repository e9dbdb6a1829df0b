"""What several pages say alike, written into them from here: how Phlox is installed, and the supported versions.

    python -m tools.pages

writes what stands between markers, in README.md and below docs/, so that a page reads the same in a clone, on GitHub
and on the site. `<!-- install: jax,onnx -->...<!-- /install -->` is the way to install Phlox with these extras (`none`
for NumPy alone), `<!-- install line -->` the shortest way to see something, and `<!-- versions -->` the table of
versions. A test compares them with the pages. At the first release only `INSTALL` and `LINE` change.
"""

from __future__ import annotations

import re
from pathlib import Path

from tools.environments import ROOT, supported_table

INSTALL = """
Phlox has no release yet: install it from a clone of its repository. In the folder of the clone:

```sh
python3 -m venv .venv
source .venv/bin/activate    # on Windows: .venv\\Scripts\\activate
pip install --editable {package}
```

An environment `.venv` that is there already stays as it is; `make` uses the same one.
"""

LINE = """
```sh
# in a clone of the repository
make demo
pip install --editable .
```
"""

_MARKED = re.compile(r"<!-- (install|install line|versions)(?:: ([\w,]+))? -->.*?<!-- /\1 -->", re.DOTALL)


def installation(extras: str) -> str:
    """How Phlox is installed with extras, which commas separate; `none` for none.

    >>> print(installation("jax").splitlines()[5])
    pip install --editable '.[jax]'
    """
    return INSTALL.format(package="." if extras == "none" else f"'.[{extras}]'").strip()


def filled(text: str) -> str:
    """A page, with what stands between its markers.

    >>> print(filled("<!-- install: none --><!-- /install -->").splitlines()[7])
    pip install --editable .
    """

    def content(found: re.Match[str]) -> str:
        name, extras = found.groups()
        head = f"{name}: {extras}" if extras else name
        shown = installation(extras) if extras else supported_table() if name == "versions" else LINE.strip()
        return f"<!-- {head} -->\n\n{shown}\n\n<!-- /{name} -->"

    return _MARKED.sub(content, text)


def pages() -> list[Path]:
    """The pages in which there may be markers."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def main() -> None:
    """Write all pages."""
    for page in pages():
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()

"""The site's settings: `make docs` builds it with Sphinx from the pages beside this file, offline."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from sphinx.util.inspect import stringify_signature  # noqa: E402

from phlox.version import __version__  # noqa: E402
from tools import reference  # noqa: E402

project = "Phlox"
author = "the Phlox developers"
copyright = f"2026, {author}"
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build"]

# --- pages
myst_enable_extensions = ["attrs_block", "colon_fence", "deflist"]
myst_heading_anchors = 4
myst_fence_as_directive = []
suppress_warnings = ["ref.python"]  # a type that two packages have, such as Initializer: it links to neither

# --- the reference, from docstrings
default_role = "py:obj"  # `Tensor` is a link where there is such a name, and code elsewhere
add_module_names = False
toc_object_entries = False  # with every name in every page's navigation a build takes three times as long
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "signature"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 90
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

# --- how it looks
html_theme = "furo"
html_title = f"Phlox {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/favicon.svg"
html_logo = "_static/logo.svg"
LIGHT, DARK = "#6b3fc0", "#b9a3ff"  # of the mark, dark and light enough to be read
html_theme_options = {
    "navigation_with_keys": True,
    "top_of_page_buttons": [],
    "light_css_variables": {f"color-brand-{part}": LIGHT for part in ("primary", "content", "visited")},
    "dark_css_variables": {f"color-brand-{part}": DARK for part in ("primary", "content", "visited")},
}
html_copy_source = False
html_show_sphinx = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
pygments_style = "a11y-light"  # these two have a contrast of 4.5 or more everywhere
pygments_dark_style = "github-dark-colorblind"


def setup(app: Any) -> None:
    """Called by Sphinx: the pages of the reference are written before the others are read."""
    reference.write(ROOT / "docs" / "reference")
    app.connect("autodoc-process-signature", signature)
    app.connect("autodoc-process-docstring", escape, priority=400)  # before napoleon
    app.connect("autodoc-process-docstring", restore, priority=600)


def escape(app: Any, what: str, name: str, value: object, options: object, lines: list[str]) -> None:
    """Docstrings are plain text with backticks; that of a value's type says nothing about the value."""
    doc = type(value).__doc__
    if what in ("attribute", "data") and isinstance(doc, str) and lines[:1] == inspect.cleandoc(doc).splitlines()[:1]:
        lines.clear()
    lines[:] = reference.escaped(lines)
    if what in ("attribute", "property", "data"):
        kept[name] = list(lines)


kept: dict[str, list[str]] = {}
"""The docstrings of attributes."""


def restore(app: Any, what: str, name: str, value: object, options: object, lines: list[str]) -> None:
    """Napoleon takes what stands before a colon in the docstring of an attribute for its type."""
    lines[:] = kept.pop(name, lines)


def signature(
    app: Any, what: str, name: str, value: Any, options: object, arguments: str | None, result: str | None
) -> tuple[str | None, str | None] | None:
    """Of a class what Python says: autodoc takes the `__new__` of a base, which takes anything, for the signature."""
    if what != "class" or not (arguments or "").startswith("(*args"):
        return None
    found = inspect.signature(value).replace(return_annotation=inspect.Signature.empty)
    return stringify_signature(found, unqualified_typehints=True), None

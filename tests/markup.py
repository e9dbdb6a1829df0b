"""A fragment for notebooks, read: whether it is well-formed and harmless, and what it says."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

_TAGS = {
    "div", "style", "table", "thead", "tbody", "tr", "td", "th", "code", "b", "span", "p", "pre", "details", "summary",
    "figure", "figcaption", "img", "svg", "path", "circle", "text", "i", "h2",
}  # fmt: skip
_ATTRIBUTES = {
    "class", "style", "title", "open", "alt", "width", "height", "src", "d", "stroke", "stroke-opacity", "fill",
    "stroke-width", "stroke-linejoin", "x", "y", "cx", "cy", "r", "text-anchor", "viewbox", "role", "aria-label",
}  # fmt: skip


class Markup(HTMLParser):
    """Raises `AssertionError` for what is not closed, and for what could run, fetch or lead elsewhere."""

    def __init__(self, fragment: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.rows: list[list[str]] = []
        self.tags: list[str] = []
        self.badges: list[str] = []
        self._open: list[tuple[str, str]] = []
        self.feed(fragment)
        self.close()
        assert self._open == [], f"not closed: {self._open}"
        assert fragment.startswith('<div class="phlox">') and "url(" not in fragment and "@import" not in fragment
        assert re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]", fragment) is None
        fragment.encode()

    @property
    def text(self) -> str:
        """All of it."""
        return " ".join(self.texts)

    @property
    def is_fallback(self) -> bool:
        """Is it the `repr`, since something was not foreseen?"""
        return "pre" in self.tags

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        assert tag in _TAGS, tag
        self.tags.append(tag)
        given = dict(attrs)
        assert given.keys() <= _ATTRIBUTES, given
        assert given.get("src", "data:image/png;base64,").startswith("data:image/png;base64,")
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        if tag != "img" and not (tag in ("path", "circle") and self.get_starttag_text().endswith("/>")):  # pyright: ignore[reportOptionalMemberAccess]
            self._open.append((tag, given.get("class") or ""))

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("path", "circle"):
            assert self._open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        tags = [tag for tag, _ in self._open]
        if "style" in tags or not data.strip():
            return
        self.texts.append(data.strip())
        if (tags and tags[-1] in ("td", "th")) or ("code" in tags and "td" in tags):
            self.rows[-1][-1] += data
        if self._open and self._open[-1][1].startswith("badge"):
            self.badges.append(data)


def read(value: Any, *, fallback: bool = False) -> Markup:
    """What a notebook shows of a value."""
    found = Markup(value._repr_html_())
    assert found.is_fallback == fallback, found.text
    return found

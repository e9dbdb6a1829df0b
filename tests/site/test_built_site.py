"""The built site: links lead somewhere, nothing is fetched from elsewhere, and pages fit phones and desktops.

`make docs` builds it and runs this. Chromium opens the pages where it is installed (`apt install chromium`).

Serves: docs/conf.py, tools/reference.py
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

SITE = Path(os.environ.get("PHLOX_SITE", Path(__file__).parents[2] / "docs" / "_build" / "html"))
PAGES = sorted(page for page in SITE.rglob("*.html") if "_static" not in page.parts)
pytestmark = pytest.mark.skipif(not PAGES, reason="the site is not built: make docs")

SHOWN = ("index", "quickstart", "performance", "reference/phlox.nn/nn-linear", "reference/phlox.errors")
"""Pages of every kind, for what takes long."""


class Links(HTMLParser):
    """What a page links to, and the anchors that it has."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.to: list[str] = []
        self.anchors: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.anchors |= {value for key in ("id", "name") if (value := values.get(key))}
        if values.get("class") != "viewcode-back":  # which is not shown
            self.to += [value for key in ("href", "src") if (value := values.get(key))]


def test_links_within_the_site_lead_somewhere() -> None:
    found = {page: Links(page) for page in PAGES}
    broken: list[str] = []
    for page, links in found.items():
        for link in links.to:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            named = unquote(parts.fragment)
            if not target.exists():
                broken.append(f"{page.relative_to(SITE)}: {link}")
            elif named and target in found and named not in found[target].anchors:
                broken.append(f"{page.relative_to(SITE)}: {link}: no such anchor")
    assert not broken, "\n".join(broken)


def test_every_public_name_is_described() -> None:
    from tools import reference

    anchors = set[str]().union(*(Links(page).anchors for page in PAGES if "reference" in page.parts))
    known: dict[int, str] = {}
    for package in reference.PACKAGES:
        for name in reference.names_of(package):
            assert known.setdefault(id(name.value), name.path) in anchors, name.path


# --- in a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("Chromium is not installed")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield opened
        opened.close()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Of the site on this machine: the search reads pages, which browsers allow from servers only."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=SITE)) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class Tab:
    """A page of the browser, and what went wrong in it."""

    def __init__(self, browser: Any, address: str, width: int, scheme: str) -> None:
        self.faults: list[str] = []
        self._address = address
        self.page: Any = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme).new_page()
        self.page.on("console", lambda said: said.type == "error" and self.faults.append(said.text))
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("requestfailed", self._failed)
        self.page.on("request", self._asked)

    def _asked(self, request: Any) -> None:
        if not request.url.startswith((self._address, "data:")):
            self.faults.append(f"asked for {request.url}")

    def _failed(self, request: Any) -> None:
        if request.failure != "net::ERR_ABORTED":  # by the next page
            self.faults.append(f"failed: {request.url}: {request.failure}")

    def open(self, name: str) -> None:
        self.page.goto(f"{self._address}/{name}")


@pytest.mark.parametrize("width, scheme", [(390, "dark"), (1280, "light")], ids=["phone", "desktop"])
def test_pages_fit_and_have_no_errors(browser: Any, address: str, width: int, scheme: str) -> None:
    tab = Tab(browser, address, width, scheme)
    faults: list[str] = []
    for page in PAGES:
        tab.faults.clear()
        tab.open(page.relative_to(SITE).as_posix())
        taken = tab.page.evaluate("document.documentElement.scrollWidth")
        if taken > width:
            tab.faults.append(f"is {taken} pixels wide")
        faults += [f"{page.relative_to(SITE)}: {fault}" for fault in tab.faults]
    assert not faults, "\n".join(faults)


CONTRAST = """
() => {
  const luminance = (text) => {
    const [r, g, b] = text.match(/[0-9.]+/g).slice(0, 3).map((one) => {
      const part = one / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const background = (node) => {
    for (; node; node = node.parentElement) {
      const color = getComputedStyle(node).backgroundColor;
      if (!color.endsWith(", 0)")) return color;
    }
    return "rgb(255, 255, 255)";
  };
  const found = [];
  for (const node of document.querySelectorAll("pre, pre span, p, td, li")) {
    if (!node.textContent.trim()) continue;
    const style = getComputedStyle(node);
    const pair = [luminance(style.color), luminance(background(node))].sort((a, b) => b - a);
    const size = parseFloat(style.fontSize);
    const contrast = (pair[0] + 0.05) / (pair[1] + 0.05);
    const text = node.textContent.trim().slice(0, 30);
    if (contrast < 4.5 || size < 11) found.push(`${text}: ${contrast.toFixed(2)}, ${size} px`);
  }
  return [...new Set(found)];
}
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", SHOWN)
def test_text_and_code_can_be_read(browser: Any, address: str, name: str, scheme: str) -> None:
    tab = Tab(browser, address, 1280, scheme)
    tab.open(f"{name}.html")
    assert tab.page.evaluate(CONTRAST) == []


def test_the_search_finds_a_name(browser: Any, address: str) -> None:
    tab = Tab(browser, address, 1280, "light")
    tab.open("search.html?q=AdamWConfig")
    tab.page.wait_for_selector("ul.search li a", timeout=20_000)
    assert any("AdamWConfig" in one.inner_text() for one in tab.page.query_selector_all("ul.search li"))
    assert not tab.faults


def test_dark_mode_is_a_button(browser: Any, address: str) -> None:
    tab = Tab(browser, address, 1280, "light")
    tab.open("index.html")
    before = tab.page.evaluate("getComputedStyle(document.body).backgroundColor")
    tab.page.locator(".theme-toggle:visible").first.click()
    assert tab.page.evaluate("getComputedStyle(document.body).backgroundColor") != before

"""The page to chat with, in Chromium: it streams, stops, and shows HTML as text.

Serves: src/phlox/serve/page.html
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from phlox.serve import Server, ServerOptions
from tests.serve.support import language_model, running
from tests.train.browser import PROGRAM, Browser

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(PROGRAM is None, reason="needs Chromium (apt install chromium), which is not installed"),
]

ATTACK = "<img src=x onerror=document.title='broken'><b>bold</b>"


def until(browser: Browser, expression: str) -> None:
    for _ in range(400):
        if browser.value(f"!!({expression})"):
            return
        time.sleep(0.05)
    raise AssertionError(f"it did not become true: {expression}; {browser.errors}")


def set_value(browser: Browser, element: str, text: str) -> None:
    browser.value(f"void (document.getElementById({element!r}).value = {json.dumps(text)})")


def messages(browser: Browser) -> list[list[str]]:
    return browser.value("[...document.querySelectorAll('.message')].map((e) => [e.className, e.textContent])")


IS_IDLE = "document.getElementById('send').textContent === 'Send'"


@pytest.mark.parametrize("width", [1100, 390])
def test_a_chat(width: int, tmp_path: Path) -> None:
    model = language_model(context=4000)
    model.stops = frozenset()  # its replies do not end by themselves
    server = Server(model, ServerOptions(name="tiny", api_key="secret", most_tokens=3000))
    with running(server) as address, Browser(tmp_path / "profile") as browser:
        browser.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False)
        browser.call("Page.navigate", url=address)
        until(browser, "document.readyState === 'complete' && document.getElementById('name').textContent === 'Chat'")
        set_value(browser, "text", "Hello")
        browser.value("document.getElementById('send').click()")
        until(browser, f"{IS_IDLE} && document.querySelector('.error')")
        assert messages(browser) == [["message error", "the API key is wrong or missing"]]
        assert browser.value("document.getElementById('text').value") == "Hello"  # to be sent again

        set_value(browser, "key", "secret")
        browser.value("document.getElementById('key').dispatchEvent(new Event('change'))")
        until(browser, "document.title === 'tiny'")
        browser.value("document.getElementById('clear').click()")
        set_value(browser, "system", "Be brief.")
        set_value(browser, "tokens", "30")
        set_value(browser, "text", ATTACK)
        browser.value("document.getElementById('send').click()")
        until(browser, f"{IS_IDLE} && document.querySelectorAll('.message').length >= 2")
        shown = messages(browser)
        assert shown[0] == ["message user", ATTACK] and len(shown[1][1]) > 5
        browser.screenshot(tmp_path / "page.png")

        set_value(browser, "tokens", "")
        set_value(browser, "text", "Go on")
        browser.value("document.getElementById('send').click()")
        until(browser, "document.querySelectorAll('.assistant')[1]?.textContent.length > 20")  # it streams
        browser.value("document.getElementById('send').click()")
        until(browser, f"{IS_IDLE} && document.querySelector('.note:last-child')?.textContent === 'Stopped.'")
        batcher: Any = server._batcher
        for _ in range(100):
            if batcher.counts["ended_cancelled"]:
                break
            time.sleep(0.05)
        assert batcher.counts["ended_cancelled"] == 1
        assert browser.value("document.querySelectorAll('main img, main b').length") == 0
        assert browser.value("document.documentElement.scrollWidth <= innerWidth")
        expected = (f"a request: {address}", "401", "'level': 'verbose'")
        strange = [error for error in browser.errors if not any(text in error for text in expected)]
        assert not strange and browser.value("document.title") == "tiny"


def test_a_model_without_a_chat_template(tmp_path: Path) -> None:
    model = language_model(context=64)
    assert model.tokenizer is not None
    model.stops, model.tokenizer.templates = frozenset(), {}
    with running(Server(model, ServerOptions(name="tiny"))) as address, Browser(tmp_path / "profile") as browser:
        browser.call("Page.navigate", url=address)
        until(browser, "document.getElementById('chat')?.dataset.hint.includes('it continues your text')")
        send(browser, "Once")
        until(browser, f"{IS_IDLE} && document.querySelector('.assistant')?.textContent.length > 10")
        assert not browser.value("document.querySelectorAll('.error').length")


def send(browser: Browser, content: str) -> None:
    set_value(browser, "text", content)
    browser.value("document.getElementById('send').click()")


def test_a_full_context_a_new_chat_and_a_server_that_ended(tmp_path: Path) -> None:
    model = language_model(context=120)
    model.stops = frozenset()
    with Browser(tmp_path / "profile") as browser:
        with running(Server(model, ServerOptions(name="tiny"))) as address:
            browser.call("Page.navigate", url=address)
            until(browser, "document.title === 'tiny'")
            assert not messages(browser) and browser.value("document.getElementById('chat').dataset.hint")
            for question in ("one", "two", "three"):
                send(browser, question)
                until(browser, IS_IDLE)
            notes = browser.value("[...document.querySelectorAll('.note')].map((e) => e.textContent)")
            left_out = [note for note in notes if "left out" in note]
            assert left_out == [f"The oldest {n} messages are left out: the context is full." for n in (2, 4)]
            send(browser, "x" * 200)
            until(browser, "document.querySelector('.error')")
            assert "the context of this model is 120 tokens" in messages(browser)[-1][1]
            browser.value("document.getElementById('clear').click()")
            send(browser, "again")
            browser.value("document.getElementById('clear').click()")  # while the reply is written
            until(browser, IS_IDLE)
            assert not messages(browser) and browser.value("messages.length") == 0
        send(browser, "gone")
        until(browser, "document.querySelector('.error')")
        assert messages(browser) == [["message error", "The server cannot be reached; does it still run?"]]

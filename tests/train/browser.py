"""A headless Chromium, driven over two pipes by its own protocol (https://chromedevtools.github.io/devtools-protocol)."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import selectors
import shutil
import subprocess
import sys
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, Self

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)

_START = "import os, sys; r, w = map(int, sys.argv[1:3]); os.dup2(r, 63); os.dup2(w, 4); os.dup2(63, 3); os.execv(sys.argv[3], sys.argv[3:])"  # noqa: E501


class Browser:
    """One page. `errors` has what its scripts and the browser complained of."""

    def __init__(self, profile: Path) -> None:
        self._events: list[dict[str, Any]] = []
        self.errors: list[str] = []
        trials = 3  # on a busy machine it may end before it has begun
        while True:
            self._start(profile / str(trials))
            try:
                target = self.call("Target.createTarget", url="about:blank")["targetId"]
                break
            except (AssertionError, OSError):
                self.close()
                if (trials := trials - 1) == 0:
                    raise
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def _start(self, profile: Path) -> None:
        assert PROGRAM is not None
        self._buffer, self._last, self._session = b"", 0, ""
        child_reads, self._out = os.pipe()
        self._in, child_writes = os.pipe()
        arguments = [
            PROGRAM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
            "--no-first-run", "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, str(child_reads), str(child_writes), *arguments],
            pass_fds=(child_reads, child_writes), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(child_reads)
        os.close(child_writes)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._in, selectors.EVENT_READ)

    def call(self, method: str, **arguments: Any) -> dict[str, Any]:
        self._last += 1
        message = {"id": self._last, "method": method, "params": arguments}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._last:
                assert "error" not in answer, answer
                return answer["result"]
            self._take(answer)

    def open(self, path: Path, *, width: int = 1280, dark: bool = False, script: bool = True) -> None:
        """Show a file, and wait until it is loaded."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        self._events.clear()
        self.call("Page.navigate", url=path.absolute().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._take(self._next())

    def value(self, expression: str) -> Any:
        """What a JavaScript expression gives."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def mouse(self, kind: str, x: float, y: float, *, clicks: int = 1) -> None:
        """An event of the mouse: `mouseMoved`, `mousePressed`, `mouseReleased`."""
        button = "none" if kind == "mouseMoved" and not clicks else "left"
        self.call(
            "Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, buttons=clicks and 1, clickCount=clicks
        )

    def screenshot(self, path: Path) -> None:
        """The whole page as a PNG."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))

    def _take(self, event: dict[str, Any]) -> None:
        self._events.append(event)
        details = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.errors.append(str(details["exceptionDetails"]))
        elif event.get("method") == "Runtime.consoleAPICalled" and details["type"] in ("error", "warning"):
            self.errors.append(str(details["args"]))
        elif event.get("method") == "Log.entryAdded":
            self.errors.append(str(details["entry"]))
        elif event.get("method") == "Network.requestWillBeSent":
            url = details["request"]["url"]
            if not url.startswith(("file:", "data:", "about:")):
                self.errors.append(f"a request: {url}")

    def _next(self, seconds: float = 60.0) -> dict[str, Any]:
        until = monotonic() + seconds
        while b"\0" not in self._buffer:
            assert self._selector.select(max(until - monotonic(), 0.0)), "the browser does not answer"
            chunk = os.read(self._in, 1 << 20)
            assert chunk, "the browser has ended"
            self._buffer += chunk
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._session = ""
        with contextlib.suppress(AssertionError, OSError):
            self.call("Browser.close")
        self._selector.close()
        for end in (self._in, self._out):
            os.close(end)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

"""`profile`: whose time it is, on every engine; no time is asserted but that of a layer that waits.

Serves: phlox/debug/{profiling,profile_report,timing,timeline,flame}.py
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn, optim
from phlox.backend import Backend, Jax, NumPy, Torch
from phlox.errors import ModuleError
from phlox.host.text import duration
from tests.train.browser import PROGRAM, Browser

ENGINES = {"numpy": NumPy(), "torch": Torch(), "jax": Jax(), "jax64": Jax(float="f64")}
engines = pytest.mark.parametrize("engine", list(ENGINES.values()), ids=list(ENGINES))
X = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)


class Slow(px.Module):
    """Waits, forward alone: at least a fiftieth of a second."""

    def __call__(self, x: px.Tensor) -> px.Tensor:
        time.sleep(0.02)
        return x * 2.0


class Net(px.Module):
    def __init__(self, middle: Any) -> None:
        self.body = nn.Sequential([nn.Linear(8, 32), middle, nn.Dropout(0.5)])
        self.head = nn.Linear(32, 4)

    def __call__(self, x: px.Tensor) -> px.Tensor:
        return self.head(self.body(self.body(x)[:, :8]))


def net(engine: Backend, middle: Any = None) -> Any:
    return Net(middle or px.functional.relu).init(0, engine.device()).train()


@engines
def test_every_layer_has_its_time_and_the_parts_make_the_whole(engine: Backend) -> None:
    model = net(engine)
    before = [param.val().numpy().copy() for param in model.params()]
    position = px.random.state()
    found = px.debug.profile(model, X, calls=2, optimizer=optim.AdamWConfig())
    paths = ["", "body", "body.layers.0", "body.layers.1", "body.layers.2", "head"]
    assert [row.path for row in found.rows] == paths
    assert [row.calls for row in found.rows] == [1, 2, 2, 2, 2, 1]
    assert found.row("body.layers.1").layer == "relu"
    for path in ("body.layers.0", "head"):
        row = found.row(path)
        assert row.forward > 0.0 and row.backward > 0.0
    root = found.rows[0]
    assert root.forward == pytest.approx(sum(row.forward_own for row in found.rows))
    assert root.backward == pytest.approx(sum(row.backward_own for row in found.rows))
    assert found.optimizer is not None and found.optimizer > 0.0 and found.seconds > root.seconds
    wide = 8 if engine.float_element == "f64" else 4
    # Two calls of three layers of 16 x 32, whose last one drops, and the head.
    assert root.results == 16 * (2 * 3 * 32 + 4) * wide
    assert found.source == ("program" if isinstance(engine, Jax) else "eager")
    assert px.random.state() == position
    for param, value in zip(model.params(), before, strict=True):
        np.testing.assert_array_equal(param.val().numpy(), value)


def test_a_layer_that_waits_is_the_slowest() -> None:
    found = px.debug.profile(net(NumPy(), Slow()), X, calls=2)
    row = found.row("body.layers.1")
    assert row.forward >= 0.04 and found.row("body").forward >= row.forward > found.row("body").forward_own
    assert found.slowest(1)[0] is row and row.backward < row.forward
    assert "most by themselves: body.layers.1" in str(found)


@engines
def test_forward_alone_and_a_loss(engine: Backend) -> None:
    found = px.debug.profile(net(engine).valid(), px.tensor(X, device=engine), calls=1, backward=False)
    assert all(row.backward == 0.0 for row in found.rows) and found.outside_backward == 0.0
    assert "backward" not in str(found) and found.optimizer is None
    found = px.debug.profile(net(engine), X, calls=1, loss=lambda y: (y * y).exp().mean())
    assert found.rows[0].backward > 0.0


def test_jax_eagerly_says_so_and_others_have_no_program() -> None:
    found = px.debug.profile(net(Jax()), X, calls=1, compiled=False)
    assert found.source == "eager" and "timed eagerly" in str(found) and found.rows[0].forward > 0.0
    with pytest.raises(ModuleError, match="compiled=True: NumPy.* reports no times"):
        px.debug.profile(net(NumPy()), X, compiled=True)


def test_a_checkpoint_runs_again_in_the_backward_pass_of_its_layer() -> None:
    class Again(px.Module):
        def __init__(self) -> None:
            self.layer = nn.Linear(32, 32)

        def __call__(self, x: px.Tensor) -> px.Tensor:
            return px.checkpoint(self.layer)(x)

    found = px.debug.profile(net(NumPy(), Again()), X, calls=1)
    assert found.row("body.layers.1.layer").calls == 2
    assert found.row("body.layers.1").backward > 0.0


def test_the_chrome_trace(tmp_path: Path) -> None:
    for engine in (NumPy(), Jax()):
        found = px.debug.profile(net(engine), X, calls=1)
        path = tmp_path / "trace.json"
        assert found.to_chrome_trace(path) == json.loads(path.read_text(encoding="utf-8"))
        events = [one for one in json.loads(path.read_text(encoding="utf-8"))["traceEvents"] if one["ph"] == "X"]
        assert {(one["args"]["layer"], one["cat"]) for one in events} >= {
            ("body.layers.0", "forward"), ("body.layers.0", "backward"), ("head", "backward"),
        }  # fmt: skip
        assert all(one["dur"] >= 0.0 and one["ts"] >= 0.0 for one in events)


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(ModuleError, match="the model is a Module"):
        px.debug.profile(lambda x: x, X)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ModuleError, match="calls is at least 1"):
        px.debug.profile(net(NumPy()), X, calls=0)
    with pytest.raises(ModuleError, match="optimizer is an optimizer or its config, got int"):
        px.debug.profile(net(NumPy()), X, optimizer=3)
    found = px.debug.profile(net(NumPy()), X, calls=1)
    with pytest.raises(ModuleError, match="`body.layers.9` was not called; these were: body, "):
        found.row("body.layers.9")


@pytest.mark.parametrize(
    "seconds, text", [(0.0, "0"), (1.5e-7, "0.15 us"), (2.5e-5, "25.0 us"), (1.234e-3, "1.23 ms"), (12.3, "12.3 s")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_page_has_a_flame_graph_that_zooms(tmp_path: Path) -> None:
    found = px.debug.profile(net(NumPy(), Slow()), X, calls=1, optimizer=optim.SgdConfig())
    path = tmp_path / "profile.html"
    text = found.to_html(path)
    assert path.read_text(encoding="utf-8") == text and found._repr_html_().startswith('<div class="phlox">')
    if PROGRAM is None:
        pytest.skip("there is no browser")
    frames = "[...document.querySelectorAll('.flame .f.forward')]"
    widths = f"Object.fromEntries({frames}.map(f => [f.firstChild.innerText, f.offsetWidth]))"
    click = f"{frames}.map(f => f.firstChild).find(b => b.innerText.startsWith('body.layers.1')).click()"
    with Browser(tmp_path / "profile") as browser:
        for dark in (True, False):
            browser.open(path, dark=dark, width=900)
            assert browser.value("document.documentElement.scrollWidth <= innerWidth")
            shown = browser.value(widths)
            assert shown["body.layers.1 (Slow)"] > 0.5 * shown["(the model) (Net)"] > 0
            assert shown["body (Sequential)"] <= shown["(the model) (Net)"]
            browser.screenshot(tmp_path / f"{dark}.png")
        browser.value(click)
        whole = browser.value("document.querySelector('.flame').offsetWidth")
        assert browser.value(widths)["body.layers.1 (Slow)"] == whole
        browser.value(click)
        assert browser.value(widths) == shown
        assert browser.errors == []

# ruff: noqa: PT012
"""Handlers wait, are called as often as signals came, and are the user's again afterwards."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from contextvars import ContextVar
from typing import Any

import pytest

from phlox.backend import device, levels
from phlox.backend.torch import tracer
from phlox.backend.tracing import checks
from phlox.batching import frames
from phlox.host import memory, signal_guard
from phlox.host.signal_guard import Prepared, SignalGuard, commit, scope
from phlox.module import deferred, param
from phlox.optim import optimizer
from phlox.optim.step import shared_scalars
from phlox.random.stream import _scoped as current_stream
from phlox.random.stream import stream
from phlox.transform.compile import recompiles
from tests.interruption import interrupt, moments

pytestmark = pytest.mark.usefixtures("hears_ctrl_c")


def press(number: int = signal.SIGINT) -> None:
    signal.raise_signal(number)


@pytest.fixture
def handled(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Signals that a handler of the user's has seen, for SIGINT and SIGTERM."""
    seen: list[int] = []

    def handler(number: int, frame: Any) -> None:
        seen.append(number)

    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    yield seen, handler
    for number, one in before.items():
        signal.signal(number, one)


def test_ctrl_c_waits_until_the_end() -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt), SignalGuard():
        press()
        press()  # a second one does not cut it short either
        done.append("all of it")
    assert done == ["all of it"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_of_the_users_is_called_as_often_as_signals_came(handled: Any) -> None:
    seen, handler = handled
    with SignalGuard():
        press()
        press(signal.SIGTERM)
        press()
        assert seen == []
    assert sorted(seen) == [signal.SIGINT, signal.SIGINT, signal.SIGTERM]
    assert signal.getsignal(signal.SIGINT) is handler and signal.getsignal(signal.SIGTERM) is handler


def test_a_handler_may_put_another_in_its_place() -> None:
    def second(number: int, frame: Any) -> None: ...

    def first(number: int, frame: Any) -> None:
        signal.signal(number, second)

    signal.signal(signal.SIGINT, first)
    with SignalGuard():
        press()
    assert signal.getsignal(signal.SIGINT) is second


@pytest.mark.parametrize("way", [signal.SIG_IGN, signal.SIG_DFL])
def test_what_is_no_handler_of_pythons_stays(way: Any) -> None:
    signal.signal(signal.SIGINT, way)
    with SignalGuard():
        assert signal.getsignal(signal.SIGINT) is way
    assert signal.getsignal(signal.SIGINT) is way


def test_guards_within_guards() -> None:
    done = False
    with pytest.raises(KeyboardInterrupt), SignalGuard():
        with SignalGuard():
            press()
        done = True  # the inner one's end is not the end
    assert done
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_on_other_threads_it_does_nothing() -> None:
    found: list[Any] = []

    def run() -> None:
        with SignalGuard():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]


def test_signals_wait_only_while_they_have_to() -> None:
    waits, done = [False], False
    with pytest.raises(KeyboardInterrupt), SignalGuard(lambda: waits[0]) as guard:
        waits[0] = True
        press()
        waits[0] = False
        with pytest.raises(KeyboardInterrupt):
            press()
        guard.hold()
        press()
        done = True
    assert done


def test_an_error_within_goes_on_as_the_cause_of_the_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt) as caught, SignalGuard():
        press()
        raise ValueError("of the step")
    assert isinstance(caught.value.__context__, ValueError)


def fail() -> None:
    raise ValueError("half-way")


@pytest.mark.parametrize(
    "happens, error",
    [(press, KeyboardInterrupt), (fail, ValueError), (lambda: None, None)],
    ids=["Ctrl-C", "error", ""],
)
@pytest.mark.parametrize("way", ["commit", "prepared", "for good"])
def test_all_or_nothing(way: str, happens: Callable[[], None], error: Any) -> None:
    state = {"a": 1, "b": 1}

    def apply() -> str:
        state["a"] = 2
        happens()
        state["b"] = 2
        return "done"

    def keep() -> Callable[[], None]:
        before = dict(state)
        return lambda: state.update(before)

    run = {
        "commit": lambda: commit(apply, keep()),
        "prepared": Prepared(apply, keep),
        "for good": Prepared(apply, None),
    }[way]
    if error is None:
        assert run() == "done"
        return
    with pytest.raises(error):
        run()
    undone = {"a": 1, "b": 1}
    whole = {"a": 2, "b": 2} if error is KeyboardInterrupt else {"a": 2, "b": 1}
    assert state == (whole if way == "for good" else undone)


VARIABLE: ContextVar[int] = ContextVar("variable", default=0)
SCOPES: dict[str, tuple[Callable[[], AbstractContextManager[Any]], Any]] = {
    "scope": (lambda: scope(VARIABLE, 1), VARIABLE),
    "sharing": (shared_scalars.sharing, vars(shared_scalars)["_cache"]),
    "tracing": (lambda: scope(optimizer.tracing, object()), optimizer.tracing),
    "tracing of PyTorch": (lambda: scope(tracer.tracing, True), tracer.tracing),
    "levels": (lambda: levels.resumed(()), vars(levels)["_levels"]),
    "batches": (frames.outside, vars(frames)["_frames"]),
    "stream": (lambda: stream(1), current_stream),
    "default device": (lambda: device.default_device("numpy"), vars(device)["_default"]),
    "checks": (checks.checks, vars(checks)["_on"]),
    "no initializers": (deferred.no_initializers, vars(deferred)["_initializers_forbidden"]),
    "changes": (param.noting_changes, vars(param)["_changes"]),
    "recompiles": (recompiles.explain_recompiles, vars(recompiles)["_explained"]),
    "arena": (lambda: memory.Arena([]).used(), vars(memory)["_arena"]),
}


@pytest.mark.parametrize("name", SCOPES)
def test_a_scope_ends_whenever_ctrl_c_comes(name: str) -> None:
    scope, variable = SCOPES[name]

    def within() -> None:
        with scope():
            signal_guard.SignalGuard()

    before = variable.get()
    for moment in range(1, moments(within) + 1):
        with suppress(KeyboardInterrupt):
            interrupt(within, moment)
        assert variable.get() is before, moment

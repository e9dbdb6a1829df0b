"""`Consensus`: lets processes stop or save after the same step, without a collective in each step.

Any process may request something: it was sent a signal, its time is over, a callback called `stop`. The request is a
key of the store, on which a thread of each process waits. That thread publishes the last step that its process has
begun, which it will complete, and blocks the next step until all have published. All act after the greatest of these
steps. As a thread publishes, and not the training, no process waits for one that is itself waiting in a collective.

Alone, or between two requests, it costs a lock and a few comparisons each step.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from dataclasses import dataclass
from typing import Any

from phlox.backend.processes import processes, store
from phlox.errors import DistributedError

_LONG = 3600.0
"""The seconds for which a thread waits at a time."""
_count = itertools.count()
"""Numbers the trainings: all processes begin the same ones in the same order."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The action of all processes after a step."""

    step: int
    stop: str | None = None
    """The reason to stop; None to go on."""
    signal: int | None = None
    """The number of the signal that one of them was sent."""
    saves: bool = False
    """Do they save?"""
    ends: bool = False
    """Has one of them come to the end of its training?"""


class Consensus:
    """Chooses the step after which all processes of a training do what one of them requests.

    Args:
        step: the last step that was taken.
    """

    def __init__(self, step: int) -> None:
        process_group = processes()
        self._rank, self._size, self._timeout = process_group.rank, process_group.size, process_group.timeout
        self._name, self._round = f"train/consensus/{next(_count)}", 0
        self._changed = threading.Condition()
        self._last_begun = step
        self._asked: dict[str, Any] = {}
        self._is_held = self._is_over = False
        """`_is_held`: no step may begin before there is a decision. `_is_over`: there is no further round."""
        self._decision: Decision | None = None
        self._stop: Decision | None = None
        """The decision to stop; after it, only the end may be requested."""
        self._error: DistributedError | None = None
        self._thread = threading.Thread(target=self._listen, name="phlox-consensus", daemon=True)
        self._thread.start()

    # --- called by the training

    def ask(self, **requests: Any) -> None:
        """Ask all processes for something: `stop` (a reason), `signal` (its number) or `saves`."""
        with self._changed:
            new = {key: value for key, value in requests.items() if self._asked.get(key) != value}
            if not new or self._is_over or (self._stop is not None and "ends" not in new):
                return
            self._asked |= new
            self._is_held = True
            key = self._key()
        store().set(f"{key}/asked", b"")

    def at(self, step: int, *, goes_on: bool = True) -> Decision | None:
        """The action after this step, or None. It may wait until the others report their steps.

        A decision to stop is final: each later call returns it. If it were made twice, a late process could meet others
        that have already ended: it would lose the signal, or train on alone.

        Args:
            step: the last step that was taken.
            goes_on: will another step begin before the next call?
        """
        with self._changed:
            if self._stop is not None:
                return self._stop
            if self._is_held and not self._is_over:
                self._wait()
            decision = self._decision
            if decision is not None and step >= decision.step:
                self._next_round()
                if decision.stop is not None:
                    self._stop = decision
                return decision
            self._last_begun = step + 1 if goes_on else step
            return None

    def end(self, error: BaseException | None = None, signal: int | None = None) -> Decision | None:
        """End the training here, and return the last request of the others.

        Args:
            error: the error of this process. It reports that to the others and does not wait.
            signal: the number of the signal that came after the last step.
        """
        if error is not None:
            self._fail(f"process {self._rank} has failed: {type(error).__name__}: {error}")
            return None
        result: Decision | None = None
        last = {"ends": True} if signal is None else {"ends": True, "signal": signal}
        while True:
            self.ask(**last)
            with self._changed:
                if not self._is_over:
                    self._wait()
                decision = self._decision
                if decision is not None and (result is None or decision.signal is not None):
                    result = decision
                if decision is None or decision.ends:
                    self._is_over = True
                    self._changed.notify_all()
                    break
                self._next_round()  # this round began before this process came to its end
        self._thread.join(self._timeout)
        return result

    def _fail(self, text: str) -> None:
        """Tell the other processes that this one does not wait for them."""
        with self._changed:
            if self._is_over:
                return
            self._is_over, self._asked = True, {"failed": text}
            self._changed.notify_all()
        failure = json.dumps({"step": self._last_begun, "failed": text}).encode()
        with contextlib.suppress(DistributedError):  # the other processes may have ended, too
            # The others may have read what this process has published in the current round.
            for number in (self._round, self._round + 1):
                store().set(f"{self._name}/{number}/{self._rank}", failure)
                store().set(f"{self._name}/{number}/asked", b"")

    def _wait(self) -> None:
        """Wait for a decision."""
        ready = self._changed.wait_for(lambda: self._decision or self._error or self._is_over, self._timeout + 30.0)
        if self._error is not None:
            raise self._error
        if not ready:
            raise DistributedError(f"process {self._rank} waited in vain for the others to choose the last step")

    def _next_round(self) -> None:
        self._round += 1
        self._decision, self._is_held, self._asked = None, False, {}
        self._changed.notify_all()

    def _key(self) -> str:
        return f"{self._name}/{self._round}"

    # --- the thread

    def _listen(self) -> None:
        try:
            while self._is_asked():
                self._publish()
                decision = self._collect_decision()
                with self._changed:
                    self._decision = decision
                    self._changed.notify_all()
                    if decision.ends:
                        self._is_over = True
                    number = self._round
                    self._changed.wait_for(lambda: self._is_over or self._round > number)  # noqa: B023
                    if self._is_over:
                        return
        except DistributedError as error:
            with self._changed:
                self._error = DistributedError(f"the training cannot go on without the other processes: {error}")
                self._is_held = True
                self._changed.notify_all()

    def _is_asked(self) -> bool:
        """Wait until one of the processes asks for something."""
        while not self._is_over:
            began = time.monotonic()
            try:
                store().get(f"{self._key()}/asked", _LONG)
                return not self._is_over
            except DistributedError:
                if time.monotonic() < began + 0.9 * _LONG:
                    raise
        return False

    def _publish(self) -> None:
        """Hold further steps, and publish the last step that has begun."""
        with self._changed:
            self._is_held = True
            state = {"step": self._last_begun, **self._asked}
            if self._is_over:
                return
        store().set(f"{self._key()}/{self._rank}", json.dumps(state).encode())

    def _collect_decision(self) -> Decision:
        states: list[dict[str, Any]] = [
            json.loads(store().get(f"{self._key()}/{rank}", rank=rank)) for rank in range(self._size)
        ]
        failed = next((state["failed"] for state in states if "failed" in state), None)
        if failed is not None:
            raise DistributedError(failed)
        return Decision(
            max(state["step"] for state in states),
            next((state["stop"] for state in states if state.get("stop")), None),
            next((state["signal"] for state in states if state.get("signal")), None),
            any(state.get("saves", False) for state in states),
            any(state.get("ends", False) for state in states),
        )

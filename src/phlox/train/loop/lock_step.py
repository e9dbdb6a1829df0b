"""`LockStep`: checks that the processes of a training begin, stay and end in the same state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from phlox.backend.tracing.checks import checks_are_on
from phlox.train.loop.consensus import Consensus

if TYPE_CHECKING:
    from phlox.train.loop.fit import Fit
    from phlox.train.step.data_parallel import DataParallel


class LockStep:
    """The part of this process in a training by several processes.

    Attributes:
        signal: the number of the signal that ends the training in all processes.
        has_agreed: have all processes ended after the same step?
        is_main: is this process 0?
    """

    def __init__(self, fit: Fit, team: DataParallel) -> None:
        self._fit, self._team = fit, team
        self._consensus: Consensus | None = None
        self.signal: int | None = None
        self.has_agreed = False
        self.is_main = team.is_main

    def begin(self) -> None:
        """Check that all processes begin with the same settings; `RunError` or `DistributedError` if not."""
        fit, limits, state = self._fit, self._fit.limits, self._fit.state
        self._team.check_same({
            "fit: the limits (epochs, steps, seconds)": [limits.epochs, limits.steps, limits.seconds],
            "fit: the training begins at step, epoch and batch": [state.step, state.epoch, state.batch],
            "data: the number of batches in an epoch": fit.data.batches,
            "validation: is there any": fit.validation is not None,
        })  # fmt: skip
        if not self._team.partitions:
            self._check(model=dict(state.models))
        self._consensus = Consensus(state.step)

    def ends(self, *, goes_on: bool) -> bool:
        """Do all processes end after this step? See `Consensus.at`."""
        fit, run, consensus = self._fit, self._fit.control.run, self._consensus
        assert consensus is not None
        seconds = fit.limits.seconds
        while True:
            if fit.interrupts.received is not None:
                consensus.ask(stop="interrupted", signal=int(fit.interrupts.received))
            elif run.stopped is not None:
                consensus.ask(stop=run.stopped)
            elif seconds is not None and fit.seconds >= seconds:
                consensus.ask(stop=f"{seconds:g} seconds are over")
            decision = consensus.at(fit.state.step, goes_on=goes_on)
            if decision is None:
                return False
            if decision.saves:
                for callback in fit.callbacks:
                    callback.save_now(fit.control)
            if decision.stop is not None:
                self.signal, run.stopped = decision.signal, decision.stop
                return True

    def ask_to_save(self) -> None:
        """Let all processes save after the same step."""
        if self._consensus is not None:
            self._consensus.ask(saves=True)

    def end(self) -> None:
        """Wait until all processes have come to the end, and share a signal that one of them got."""
        assert self._consensus is not None
        decision = self._consensus.end(signal=self._fit.interrupts.received)
        self.has_agreed = True
        if decision is not None and decision.signal is not None:
            self.signal = decision.signal

    def fail(self, error: BaseException) -> None:
        """Tell the other processes that this one has failed."""
        self._team.note_rank(error)
        if self._consensus is not None and not self.has_agreed:
            self._consensus.end(error)

    def check(self) -> None:
        """While checks are on, raise `DistributedError` if the processes differ in values that must be the same."""
        if not checks_are_on():
            return
        state = self._fit.state
        counters: dict[str, Any] = {
            "step": state.step, "epoch": state.epoch, "updates": state.updates,
            "skipped": state.skipped, "rows": state.rows,
            "lr": state.lr, "lr_scale": state.lr_scale, "stream": state.stream.state(),
        }  # fmt: skip
        scaler: Any = state.auxiliary.get("scaler")
        if scaler is not None:
            entries = scaler.into_record().tensors.items()
            counters["loss_scale"] = {path: entry.tensor.read() for path, entry in entries}
        if not self._team.partitions:
            self._fit.stepper.align()
            counters["model"] = dict(state.models)
        self._check(**counters)

    def _check(self, **values: Any) -> None:
        from phlox.distributed import check_agreement

        check_agreement(**values)

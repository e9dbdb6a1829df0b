"""`Joint`: the checks that the processes of a training begin, stay and end in the same state."""

# The parts of a learner know each other.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from phlox.backend.tracing.checks import checks_are_on
from phlox.train.parallel.consensus import Consensus

if TYPE_CHECKING:
    from phlox.train.loop import Fit
    from phlox.train.parallel.team import Team


class Joint:
    """A training by several processes, as one of them takes part in it.

    Attributes:
        signal: the number of the signal because of which all of them end.
        has_agreed: have all come to their end after the same step?
        is_main: is this process 0?
    """

    def __init__(self, fit: Fit, team: Team) -> None:
        self._fit, self._team = fit, team
        self._consensus: Consensus | None = None
        self.signal: int | None = None
        self.has_agreed = False
        self.is_main = team.is_main

    def begin(self) -> None:
        """Check that all processes begin with the same settings; `RunError` or `DistributedError` if not."""
        fit, limits, learner = self._fit, self._fit.limits, self._fit.learner
        self._team.check_same({
            "fit: the limits (epochs, steps, seconds)": [limits.epochs, limits.steps, limits.seconds],
            "fit: the training begins at step, epoch and batch": [learner.step, learner.epoch, learner._batch_number],
            "data: the number of batches in an epoch": fit.data.batches,
            "validation: is there any": fit.validation is not None,
        })  # fmt: skip
        if not self._team.partitions:
            self._check(model=dict(learner._models))
        self._consensus = Consensus(learner.step)

    def ends(self, *, goes_on: bool) -> bool:
        """Do all end after this step? See `Consensus.at`."""
        fit, learner, consensus = self._fit, self._fit.learner, self._consensus
        assert consensus is not None
        seconds = fit.limits.seconds
        while True:
            if fit.interrupts.came is not None:
                consensus.ask(stop="interrupted", signal=int(fit.interrupts.came))
            elif learner.stopped is not None:
                consensus.ask(stop=learner.stopped)
            elif seconds is not None and fit.seconds >= seconds:
                consensus.ask(stop=f"{seconds:g} seconds are over")
            decision = consensus.at(learner.step, goes_on=goes_on)
            if decision is None:
                return False
            if decision.saves:
                for one in fit.callbacks:
                    one.save_now(learner)
            if decision.stop is not None:
                self.signal, learner.stopped = decision.signal, decision.stop
                return True

    def ask_to_save(self) -> None:
        """Let all processes save, after a step that they agree about."""
        if self._consensus is not None:
            self._consensus.ask(saves=True)

    def end(self) -> None:
        """Wait until all processes have come to the end, and share the signals that one of them got."""
        assert self._consensus is not None
        decision = self._consensus.end(signal=self._fit.interrupts.came)
        self.has_agreed = True
        if decision is not None and decision.signal is not None:
            self.signal = decision.signal

    def fail(self, error: BaseException) -> None:
        """Tell the others that this process has come to an end of its own."""
        self._team.note_rank(error)
        if self._consensus is not None and not self.has_agreed:
            self._consensus.end(error)

    def check(self) -> None:
        """While checks are on, raise `DistributedError` if the processes differ in values that must be the same."""
        if not checks_are_on():
            return
        learner = self._fit.learner
        counters: dict[str, Any] = {
            "step": learner.step, "epoch": learner.epoch, "updates": learner.updates, "rows": learner.rows,
            "lr": learner.lr, "lr_scale": learner.lr_scale, "stream": learner.stream.state(),
        }  # fmt: skip
        scaler: Any = learner._aids.get("scaler")
        if scaler is not None:
            entries = scaler.into_record().tensors.items()
            counters["loss_scale"] = {path: entry.tensor.read() for path, entry in entries}
        if not self._team.partitions:
            learner._align()
            counters["model"] = dict(learner._models)
        self._check(**counters)

    def _check(self, **values: Any) -> None:
        from phlox.distributed import check_agreement

        check_agreement(**values)

"""The states of a run, and the table of the transitions between them.

`Fit` follows it: it takes the first row of its state whose question is answered with yes, does the action of this row,
and goes to its next state. Questions and actions are the methods of `Fit` with these names.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple


class Phase(Enum):
    """A state of a run."""

    FRESH = "begun, without a checkpoint"
    RESUMED = "begun, from a checkpoint"
    BETWEEN = "between two epochs"
    IN_EPOCH = "within an epoch, between two steps"
    HAS_BATCH = "the next batches have been read, if there are any"
    STEPPED = "a step was taken"
    STOPPING = "it ends between two steps"
    AT_END = "an epoch has had all its batches"
    CUT_OFF = "it ends within an epoch, which is reported as far as it went"
    REPORTING = "the report of an epoch is due"
    ENDED = "it is over"


class Transition(NamedTuple):
    """A row of the table."""

    at: Phase
    when: str
    """The question; empty for yes."""
    do: str
    """The action; empty for none."""
    to: Phase


P = Phase
TRANSITIONS = (
    # An epoch that an earlier fit has left unfinished is over, and its gradients are dropped.
    Transition(P.FRESH, "", "leave_former_epoch", P.BETWEEN),
    # A state that was saved within an epoch continues there, even at the limit: callbacks must get its end.
    Transition(P.RESUMED, "is_within_epoch", "open_epoch", P.IN_EPOCH),
    Transition(P.RESUMED, "", "", P.BETWEEN),
    Transition(P.BETWEEN, "is_over", "", P.ENDED),
    Transition(P.BETWEEN, "", "begin_epoch", P.IN_EPOCH),
    # The saved state says whether a validation is due: a resumed run does it first.
    Transition(P.IN_EPOCH, "is_validation_due", "validate", P.IN_EPOCH),
    Transition(P.IN_EPOCH, "is_over", "", P.STOPPING),
    Transition(P.IN_EPOCH, "", "read_batches", P.HAS_BATCH),
    Transition(P.HAS_BATCH, "has_batches", "take_step", P.STEPPED),
    # A signal to the process group has ended the workers that read the data, too.
    Transition(P.HAS_BATCH, "was_reading_interrupted", "", P.STOPPING),
    Transition(P.HAS_BATCH, "", "", P.AT_END),
    Transition(P.STEPPED, "", "tell_step", P.IN_EPOCH),
    Transition(P.STOPPING, "is_epoch_complete", "", P.AT_END),
    # Ctrl-C and SIGTERM: no report of an epoch that continues when the run is resumed.
    Transition(P.STOPPING, "was_interrupted", "read_losses", P.ENDED),
    # A resumed run must continue from the current state, which does not know the events at the end.
    Transition(P.STOPPING, "", "keep_state", P.CUT_OFF),
    Transition(P.AT_END, "", "flush", P.REPORTING),
    Transition(P.CUT_OFF, "", "measure_cut_off", P.REPORTING),
    # The model of one step is validated once.
    Transition(P.REPORTING, "is_final_validation_due", "validate", P.REPORTING),
    Transition(P.REPORTING, "is_cut_off", "report", P.ENDED),
    Transition(P.REPORTING, "", "report", P.BETWEEN),
)
"""All transitions. A run that fails, or that a second Ctrl-C ends, leaves the table in any state."""


Bound = tuple[tuple[Callable[[], Any] | None, Callable[[], Any] | None, str, Phase], ...]


def bound(methods: Any) -> dict[Phase, Bound]:
    """The rows of each state, with the methods of an object in place of their names."""
    table: dict[Phase, Bound] = {}
    for row in TRANSITIONS:
        when = getattr(methods, row.when) if row.when else None
        do = getattr(methods, row.do) if row.do else None
        table[row.at] = (*table.get(row.at, ()), (when, do, row.do, row.to))
    return table

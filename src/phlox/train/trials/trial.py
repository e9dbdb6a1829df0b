"""`on_trial`: a scope after which a learner is as it was before."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phlox.train.learner import Learner

_KEPT = (
    "folder", "plan", "stopped", "batch", "extra", "validation_data", "_fit", "_last", "is_resumed", "guards",
    "_schedules", "_carry_saved",
)  # fmt: skip
"""The learner's fields that are not part of its record."""


@contextmanager
def on_trial(learner: Learner[Any]) -> Generator[None]:
    """A scope at whose end the learner is as it was before, except for the programs that were compiled in it."""
    this: Any = learner
    fields = {name: getattr(this, name) for name in _KEPT}
    fields["extra"] = dict(learner.extra)
    trained = [[param.trained for param in model.params()] for model in this._models.values()]
    record = this.snapshot()
    try:
        yield
    finally:
        for name, value in fields.items():
            setattr(this, name, value)
        for model, flags in zip(this._models.values(), trained, strict=True):
            for param, flag in zip(model.params(), flags, strict=True):
                param.set_trained(flag)
        this._fit = None
        this.load_state(record)
        this._fit = fields["_fit"]

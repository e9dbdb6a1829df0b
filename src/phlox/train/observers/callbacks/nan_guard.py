"""`NanGuard`: stops a training at the first value that is not finite."""

from __future__ import annotations

from phlox.train.observers.callback import AnyLearner, Callback


class NanGuard(Callback):
    """Stops the training at the first step with a loss or new weights that are not finite, and undoes that step.

    Without it, a compiled loop reads losses some steps later, when the weights of these steps are gone. With it, the
    loop waits for each step and keeps a copy of the weights before it, which doubles their memory. The error names the
    step, the rows and the first layer; the model has the weights before the step.

    >>> from phlox.train import NanGuard
    >>> NanGuard().state()
    {}
    """

    def on_fit_start(self, learner: AnyLearner) -> None:
        learner.guards = True

    def on_fit_end(self, learner: AnyLearner) -> None:
        learner.guards = False

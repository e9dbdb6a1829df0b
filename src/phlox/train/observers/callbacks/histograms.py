"""`Histograms`: how the parameters of a model, and their gradients, are distributed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from phlox.errors import ModuleError, RunError
from phlox.module.select import select
from phlox.train.observers.callback import AnyLearner, Callback
from phlox.train.observers.callbacks.control import Selector, modules_of
from phlox.train.observers.callbacks.monitor import is_count
from phlox.train.values import Histogram


class Histograms(Callback):
    """Reports histograms of the parameters, for the loggers after it, at the end of epochs.

    In the rows of loggers they are `parameters/PATH`, and `gradients/PATH`; with several models a path begins with the
    name of its model. Loggers without histograms write the mean, the standard deviation, the least and the greatest
    value of each.

    Args:
        every_epochs: the number of epochs after which to report; a training that ends within an epoch reports too.
        params: which parameters: path patterns such as `"layers.0.**"`, or predicates `(path, param) -> bool`; see
            `phlox.module.select`. By default all of them.
        gradients: whether to report the gradient of the loss on the last batch, with the weights of now, too. It takes
            a forward and a backward pass, and changes nothing.
        bins: the number of bins.

    Raises `RunError` for numbers below 1 and, when the training begins, `ModuleError` for a pattern that matches no
    parameter; and with `gradients=True` also if the learner has `update=`, or several processes or devices.

    >>> Histograms(every_epochs=5, gradients=True)
    Histograms(every_epochs=5, gradients=True)
    """

    def __init__(
        self, every_epochs: int = 1, *, params: Selector = (), gradients: bool = False, bins: int = 64
    ) -> None:
        for name, value in (("every_epochs", every_epochs), ("bins", bins)):
            if not is_count(value):
                raise RunError(f"Histograms: {name} must be a whole number of at least one, got {value!r}")
        self.every_epochs, self.gradients, self.bins = every_epochs, gradients, bins
        self.params: tuple[Any, ...] = (params,) if isinstance(params, str) or callable(params) else (*params,)

    def on_fit_start(self, learner: AnyLearner) -> None:
        self._chosen(learner)  # raises for a wrong pattern
        if self.gradients:
            try:
                learner.check_has_gradients()
            except RunError as error:
                raise RunError(f"Histograms: {error}") from None

    def on_epoch_end(self, learner: AnyLearner) -> None:
        if learner.history[-1].complete and learner.epoch % self.every_epochs:
            return
        chosen = self._chosen(learner)
        for path, value in self._values(learner, chosen):
            learner.extra[f"parameters/{path}"] = Histogram(value, self.bins)
        for path, value in learner.gradients().items() if self.gradients else ():
            if path in chosen:
                learner.extra[f"gradients/{path}"] = Histogram(value, self.bins)

    def _chosen(self, learner: AnyLearner) -> dict[str, Any]:
        """The parameters by path."""
        params, failed = dict[str, Any](), None
        for name, module in modules_of(learner.model).items():
            try:
                named = select(module, *self.params)
            except ModuleError as error:  # the pattern may match in another model
                failed = error
                continue
            params |= {f"{name}.{path}" if name else path: param for path, param in named.items()}
        if not params and failed is not None:
            raise ModuleError(f"Histograms: {failed}") from failed
        return params

    def _values(self, learner: AnyLearner, chosen: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        if learner.team is None or not learner.team.in_shards:
            yield from ((path, param.val()) for path, param in chosen.items())
            return
        for name, module in modules_of(learner.model).items():
            whole = learner.team.whole(module.into_record())  # a process may have only a part of it
            for path, entry in whole.tensors.items():
                path = f"{name}.{path}" if name else path
                if path in chosen:
                    yield path, entry.tensor.read()

    def __repr__(self) -> str:
        return f"Histograms(every_epochs={self.every_epochs}{', gradients=True' if self.gradients else ''})"

"""`Callback`: the base class of code that is called during a training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from phlox.errors import KindError, RunError
from phlox.other_names import remark

if TYPE_CHECKING:
    from phlox.train.learner import Learner

AnyLearner: TypeAlias = "Learner[Any]"

EVENTS = (
    "on_fit_start", "on_epoch_start", "on_step_skipped", "on_step_end", "on_validation_start", "on_validation_end",
    "on_epoch_end", "on_fit_end",
)  # fmt: skip
"""The events of `Callback` that take nothing but the learner."""
_ALL_EVENTS = (*EVENTS, "on_checkpoint", "on_exception")


class Callback:
    """The base class of callbacks, whose methods a `Learner` calls at the events of a training.

    Override the methods that you need. A callback may read the learner, stop it, save it, change learning rates, and
    freeze or unfreeze parameters.

    Callbacks are called in the order in which they were given; those with `last = True` (such as `Checkpoints`, which
    saves the state of the others) come after all others. `on_fit_end` is called in the opposite order, however the
    training ends, for every callback whose `on_fit_start` was called. So, for example, the last state is saved before
    `EarlyStopping` restores the best weights.

    An exception in a callback ends the training: `on_exception` and `on_fit_end` of all callbacks are called, then
    `fit` raises the exception. The model keeps the weights of the last step.

    A callback with state of its own returns it from `state`, as plain values; a resumed training passes it to
    `restore`.

    Defining a method for an event that does not exist (misspelled, or another library's) raises `KindError`.

    >>> from phlox.train import Callback
    >>> class Shout(Callback):
    ...     def on_epoch_end(self, learner):
    ...         print(f"EPOCH {learner.epoch}!")
    """

    last: ClassVar[bool] = False
    """Is it called after all callbacks that are not `last`?"""
    writes: ClassVar[bool] = False
    """Does it write files? A dry run leaves out such callbacks."""
    main_only: ClassVar[bool | None] = None
    """With several processes, is it called only in process 0? None means: only if it `writes`."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in vars(cls):
            if name.startswith("on_") and name not in _ALL_EVENTS and (hint := remark(name, "Callback", _ALL_EVENTS)):
                raise KindError(f"{cls.__name__}.{name}: there is no such event, so it would never be called{hint}")

    @classmethod
    def is_of_main(cls) -> bool:
        """Is it called only in process 0, with several processes (`mesh=`)?"""
        return cls.writes if cls.main_only is None else cls.main_only

    def hears(self, event: str) -> bool:
        """Does it override the method of an event?"""
        method = getattr(self, event)
        return getattr(method, "__func__", method) is not getattr(Callback, event)

    def save_now(self, learner: AnyLearner) -> None:
        """Called after a step that all processes have agreed on; save the state, if this callback saves it."""

    def on_fit_start(self, learner: AnyLearner) -> None:
        """Called before the first step. If the training is resumed, its state has been restored."""

    def on_epoch_start(self, learner: AnyLearner) -> None:
        """Called before the first batch of an epoch, but not when an epoch is resumed in the middle."""

    def on_step_skipped(self, learner: AnyLearner) -> None:
        """Called before `on_step_end` if the optimizer skipped the step, because gradients were not finite.

        This happens with loss scaling; `learner.skipped` counts such steps.
        """

    def on_step_end(self, learner: AnyLearner) -> None:
        """Called after each step; with `steps_per_call=n`, after each n. Reading `learner.loss` waits for its value."""

    def on_validation_start(self, learner: AnyLearner) -> None:
        """Called before each validation."""

    def on_validation_end(self, learner: AnyLearner) -> None:
        """Called after each validation; `learner.validation` has its values by the name of the metric."""

    def on_epoch_end(self, learner: AnyLearner) -> None:
        """Called after an epoch and its validation; `learner.history[-1]` is the report of the epoch."""

    def on_checkpoint(self, learner: AnyLearner, path: Path) -> None:
        """Called after the state was saved to the file `path`."""

    def on_exception(self, learner: AnyLearner, error: BaseException) -> None:
        """Called when the training ends with an exception, Ctrl-C included."""

    def on_fit_end(self, learner: AnyLearner) -> None:
        """Called at the end of `fit`, however the training ended."""

    def state(self) -> Mapping[str, Any]:
        """Return the state to restore when the training is resumed, as plain values."""
        return {}

    def restore(self, state: Mapping[str, Any], /) -> None:
        """Restore a state that `state` returned."""


class LambdaCallback(Callback):
    """A callback made of functions by the names of events; each is called with the learner.

    Args:
        events: the functions, such as `on_epoch_end=...`.

    Raises `RunError` for an event that does not exist.

    >>> from phlox.train import LambdaCallback
    >>> LambdaCallback(on_epoch_end=lambda learner: print(learner.epoch))
    LambdaCallback(on_epoch_end)
    """

    def __init__(self, **events: Callable[[AnyLearner], Any]) -> None:
        for name, function in events.items():
            if name not in EVENTS:
                hint = remark(name, "Callback")
                raise RunError(f"LambdaCallback: there is no event {name!r}{hint}; there are {', '.join(EVENTS)}")
            if not callable(function):
                raise RunError(f"LambdaCallback: {name} is {function!r}; give a function of the learner")
            setattr(self, name, function)
        self._events = tuple(events)

    def __repr__(self) -> str:
        return f"LambdaCallback({', '.join(self._events)})"

"""`Callback`: what takes part in a training, step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from phlox.errors import KindError, RunError
from phlox.other_names import remark

if TYPE_CHECKING:
    from phlox.train.learner import Learner

AnyLearner: TypeAlias = "Learner[Any]"

EVENTS = (
    "on_fit_start", "on_epoch_start", "on_step_end", "on_validation_start", "on_validation_end", "on_epoch_end",
    "on_fit_end",
)  # fmt: skip
"""The events of `Callback` that take nothing but the learner."""
_ALL_EVENTS = (*EVENTS, "on_checkpoint", "on_exception")


def _hint(name: str, known: Sequence[str] = ()) -> str:
    from phlox.other_names.objects import EVENTS as OTHER_EVENTS

    return remark(name, OTHER_EVENTS, known)


class Callback:
    """Takes part in a training: it may look at the learner, stop it, save it, change rates, freeze and unfreeze.

    Override the methods that you need. At every event callbacks are called in the order in which they were given, and
    those that are `last` (such as `Checkpoints`, which save what the others hold) after all others. `on_fit_end` is
    called in the opposite order, of every callback whose `on_fit_start` was called, however the training ends; so the
    last state is saved before the others put the best weights back, for example.

    An exception in a callback ends the training: `on_exception` and `on_fit_end` of all are called, and the exception
    goes on to the caller of `fit`. The model is what the last step has made of it.

    What a callback has to remember when a training is resumed it gives as `state`, in plain values, and takes with
    `restore`.

    A class with an event of another library's, or a misspelled one, is a `KindError`: nobody would call it.

    >>> from phlox.train import Callback
    >>> class Shout(Callback):
    ...     def on_epoch_end(self, learner):
    ...         print(f"EPOCH {learner.epoch}!")
    """

    last: ClassVar[bool] = False
    """Is it called after those that are not?"""
    writes: ClassVar[bool] = False
    """Does it write files? A dry run leaves out those that do."""
    main_only: ClassVar[bool | None] = None
    """Of several processes, is it called in process 0 alone? None: where it writes."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in vars(cls):
            if name.startswith("on_") and name not in _ALL_EVENTS and (hint := _hint(name, _ALL_EVENTS)):
                raise KindError(f"{cls.__name__}.{name}: there is no such event, so it would never be called{hint}")

    @classmethod
    def is_of_main(cls) -> bool:
        """Of several processes (`mesh=`), is it called in process 0 alone?"""
        return cls.writes if cls.main_only is None else cls.main_only

    def save_now(self, learner: AnyLearner) -> None:
        """Save, if it saves the state: all processes have agreed on this step."""

    def on_fit_start(self, learner: AnyLearner) -> None:
        """Before the first step; where a training is resumed, its state has been restored."""

    def on_epoch_start(self, learner: AnyLearner) -> None:
        """Before the first batch of an epoch; not where one is resumed in the middle."""

    def on_step_end(self, learner: AnyLearner) -> None:
        """After each step; with `steps_per_call=n`, after n of them. `learner.loss` waits for the engine."""

    def on_validation_start(self, learner: AnyLearner) -> None:
        """Before the validation data are gone through."""

    def on_validation_end(self, learner: AnyLearner) -> None:
        """After that: `learner.validation` has the values, by metric."""

    def on_epoch_end(self, learner: AnyLearner) -> None:
        """After an epoch and its validation, which `learner.history[-1]` reports."""

    def on_checkpoint(self, learner: AnyLearner, path: Path) -> None:
        """After the state was saved to a file."""

    def on_exception(self, learner: AnyLearner, error: BaseException) -> None:
        """Where the training ends with an exception, Ctrl-C included."""

    def on_fit_end(self, learner: AnyLearner) -> None:
        """At the end."""

    def state(self) -> Mapping[str, Any]:
        """What is to be restored where the training is resumed, as plain values."""
        return {}

    def restore(self, state: Mapping[str, Any], /) -> None:
        """Take such a state."""


class LambdaCallback(Callback):
    """A callback made of functions, by event: each is called with the learner.

    Raises `RunError` for an event that does not exist.

    >>> from phlox.train import LambdaCallback
    >>> LambdaCallback(on_epoch_end=lambda learner: print(learner.epoch))
    LambdaCallback(on_epoch_end)
    """

    def __init__(self, **events: Callable[[AnyLearner], Any]) -> None:
        for name, function in events.items():
            if name not in EVENTS:
                hint = _hint(name)
                raise RunError(f"LambdaCallback: there is no event {name!r}{hint}; there are {', '.join(EVENTS)}")
            if not callable(function):
                raise RunError(f"LambdaCallback: {name} is {function!r}; give a function of the learner")
            setattr(self, name, function)
        self._events = tuple(events)

    def __repr__(self) -> str:
        return f"LambdaCallback({', '.join(self._events)})"

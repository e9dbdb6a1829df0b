"""Numbers that a user's step is given by name: `inputs=`, and the numbers of step and epoch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from phlox.errors import RunError
from phlox.tensor import Tensor

ALL = "inputs"
"""The name of a parameter that is given all of them, as a dict."""
OFFERED = ("step", "epoch", "progress")
"""What every step may ask for by name: how many steps were taken before, how many epochs have ended, and the share of
the training that is over."""


class Asked:
    """The names of a function's parameters beyond those that are given by place.

    Args:
        function: the user's function; None asks for nothing.
        what: the argument that it is, for error messages.
        by_place: how many arguments it gets by place; None if any number.
    """

    def __init__(self, function: Callable[..., Any] | None, what: str, by_place: int | None) -> None:
        self.what = what
        self.required: list[str] = []
        self.optional: list[str] = []
        try:
            parameters = list(inspect.signature(function).parameters.values()) if function is not None else []
        except (TypeError, ValueError):  # of a function in C
            parameters = []
        placed = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
        named = [] if by_place is None else [one for one in placed[by_place:] if one.kind is one.POSITIONAL_OR_KEYWORD]
        for one in (*named, *(one for one in parameters if one.kind is one.KEYWORD_ONLY)):
            (self.required if one.default is one.empty else self.optional).append(one.name)
        self.names: tuple[str, ...] = (*self.required, *self.optional)
        self.always = bool(self.required) or any(name == ALL or name in OFFERED for name in self.names)
        """Is there a name that needs a value, or gets one, where nobody gives inputs?"""

    def given(self, inputs: Mapping[str, Any], offered: Callable[[str], Any]) -> dict[str, Any]:
        """The values for this call; `RunError` for a name that nobody gives.

        Args:
            inputs: those that were given.
            offered: the value of a name in `OFFERED`; None if it is not known.
        """
        found: dict[str, Any] = {}
        for name in self.names:
            if name in inputs:
                found[name] = inputs[name]
            elif name == ALL:
                every = {one: offered(one) for one in OFFERED} | dict(inputs)
                found[name] = {one: value for one, value in every.items() if value is not None}
            elif name in OFFERED:
                found[name] = offered(name)
                if found[name] is None:
                    raise RunError(
                        "a function asks for `progress`, and the end of the training is not known: give fit steps=, or "
                        "epochs= and data that have a length"
                    )
            elif name in self.required:
                raise RunError(
                    f"{self.what}= asks for {name!r}, which nobody gives: give inputs={{{name!r}: ...}} to the "
                    f"learner, or set learner.inputs[{name!r}]; {', '.join(OFFERED)} are always there"
                )
        return found


def value_of(name: str, value: Any, learner: Any) -> Any:
    """The value of an input now, which may be a function of the learner; `RunError` for anything but numbers."""
    if callable(value) and not isinstance(value, Tensor):
        value = cast("Callable[[Any], Any]", value)(learner)
    if isinstance(value, np.generic):
        value = cast("Any", value).item()
    if not isinstance(value, (bool, int, float, np.ndarray, Tensor)):
        raise RunError(f"inputs: {name!r} is a number, an array or a function of the learner, got {value!r}")
    return cast("Any", value)

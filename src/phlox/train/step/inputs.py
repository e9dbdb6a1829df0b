"""Numbers that a user's step gets by name: `inputs=`, and the numbers of step and epoch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from phlox.errors import RunError
from phlox.tensor import Tensor

ALL = "inputs"
"""The name of a parameter that gets all inputs, as a dict."""
OFFERED = ("step", "epoch", "progress")
"""The names that are always available: the number of steps before this one, the number of epochs that have ended, and
the share of the training that is over."""


class Asked:
    """The names of a function's parameters beyond its positional ones.

    Args:
        function: the user's function; None asks for nothing.
        argument: the learner's argument that the function was passed as, for error messages.
        num_args: the number of positional arguments of a call; None if it may be any number.
    """

    def __init__(self, function: Callable[..., Any] | None, argument: str, num_args: int | None) -> None:
        self.argument = argument
        self.required: list[str] = []
        self.optional: list[str] = []
        try:
            parameters = list(inspect.signature(function).parameters.values()) if function is not None else []
        except (TypeError, ValueError):  # a function in C may have no signature
            parameters = []
        positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        named = [] if num_args is None else [p for p in positional[num_args:] if p.kind is p.POSITIONAL_OR_KEYWORD]
        for p in (*named, *(p for p in parameters if p.kind is p.KEYWORD_ONLY)):
            (self.required if p.default is p.empty else self.optional).append(p.name)
        self.names: tuple[str, ...] = (*self.required, *self.optional)
        self.always = bool(self.required) or any(name == ALL or name in OFFERED for name in self.names)
        """Does a call need or get arguments even if there are no inputs?"""

    def arguments(self, inputs: Mapping[str, Any], offered: Callable[[str], Any]) -> dict[str, Any]:
        """The arguments by name for a call; `RunError` for a name without a value.

        Args:
            inputs: the inputs by name.
            offered: a function from a name in `OFFERED` to its value, or to None if it is not known.
        """
        arguments: dict[str, Any] = {}
        for name in self.names:
            if name in inputs:
                arguments[name] = inputs[name]
            elif name == ALL:
                all_inputs = {key: offered(key) for key in OFFERED} | dict(inputs)
                arguments[name] = {key: value for key, value in all_inputs.items() if value is not None}
            elif name in OFFERED:
                arguments[name] = offered(name)
                if arguments[name] is None:
                    raise RunError(
                        "a function asks for `progress`, and the end of the training is not known: give steps= to fit, "
                        "or epochs= and data with a length"
                    )
            elif name in self.required:
                raise RunError(
                    f"{self.argument}= asks for {name!r}, which nobody gives: give inputs={{{name!r}: ...}} to the "
                    f"learner, or set learner.inputs[{name!r}]; {', '.join(OFFERED)} are always there"
                )
        return arguments


def value_of(name: str, value: Any, learner: Any) -> Any:
    """The current value of an input, which may be a function of the learner; `RunError` for anything but numbers."""
    if callable(value) and not isinstance(value, Tensor):
        value = cast("Callable[[Any], Any]", value)(learner)
    if isinstance(value, np.generic):
        value = cast("Any", value).item()
    if not isinstance(value, (bool, int, float, np.ndarray, Tensor)):
        raise RunError(f"inputs: {name!r} must be a number, an array or a function of the learner, got {value!r}")
    return cast("Any", value)

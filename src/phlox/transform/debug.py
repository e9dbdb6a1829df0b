"""`phlox.debug`: finding what is wrong inside compiled functions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np

from phlox.backend import Float
from phlox.backend.tracing.checks import checks
from phlox.module import Module
from phlox.module.calls import Call, observed
from phlox.tensor import Tensor
from phlox.transform.compile.recompiles import Change, Recompile, explain_recompiles
from phlox.transform.tree import leaves_of

__all__ = ["Change", "Recompile", "checks", "explain_recompiles", "find_nonfinite"]


def find_nonfinite(run: Callable[[], object], **models: Module) -> str | None:
    """The first place at which something is NaN or infinite while `run()` is called, in words; None if there is none.

    That is a parameter of the models; or else the first call of one of their modules whose result is not finite, with
    what it was given; or else what `run` returns. `run` must compute eagerly, and call the models that are given.

    >>> import phlox as px
    >>> from phlox import nn
    >>> model = nn.Sequential([nn.Linear(2, 3, initializer=nn.Ones()), lambda x: x.log(), nn.Linear(3, 1)]).init(0)
    >>> print(find_nonfinite(lambda: model(-px.ones((1, 2))), model=model))
    NaN (1 of 1 elements) in the output of `model.layers.2` (Linear), which is given NaN (3 of 3 elements)
    """
    for name, model in models.items():
        for path, param in model.named_params():
            if param.is_initialized and (found := _what(param.val())):
                return f"{found} in the parameter `{name}.{path}`"
    bad: list[str] = []

    def look(name: str) -> Callable[[Call], None]:
        def on_call(call: Call) -> None:
            if bad or not (found := _first(call.outputs)):
                return
            given = _first((call.args, call.kwargs))
            inputs = f"which is given {given}" if given else "whose inputs are finite"
            bad.append(
                f"{found} in the output of `{name}{f'.{call.path}' if call.path else ''}` "
                f"({type(call.module).__name__}), {inputs}"
            )

        return on_call

    with ExitStack() as stack, np.errstate(all="ignore"):
        for name, model in models.items():
            stack.enter_context(observed(model, look(name)))
        result = run()
    if bad:
        return bad[0]
    found = _first(result)
    return f"{found} in what is computed of the outputs, all of which are finite" if found else None


def _first(value: Any) -> str | None:
    for _, x in leaves_of(value, Tensor):
        if found := _what(x):
            return found
    return None


def _what(x: Tensor[Any, Any, Any]) -> str | None:
    """What is not finite in a tensor, and how much of it."""
    if x.kind is not Float:
        return None
    array = np.asarray(x.detach().numpy())
    if np.isfinite(array).all():
        return None
    what = "NaN" if np.isnan(array).any() else "infinity"
    return f"{what} ({np.count_nonzero(~np.isfinite(array))} of {array.size} elements)"

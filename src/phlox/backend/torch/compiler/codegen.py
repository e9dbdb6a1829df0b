"""The environment variables of the compiler: whether programs are compiled, and with which passes."""

from __future__ import annotations

import os
from functools import lru_cache

from phlox.backend.reproducible import is_reproducible
from phlox.errors import CompileError

VARIABLE = "PHLOX_TORCH_CODEGEN"
"""The environment variable that says what compiles a graph: `inductor`, or `none` to run it as it was traced."""

PASSES_VARIABLE = "PHLOX_TORCH_PASSES"
"""The environment variable that switches passes of `pipeline.PASSES` off by name: `-winograd,-attention`."""

ALL = "all"


def codegen() -> str:
    """Return "inductor" or "none", as the environment says; `CompileError` for anything else.

    In the reproducible mode it is "none": Inductor's loops round the last elements of an array in another way.
    """
    if is_reproducible():
        return "none"
    choice = os.environ.get(VARIABLE, "inductor")
    if choice not in ("inductor", "none"):
        raise CompileError(f"the environment variable {VARIABLE} is `inductor` or `none`, got {choice!r}")
    return choice


def switches() -> tuple[str, ...]:
    """The words of the variable, in their order: a name, or a name after `-`."""
    return _words(os.environ.get(PASSES_VARIABLE, ""))


@lru_cache(16)
def _words(text: str) -> tuple[str, ...]:
    return tuple([word for word in (part.strip() for part in text.split(",")) if word])


def is_on(name: str) -> bool:
    """Is the pass with this name switched on? The last word for it counts.

    >>> is_on("winograd")
    True
    """
    on = True
    for word in switches():
        if word.removeprefix("-") in (ALL, name):
            on = not word.startswith("-")
    return on

"""`SimpleOptimizer`: an optimizer of one tensor, which is all that a new one has to write."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeAlias

from phlox.optim.state import State
from phlox.tensor import Tensor

Stepped: TypeAlias = "tuple[list[tuple[Tensor[Any, Any, Any], State]], Callable[[], object]]"
"""Tensors and states that will hold what a step comes to, and the function that sees to it."""


class SimpleOptimizer(ABC):
    """An optimizer that treats one tensor at a time. `OptimizerAdaptor` does everything else.

    >>> class SignSgd(SimpleOptimizer):
    ...     def step(self, lr, tensor, grad, state):
    ...         return tensor - grad.sign() * lr, state
    """

    shares_counts: ClassVar[bool] = False
    """Do parameters whose counts are equal keep them so, since `step` counts by `phlox.optim.sharing.shared`?

    A compiled function then has one number for all of them.
    """

    def init(self, tensor: Tensor[Any, Any, Any]) -> State:
        """The state before the first step; None unless the optimizer needs one.

        Tensors, numbers, strings, truth values and None, in dicts, lists and tuples.
        """
        return None

    @abstractmethod
    def step(
        self, lr: float, tensor: Tensor[Any, Any, Any], grad: Tensor[Any, Any, Any], state: State
    ) -> tuple[Tensor[Any, Any, Any], State]:
        """The tensor after one step, and the state. All tensors are on one plain device.

        Under `phlox.compile` numbers (`lr`, counts in the state) are stand-ins: do arithmetic on them, do not branch.
        """

    def step_all(
        self,
        lr: float,
        tensors: Sequence[Tensor[Any, Any, Any]],
        grads: Sequence[Tensor[Any, Any, Any]],
        states: Sequence[State],
        own: Sequence[bool],
    ) -> Stepped | None:
        """Several tensors of one plain device at once, where that is faster; None, as here, where it is not.

        Gives tensors and states that will hold what the step comes to, and the function that sees to it. Where `own`
        is true, nobody else holds the tensors of the state, and that function may write to them; it is called once, and
        whatever can fail has been done by then. The tensors of the states that are given must be nobody else's again.
        It is not asked in a compiled function, and must give what `step` does.
        """
        return None

    def averaged(self, tensor: Tensor[Any, Any, Any], state: State) -> Tensor[Any, Any, Any]:
        """What to predict with, of a parameter that has been stepped: it, unless the optimizer keeps an average."""
        return tensor

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # Whoever writes another step wants that to be taken.
        if "step" in cls.__dict__ and "step_all" not in cls.__dict__:
            cls.step_all = SimpleOptimizer.step_all

"""`SimpleOptimizer`: an optimizer of one tensor, which is all that a new one has to write."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple, Self

from phlox.backend import Backend
from phlox.backend.contract.update import Real
from phlox.config import BaseConfig
from phlox.errors import OptimizerError
from phlox.optim.state.tree import State
from phlox.tensor import Tensor


class Kernel(NamedTuple):
    """An update that engines may have for many tensors at once, see `phlox.backend.contract.update`."""

    name: str
    """What the backends know it by,"""
    numbers: Any
    """and what it depends on beside tensors."""
    after: tuple[Real, ...]
    """The numbers of the state after the step, in their order there."""


class SimpleOptimizer(ABC):
    """An optimizer that treats one tensor at a time. `OptimizerAdaptor` does everything else.

    >>> class SignSgd(SimpleOptimizer):
    ...     def step(self, lr, tensor, grad, state):
    ...         return tensor - grad.sign() * lr, state
    """

    shares_counts: ClassVar[bool] = False
    """Do parameters whose numbers are equal keep them so, since `step` finds them by `shared`?

    A compiled function then has one number for all of them; real numbers are one where they stand in the same place.
    """

    elementwise: ClassVar[bool] = False
    """Does an element of every result of `step` depend on those elements alone that stand in the same place?

    No norm, no mean, no product of matrices; states of tensors of the parameter's shape and numbers. `step` may then be
    given flat parts of parameters, and several in one: eagerly large models are stepped block by block, in memory that
    is the optimizer's own, and nothing is left over from a block but its results. Numbers of the state are those that
    the first call gives; they must not depend on tensors. A class that overrides `step` says anew that it is.
    """

    def __new__(cls, *arguments: Any, **options: Any) -> Self:
        """Refuse what other libraries give to an optimizer of this name: parameters, rates, options."""
        given = [*arguments, *options.values()]
        if given and cls.__module__.startswith("phlox.") and not isinstance(given[0], BaseConfig):
            raise OptimizerError(
                f"{cls.__name__}: make an optimizer from its config, phlox.optim.{cls.__name__}Config(...).init(); "
                "model, gradients and learning rate are given to each step, optimizer.step(lr, model, grads)"
            )
        return super().__new__(cls)

    def init(self, tensor: Tensor[Any, Any, Any]) -> State:
        """The state before the first step; None unless the optimizer needs one.

        Tensors, NumPy arrays and scalars, numbers, strings, bytes, enums, truth values, None, modules, and objects with
        `into_record` and `load_record`; in dicts, lists, tuples, named tuples, dataclasses and sets. What is no tensor
        or number is a constant of a compiled step, which is compiled anew when it changes.
        """
        return None

    @abstractmethod
    def step(
        self, lr: float, tensor: Tensor[Any, Any, Any], grad: Tensor[Any, Any, Any], state: State
    ) -> tuple[Tensor[Any, Any, Any], State]:
        """The tensor after one step, and the state. All tensors are on one plain device.

        Under `phlox.compile` scalars (`lr`, counts in the state) are traced: do arithmetic on them, do not branch.
        """

    def kernel(self, lr: float, state: State, backend: Backend) -> Kernel | None:
        """What engines may have a kernel of their own for, which does what `step` does; None unless there is one.

        The kernel takes the tensors of the state in their order there. It is not asked in a compiled function.
        """
        return None

    def averaged(self, tensor: Tensor[Any, Any, Any], state: State) -> Tensor[Any, Any, Any]:
        """What to predict with, of a parameter that has been stepped: it, unless the optimizer keeps an average."""
        return tensor

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # A class with a step of its own may be an optimizer of another kind.
        if "step" in cls.__dict__:
            if "elementwise" not in cls.__dict__:
                cls.elementwise = False
            if "kernel" not in cls.__dict__:
                cls.kernel = SimpleOptimizer.kernel

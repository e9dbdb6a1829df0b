"""`SimpleOptimizer`: an optimizer of one tensor, the base class for new optimizers."""

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
    """The name of the operation in the backends."""
    numbers: Any
    """The scalars that it depends on."""
    after: tuple[Real, ...]
    """The scalars of the state after the step, in the state's order."""


class SimpleOptimizer(ABC):
    """Base class of optimizers that update one tensor at a time. `OptimizerAdaptor` does everything else.

    >>> class SignSgd(SimpleOptimizer):
    ...     def step(self, lr, tensor, grad, state):
    ...         return tensor - grad.sign() * lr, state
    """

    shares_counts: ClassVar[bool] = False
    """Do parameters whose scalars are equal keep them equal, because `step` computes them with `shared`?

    A compiled function then has one scalar for all of them. Real numbers are shared only at equal places in the state.
    """

    elementwise: ClassVar[bool] = False
    """Does each element of every result of `step` depend only on the elements at the same place?

    So `step` has no norm, mean or matrix product, and the state consists of scalars and of tensors of the parameter's
    shape. `step` can then be called on flat blocks, and on several parameters joined into one: in eager mode large
    models are updated block by block, in memory that the optimizer owns. The scalars of the state come from the first
    call; they must not depend on tensors. A class that overrides `step` must set this again.
    """

    def __new__(cls, *arguments: Any, **options: Any) -> Self:
        """Refuse the arguments that other libraries pass to an optimizer of this name: parameters, rates, options."""
        given = [*arguments, *options.values()]
        if given and cls.__module__.startswith("phlox.") and not isinstance(given[0], BaseConfig):
            raise OptimizerError(
                f"{cls.__name__}: make an optimizer from its config, phlox.optim.{cls.__name__}Config(...).init(); "
                "model, gradients and learning rate are given to each step, optimizer.step(lr, model, grads)"
            )
        return super().__new__(cls)

    def init(self, tensor: Tensor[Any, Any, Any]) -> State:
        """The state before the first step; None by default.

        A state can hold tensors, modules, scalars, NumPy arrays, strings, bytes, enums, bools, None, and objects with
        `into_record` and `load_record`, in dicts, lists, tuples, named tuples, dataclasses and sets. In a compiled step
        everything except tensors and numbers is a constant: the step is recompiled when it changes.
        """
        return None

    @abstractmethod
    def step(
        self, lr: float, tensor: Tensor[Any, Any, Any], grad: Tensor[Any, Any, Any], state: State
    ) -> tuple[Tensor[Any, Any, Any], State]:
        """Take one step: returns the new tensor and the new state. All tensors are on one device, without a tape.

        Under `phlox.compile` scalars (`lr`, counts in the state) are traced: do arithmetic on them, do not branch.
        """

    def kernel(self, lr: float, state: State, backend: Backend) -> Kernel | None:
        """An update equal to `step` for which engines may have their own kernel; None by default.

        The kernel takes the tensors of the state in the state's order. It is not used in compiled functions.
        """
        return None

    def averaged(self, tensor: Tensor[Any, Any, Any], state: State) -> Tensor[Any, Any, Any]:
        """The value to predict with: the parameter itself, unless the optimizer keeps an average."""
        return tensor

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # A class with a step of its own may be an optimizer of another kind.
        if "step" in cls.__dict__:
            if "elementwise" not in cls.__dict__:
                cls.elementwise = False
            if "kernel" not in cls.__dict__:
                cls.kernel = SimpleOptimizer.kernel

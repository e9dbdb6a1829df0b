"""`SimpleOptimizer`: an optimizer of one tensor, the base class for new optimizers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeAlias, TypeVar

from phlox.backend import Backend
from phlox.backend.contract.update import Real
from phlox.config import BaseConfig
from phlox.errors import OptimizerError
from phlox.optim.state.tree import State
from phlox.tensor import Tensor, zeros_like

C = TypeVar("C", bound=BaseConfig)
AnyTensor: TypeAlias = Tensor[Any, Any, Any]


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
    """Whether parameters with equal scalars keep them equal, because `step` computes them with `shared`.

    A compiled function then has one scalar for all of them. Real numbers are shared only at equal paths in the state.
    """

    elementwise: ClassVar[bool] = False
    """Whether each element of every result of `step` depends only on the elements at the same index.

    So `step` has no norm, mean or matrix product, and the state consists of scalars and of tensors of the parameter's
    shape. `step` can then be called on flat blocks, and on several parameters joined into one: in eager mode large
    models are updated block by block, in memory that the optimizer owns. The scalars of the state come from the first
    call; they must not depend on tensors. A class that overrides `step` must set this again.
    """

    def __new__(cls, *arguments: Any, **options: Any) -> Self:
        """Refuse the arguments that other libraries pass to an optimizer of this name: parameters, rates, options."""
        values = [*arguments, *options.values()]
        if values and cls.__module__.startswith("phlox.") and not isinstance(values[0], BaseConfig):
            raise OptimizerError(
                f"{cls.__name__}: make an optimizer from its config, phlox.optim.{cls.__name__}Config(...).init(); "
                "model, gradients and learning rate are given to each step, optimizer.step(lr, model, grads)"
            )
        return super().__new__(cls)

    def init(self, tensor: AnyTensor) -> State:
        """The state before the first step; None by default.

        A state can hold tensors, modules, scalars, NumPy arrays, strings, bytes, enums, bools, None, and objects with
        `into_record` and `load_record`, in dicts, lists, tuples, named tuples, dataclasses and sets. In a compiled step
        everything except tensors and numbers is a constant: the step is recompiled when it changes.
        """
        return None

    @abstractmethod
    def step(self, lr: float, tensor: AnyTensor, grad: AnyTensor, state: State) -> tuple[AnyTensor, State]:
        """Take one step: returns the new tensor and the new state. All tensors are on one device, without a tape.

        Under `phlox.compile` scalars (`lr`, counts in the state) are traced: do arithmetic on them, do not branch.
        """

    def kernel(self, lr: float, state: State, backend: Backend) -> Kernel | None:
        """An update equal to `step` for which engines may have their own kernel; None by default.

        The kernel takes the tensors of the state in the state's order. It is not used in compiled functions.
        """
        return None

    def averaged(self, tensor: AnyTensor, state: State) -> AnyTensor:
        """The value to predict with: the parameter itself, unless the optimizer keeps an average."""
        return tensor

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # A class that overrides `step` may not be elementwise, and may not equal the kernel.
        if "step" in cls.__dict__:
            if "elementwise" not in cls.__dict__:
                cls.elementwise = False
            if "kernel" not in cls.__dict__:
                cls.kernel = SimpleOptimizer.kernel


class Rule(SimpleOptimizer, Generic[C]):
    """The base class of the optimizers of Phlox: a formula with a config, and a state of tensors and numbers.

    Parameters with equal counts keep them equal, see `SimpleOptimizer.shares_counts`.
    """

    shares_counts = True
    moments: ClassVar[tuple[str, ...]] = ()
    """The names of the state's tensors, which are of the parameter's shape and begin as zeros."""
    squares: ClassVar[frozenset[str]] = frozenset()
    """The names of those that are at least zero."""
    scalars: ClassVar[Mapping[str, float]] = {"time": 0}
    """The numbers of the state, with their first values; "time" counts the steps."""

    def __init__(self, config: C) -> None:
        self.config = config

    def init(self, tensor: AnyTensor) -> State:
        return {**{name: zeros_like(tensor) for name in self.moments}, **self.scalars}


def title_of(optimizer: object) -> str:
    """The name of an optimizer: that of its config if it has one, such as AdamW, or of its class."""
    config = getattr(optimizer, "config", None)
    return type(config).__name__.removesuffix("Config") if isinstance(config, BaseConfig) else type(optimizer).__name__

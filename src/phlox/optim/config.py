"""`SimpleConfig`: the base class of the hyper-parameters of most optimizers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

from phlox.config import Config
from phlox.errors import ConfigError
from phlox.optim.clipping import GradientClipping
from phlox.optim.groups import Group
from phlox.optim.simple import SimpleOptimizer
from phlox.optim.step.adaptor import OptimizerAdaptor


class SimpleConfig(Config, ABC):
    """Base class of the hyper-parameters of a `SimpleOptimizer`. A subclass declares fields and the method `simple`.

    Every number must be finite and at least zero; if its name begins with `beta`, also less than one. Otherwise
    `ConfigError` is raised.

    >>> import phlox as px
    >>> from phlox import optim
    >>> class SignConfig(optim.SimpleConfig):
    ...     weight_decay: float = 0.0
    ...     def simple(self):
    ...         return Sign(self)
    >>> class Sign(optim.SimpleOptimizer):
    ...     def __init__(self, config):
    ...         self.config = config
    ...     def step(self, lr, tensor, grad, state):
    ...         return tensor * (1.0 - lr * self.config.weight_decay) - grad.sign() * lr, state
    >>> SignConfig(weight_decay=0.1).init()
    OptimizerAdaptor(Sign, 0 states)
    """

    __phlox_by_name__ = "the learning rate is given to each step, optimizer.step(lr, model, grads)"

    def validate(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, (int, float)) or isinstance(value, bool):
                continue
            below_one = name.startswith("beta")
            if not (value >= 0.0 and (value < 1.0 if below_one else math.isfinite(value))):
                raise ConfigError(f"{name} must {'lie in [0, 1)' if below_one else 'be at least zero'}, got {value}")

    @abstractmethod
    def simple(self) -> SimpleOptimizer:
        """Create the optimizer of one tensor."""

    def init(
        self,
        *,
        groups: Sequence[Group] = (),
        grad_clipping: GradientClipping | None = None,
        skip_nonfinite: bool = False,
        master_weights: bool = True,
        donate: bool = False,
    ) -> OptimizerAdaptor:
        """Create an optimizer of whole modules; the arguments are those of `OptimizerAdaptor`.

        >>> from phlox import optim
        >>> optim.AdamWConfig(weight_decay=0.1).init(grad_clipping=optim.GradientClipping.global_norm(1.0))
        OptimizerAdaptor(AdamW, 0 states)
        """
        return OptimizerAdaptor(
            self.simple(),
            groups=groups,
            grad_clipping=grad_clipping,
            skip_nonfinite=skip_nonfinite,
            master_weights=master_weights,
            donate=donate,
        )

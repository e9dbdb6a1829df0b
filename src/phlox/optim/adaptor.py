"""`SimpleOptimizer`: an optimizer of one tensor; and the adaptor that makes one of whole modules of it."""

from __future__ import annotations

import math
import operator
import weakref
from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import Any, ClassVar, cast

import numpy as np

from phlox.backend import Float
from phlox.errors import OptimizerError
from phlox.module import GradientsParams, Param, ParamId
from phlox.module.structure import ByIdentity
from phlox.optim.clipping import GradientClipping
from phlox.optim.optimizer import M, Optimizer, brought
from phlox.optim.sharing import sharing
from phlox.optim.state import State, mismatch
from phlox.record import Record
from phlox.tensor import Tensor


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


_interned: weakref.WeakValueDictionary[Hashable, ByIdentity] = weakref.WeakValueDictionary()


class OptimizerAdaptor(Optimizer):
    """A `SimpleOptimizer` for whole modules.

    Parameters that are not trained, or have no gradient, stay as they are. Gradients and state are brought to the
    parameter's device. A step that fails changes nothing.

    Raises `OptimizerError`, naming the parameter: for a rate below zero or NaN, for a gradient of another shape or of
    another model, and for a state from a record that does not fit the parameter.
    """

    def __init__(self, optimizer: SimpleOptimizer, *, grad_clipping: GradientClipping | None = None) -> None:
        super().__init__()
        self.shares_counts = optimizer.shares_counts
        self.optimizer = optimizer
        self.grad_clipping = grad_clipping
        self._unproved: set[ParamId] = set()
        self._settings: tuple[tuple[Any, ...], ByIdentity] = ((), ByIdentity(None))

    def init_state(self, tensor: Tensor[Any, Any, Any]) -> State:
        return self.optimizer.init(tensor)

    def settings(self) -> Hashable:
        optimizer = self.optimizer
        fields = (type(optimizer), *vars(optimizer), *vars(optimizer).values(), self.grad_clipping)
        known = self._settings[0]
        if len(fields) != len(known) or not all(map(operator.is_, fields, known)):
            try:
                self._settings = fields, _interned.setdefault(fields, ByIdentity(fields))
            except TypeError:  # a field without a hash
                self._settings = fields, ByIdentity(optimizer)
        return self._settings[1]

    def load_record(self, record: Record) -> None:
        super().load_record(record)
        self._unproved = set(self._states)

    def step(self, lr: float, module: M, grads: GradientsParams) -> M:
        lr = _checked_rate(lr)
        if len(grads) and not any(grads.get(param.id) is not None for param in module.params()):
            raise OptimizerError(
                f"none of the {len(grads)} gradients is of a parameter of this {type(module).__name__} "
                f"({', '.join(path for path, _ in module.named_params()) or 'it has none'}); are they another model's?"
            )
        stepped: dict[ParamId, State] = {}

        def update(path: str, param: Param) -> Param:
            grad = grads.get(param.id)
            if grad is None or not param.trained:
                return param
            value, stepped[param.id] = self._update(lr, path, param, grad)
            return param.holding(value)

        with sharing():
            module = module.map(update)
        self.states.update(stepped)
        self._unproved.difference_update(stepped)
        return module

    def _update(
        self, lr: float, path: str, param: Param, grad: Tensor[Any, Any, Any]
    ) -> tuple[Tensor[Any, Any, Any], State]:
        value = param.val()
        outer = value.backend
        if outer.batched or grad.backend.batched:
            raise OptimizerError(
                f"{path}: an optimizer steps outside of phlox.vmap, for its states are those of all examples; "
                "return the gradients, and step there on the stacked modules"
            )
        tensor = value.inner() if outer.differentiates else value
        place = tensor.device
        if grad.shape != tensor.shape or grad.kind is not Float:
            raise OptimizerError(
                f"{path}: the gradient is {grad.kind.__name__} of shape {grad.shape}, the parameter Float of shape "
                f"{tensor.shape}; is it the gradient of another model?"
            )
        if grad.backend is not tensor.backend or grad.device != place:
            grad = grad.to_device(place)
        if self.grad_clipping is not None:
            grad = self.grad_clipping(grad)
        state = self._state(path, param.id, tensor)
        result, state = self.optimizer.step(lr, tensor, grad, state)
        if result.backend is not tensor.backend or result.shape != tensor.shape or result.kind is not Float:
            raise OptimizerError(
                f"{path}: {type(self.optimizer).__name__}.step must return a tensor like the parameter, Float of shape "
                f"{tensor.shape} on {tensor.backend!r}; got {result.kind.__name__} of shape {result.shape} on "
                f"{result.backend!r}"
            )
        return Tensor.from_primitive(result.primitive, outer, Float), state

    def _state(self, path: str, id: ParamId, tensor: Tensor[Any, Any, Any]) -> State:
        states = self.states
        if id not in states:
            return self.optimizer.init(tensor)
        state = brought(states[id], tensor.device)
        if id in self._unproved:
            wrong = mismatch(self.optimizer.init(tensor), state)
            if wrong:
                raise OptimizerError(
                    f"{path}: the state that was loaded is not one of {type(self.optimizer).__name__} for a parameter "
                    f"of shape {tensor.shape}: {wrong}"
                )
        return state

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.optimizer).__name__}, {len(self.states)} states)"


def _checked_rate(lr: Any) -> Any:
    """The rate as a Python number or, in a compiled function, the engine's stand-in for one."""
    if isinstance(lr, Tensor):
        raise OptimizerError(
            "the learning rate is a number, not a tensor; give it as .item(), or as an argument of a compiled function"
        )
    if isinstance(lr, (int, float, np.floating, np.integer)):
        lr = float(cast("float", lr))
    if isinstance(lr, float) and not (lr >= 0.0 and math.isfinite(lr)):
        raise OptimizerError(f"the learning rate must be a finite number of at least zero, got {lr}")
    return lr

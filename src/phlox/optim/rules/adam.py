"""Adam, and Adam with decoupled weight decay."""

from __future__ import annotations

from phlox.backend import Backend
from phlox.backend.contract.update import AdamScalars, Real
from phlox.backend.tracing.scalar import TracedScalar
from phlox.optim.config import SimpleConfig
from phlox.optim.rules.small_states import with_bits
from phlox.optim.rules.update_terms import average, prepared
from phlox.optim.simple import AnyTensor, Kernel, Rule, SimpleOptimizer
from phlox.optim.state.blocks import StateBits
from phlox.optim.state.tree import State
from phlox.optim.step.shared_scalars import counted, shared
from phlox.tensor import zeros_like
from phlox.tensor.functional.update import as_operands, update_by_adam


class AdamConfig(SimpleConfig):
    """Hyper-parameters of `Adam`: `weight_decay` is added to the gradient. Defaults are PyTorch's.

    With `state_bits=8` the moments of parameters from 4096 elements take a quarter of the memory (Dettmers et al. 2022:
    "8-bit optimizers via block-wise quantization").

    >>> AdamConfig(beta_2=0.99).init()
    OptimizerAdaptor(Adam, 0 states)
    """

    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    amsgrad: bool = False
    maximize: bool = False
    state_bits: StateBits = 32

    def simple(self) -> SimpleOptimizer:
        return with_bits(Adam(self, decoupled=False), self.state_bits)


class AdamWConfig(AdamConfig):
    """Hyper-parameters of AdamW, which is `Adam` with decoupled weight decay. Defaults are PyTorch's.

    >>> import phlox as px
    >>> from phlox import nn
    >>> model, optimizer = nn.Linear(2, 1).train(), AdamWConfig(weight_decay=0.1).init()
    >>> loss, grads = px.value_and_grad(lambda model: model(px.ones((3, 2))).square().mean())(model)
    >>> model = optimizer.step(1e-3, model, grads)
    """

    weight_decay: float = 0.01

    def simple(self) -> SimpleOptimizer:
        return with_bits(Adam(self, decoupled=True), self.state_bits)


class Adam(Rule[AdamConfig]):
    """m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  x = x - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps).

    x is the parameter, g its gradient, t the number of the step, b1 and b2 are `beta_1` and `beta_2` (Kingma, Ba 2015:
    "Adam: a method for stochastic optimization"). Decoupled weight decay first multiplies x by 1 - lr decay
    (Loshchilov, Hutter 2019: "Decoupled weight decay regularization"); otherwise decay x is added to g. With `amsgrad`
    the root is of the greatest v so far (Reddi et al. 2018: "On the convergence of Adam and beyond").
    """

    elementwise = True
    squares = frozenset({"moment_2", "moment_2_max"})

    def __init__(self, config: AdamConfig, *, decoupled: bool) -> None:
        self.config = config
        self.decoupled = decoupled

    def init(self, tensor: AnyTensor) -> State:
        greatest = {"moment_2_max": zeros_like(tensor)} if self.config.amsgrad else {}
        return {"moment_1": zeros_like(tensor), "moment_2": zeros_like(tensor), **greatest, "time": 0}

    def step(self, lr: float, tensor: AnyTensor, grad: AnyTensor, state: State) -> tuple[AnyTensor, State]:
        c = self.config
        backend = tensor._ops.backend  # pyright: ignore[reportPrivateUsage]
        numbers = operands = shared(self._numbers, lr, state["time"], backend)
        if not c.amsgrad:
            grad = -grad if c.maximize else grad
            if isinstance(numbers.lr, TracedScalar):
                operands = shared(as_operands, numbers, backend)  # once for all parameters
            tensor, m, v = update_by_adam(tensor, grad, state["moment_1"], state["moment_2"], operands)
            return tensor, {"moment_1": m, "moment_2": v, "time": numbers.time}
        tensor, grad = prepared(c, lr, tensor, grad, decoupled=self.decoupled)
        m = average(state["moment_1"], grad, c.beta_1)
        v = average(state["moment_2"], grad.square(), c.beta_2)
        greatest = state["moment_2_max"].maximum(v)
        scale = (greatest * (1.0 / numbers.correction_2)).sqrt() + c.epsilon
        tensor = tensor - m / scale * (lr / numbers.correction_1)
        return tensor, {"moment_1": m, "moment_2": v, "moment_2_max": greatest, "time": numbers.time}

    def _numbers(self, lr: Real, time: Real, backend: Backend) -> AdamScalars:
        """The scalars of the step after `time` steps."""
        c = self.config
        time, correction_1, correction_2 = counted(time, backend, c.beta_1, c.beta_2)
        return AdamScalars(
            lr, c.beta_1, c.beta_2, c.epsilon, c.weight_decay, self.decoupled, correction_1, correction_2, time
        )

    def kernel(self, lr: float, state: State, backend: Backend) -> Kernel | None:
        if self.config.amsgrad or self.config.maximize:
            return None
        numbers = self._numbers(lr, state["time"], backend)
        return Kernel("adamw" if self.decoupled else "adam", numbers, (numbers.time,))

"""Adagrad: rates that fall with the squares of all gradients so far."""

from __future__ import annotations

from phlox.backend import Backend
from phlox.backend.contract.update import AdagradScalars
from phlox.optim.config import SimpleConfig
from phlox.optim.rules.update_terms import descent
from phlox.optim.simple import AnyTensor, Kernel, Rule, SimpleOptimizer
from phlox.optim.state.tree import State
from phlox.optim.step.shared_scalars import counted, real
from phlox.tensor import full_like


class AdagradConfig(SimpleConfig):
    """Hyper-parameters of `Adagrad`: `weight_decay` is added to the gradient. Defaults are PyTorch's.

    >>> AdagradConfig(weight_decay=0.01).init()
    OptimizerAdaptor(Adagrad, 0 states)
    """

    lr_decay: float = 0.0
    weight_decay: float = 0.0
    initial_accumulator: float = 0.0
    epsilon: float = 1e-10
    maximize: bool = False

    def simple(self) -> SimpleOptimizer:
        return Adagrad(self)


class Adagrad(Rule[AdagradConfig]):
    """s = s + g^2;  x = x - lr / (1 + (t - 1) lr_decay) g / (sqrt(s) + eps).

    Duchi, Hazan, Singer 2011: "Adaptive subgradient methods for online learning and stochastic optimization".
    """

    elementwise = True

    def init(self, tensor: AnyTensor) -> State:
        return {"sum": full_like(tensor, self.config.initial_accumulator), "time": 0}

    def step(self, lr: float, tensor: AnyTensor, grad: AnyTensor, state: State) -> tuple[AnyTensor, State]:
        c = self.config
        (time,) = counted(state["time"], tensor.backend)
        grad = descent(c, tensor, grad)
        total = state["sum"] + grad.square()
        if c.lr_decay:
            lr = lr / (1.0 + (real(time, tensor.backend) - 1.0) * c.lr_decay)
        return tensor - grad / (total.sqrt() + c.epsilon) * lr, {"sum": total, "time": time}

    def kernel(self, lr: float, state: State, backend: Backend) -> Kernel | None:
        c, time = self.config, state["time"] + 1
        return Kernel("adagrad", AdagradScalars(lr, c.lr_decay, c.weight_decay, c.epsilon, c.maximize, time), (time,))

"""NAdam: Adam with Nesterov's momentum."""

from __future__ import annotations

import operator
from typing import Any, ClassVar

from phlox.backend import Backend
from phlox.backend.contract.update import Real
from phlox.optim.config import SimpleConfig
from phlox.optim.rules.update_terms import average, prepared
from phlox.optim.simple import AnyTensor, Rule, SimpleOptimizer
from phlox.optim.state.tree import State
from phlox.optim.step.shared_scalars import counted, real, shared


class NAdamConfig(SimpleConfig):
    """Hyper-parameters of `NAdam`: unless `decoupled`, decay is added to the gradient. Defaults are PyTorch's.

    >>> NAdamConfig(weight_decay=0.01).init()
    OptimizerAdaptor(NAdam, 0 states)
    """

    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    momentum_decay: float = 4e-3
    decoupled: bool = False
    maximize: bool = False

    def simple(self) -> SimpleOptimizer:
        return NAdam(self)


class NAdam(Rule[NAdamConfig]):
    """x = x - lr ((1 - mu_t) g / (1 - M_t) + mu_{t+1} m / (1 - M_{t+1})) / (sqrt(v / (1 - b2^t)) + eps).

    Here m and v are as in `Adam`, mu_t = b1 (1 - 0.96^(t momentum_decay) / 2), and M_t is the product of mu_1 to mu_t.
    Weight decay is as in `Adam`. Dozat 2016: "Incorporating Nesterov momentum into Adam".
    """

    moments = ("moment_1", "moment_2")
    scalars: ClassVar = {"product": 1.0, "time": 0}
    elementwise = True

    def step(self, lr: float, tensor: AnyTensor, grad: AnyTensor, state: State) -> tuple[AnyTensor, State]:
        c = self.config
        time, correction = counted(state["time"], tensor.backend, c.beta_2)
        mu, mu_next = shared(_momenta, time, c.beta_1, c.momentum_decay, tensor.backend)
        product = shared(operator.mul, state["product"], mu)
        tensor, grad = prepared(c, lr, tensor, grad, decoupled=c.decoupled)
        m = average(state["moment_1"], grad, c.beta_1)
        v = average(state["moment_2"], grad.square(), c.beta_2)
        scale = (v * (1.0 / correction)).sqrt() + c.epsilon
        ahead = grad * (lr * (1.0 - mu) / (1.0 - product)) + m * (lr * mu_next / (1.0 - product * mu_next))
        return tensor - ahead / scale, {"moment_1": m, "moment_2": v, "product": product, "time": time}


def _momenta(time: Any, beta: float, decay: float, backend: Backend) -> tuple[Real, Real]:
    """The momentum of this step and of the next one."""
    count = real(time, backend)
    return beta * (1.0 - 0.5 * 0.96 ** (count * decay)), beta * (1.0 - 0.5 * 0.96 ** ((count + 1.0) * decay))

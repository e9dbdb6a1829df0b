"""RAdam: Adam that waits until it knows the variance of the gradient."""

from __future__ import annotations

from typing import Any

from phlox.backend import Backend
from phlox.backend.contract.update import Real
from phlox.optim.config import SimpleConfig
from phlox.optim.rules.update_terms import average, prepared
from phlox.optim.simple import AnyTensor, Rule, SimpleOptimizer
from phlox.optim.state.tree import State
from phlox.optim.step.shared_scalars import chosen, counted, greatest, real, shared


class RAdamConfig(SimpleConfig):
    """Hyper-parameters of `RAdam`: unless `decoupled`, decay is added to the gradient. Defaults are PyTorch's.

    >>> RAdamConfig(weight_decay=0.01).init()
    OptimizerAdaptor(RAdam, 0 states)
    """

    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False
    maximize: bool = False

    def simple(self) -> SimpleOptimizer:
        return RAdam(self)


class RAdam(Rule[RAdamConfig]):
    """x = x - lr (m / (1 - b1^t)) r_t sqrt(1 - b2^t) / (sqrt(v) + eps) once rho_t > 5.

    Before that, x = x - lr m / (1 - b1^t). Here m, v and weight decay are as in `Adam`,
    rho_t = R - 2 t b2^t / (1 - b2^t) with R = 2 / (1 - b2) - 1, and
    r_t^2 = (rho_t - 4) (rho_t - 2) R / ((R - 4) (R - 2) rho_t). Liu et al. 2020: "On the variance of the adaptive
    learning rate and beyond".
    """

    moments = ("moment_1", "moment_2")
    elementwise = True

    def step(self, lr: float, tensor: AnyTensor, grad: AnyTensor, state: State) -> tuple[AnyTensor, State]:
        c = self.config
        time, correction_1, correction_2 = counted(state["time"], tensor.backend, c.beta_1, c.beta_2)
        is_known, factor = shared(_rectification, time, correction_2, c.beta_2, tensor.backend)
        tensor, grad = prepared(c, lr, tensor, grad, decoupled=c.decoupled)
        m = average(state["moment_1"], grad, c.beta_1)
        v = average(state["moment_2"], grad.square(), c.beta_2)
        scale = (v.sqrt() + c.epsilon) * is_known + (1.0 - is_known)
        return tensor - m / scale * (lr * factor / correction_1), {"moment_1": m, "moment_2": v, "time": time}


def _rectification(time: Any, correction: Real, beta: float, backend: Backend) -> tuple[Real, Real]:
    """1 where the variance is known well enough and 0 elsewhere, and the factor of the step in either case."""
    limit = 2.0 / (1.0 - beta) - 1.0
    if limit <= 5.0:  # which rho only approaches
        return 0.0, 1.0
    rho = limit - 2.0 * real(time, backend) * (1.0 - correction) / correction
    safe = greatest(rho, 5.0, backend)
    rectified = (safe - 4.0) * (safe - 2.0) * limit / ((limit - 4.0) * (limit - 2.0) * safe)
    is_known = rho > 5.0
    return chosen(is_known, 1.0, 0.0, backend), chosen(is_known, (rectified * correction) ** 0.5, 1.0, backend)

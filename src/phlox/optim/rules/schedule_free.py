"""Schedule-free AdamW: averages of the weights in place of a schedule of the learning rate."""

from __future__ import annotations

import operator
from typing import Any

from phlox.backend import Backend
from phlox.backend.contract.update import Real
from phlox.errors import ConfigError
from phlox.optim.config import SimpleConfig
from phlox.optim.rules.update_terms import average
from phlox.optim.simple import AnyTensor, Rule
from phlox.optim.state.tree import State
from phlox.optim.step.shared_scalars import counted, greatest, least, real, shared
from phlox.tensor import zeros_like


class ScheduleFreeAdamWConfig(SimpleConfig):
    """Hyper-parameters of `ScheduleFreeAdamW`; weight decay acts on y, the weights that the module holds.

    Defaults are the authors'. They advise a constant learning rate, larger than AdamW's.

    Args:
        beta_1: the part of the average a in y; not zero.
        warmup_steps: the number of steps in which the learning rate grows from zero to the given one.
        weight_lr_power, weight_power: step t counts in the average with (greatest lr)^weight_lr_power t^weight_power.

    >>> ScheduleFreeAdamWConfig(weight_decay=0.01).init()
    OptimizerAdaptor(ScheduleFreeAdamW, 0 states)
    """

    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    warmup_steps: int = 0
    weight_lr_power: float = 2.0
    weight_power: float = 0.0
    maximize: bool = False

    def validate(self) -> None:
        super().validate()
        if self.beta_1 == 0.0:
            raise ConfigError("beta_1 must be greater than zero, because computing the average divides by it")

    def simple(self) -> ScheduleFreeAdamW:
        return ScheduleFreeAdamW(self)


class ScheduleFreeAdamW(Rule[ScheduleFreeAdamWConfig]):
    """z = z - lr (g / (sqrt(v / (1 - b2^t)) + eps) + decay y);  a = (1 - c) a + c z;  y = (1 - b1) z + b1 a.

    Here v is as in `Adam`, and c is w / (the sum of all w so far) with w = (greatest lr)^weight_lr_power
    t^weight_power. The module holds y: compute gradients there. For predictions use the average a:
    `OptimizerAdaptor.averaged` returns a module that holds it. Defazio et al. 2024: "The road less scheduled".
    """

    elementwise = True

    def init(self, tensor: AnyTensor) -> State:
        # A tensor of its own: the parameter may be donated to a compiled function beside the state.
        fast = tensor * 1.0
        return {"fast": fast, "moment_2": zeros_like(tensor), "weight_sum": 0.0, "lr_max": 0.0, "time": 0}

    def step(self, lr: float, tensor: AnyTensor, grad: AnyTensor, state: State) -> tuple[AnyTensor, State]:
        c, fast = self.config, state["fast"]
        time, correction = counted(state["time"], tensor.backend, c.beta_2)
        lr, lr_max, weight = shared(_rates, lr, state["lr_max"], time, c, tensor.backend)
        weight_sum = shared(operator.add, state["weight_sum"], weight)
        part = weight / (weight_sum + (weight_sum <= 0.0))  # zero as long as all rates are
        grad = -grad if c.maximize else grad
        v = average(state["moment_2"], grad.square(), c.beta_2)
        step = grad / ((v * (1.0 / correction)).sqrt() + c.epsilon)
        if c.weight_decay:
            step = step + tensor * c.weight_decay
        # What the formula comes to, with the average (y - (1 - b1) z) / b1 put in.
        tensor = tensor * (1.0 - part) + fast * part - step * (lr * (1.0 - c.beta_1 * (1.0 - part)))
        after = {"moment_2": v, "weight_sum": weight_sum, "lr_max": lr_max, "time": time}
        return tensor, {"fast": fast - step * lr, **after}

    def averaged(self, tensor: AnyTensor, state: State) -> AnyTensor:
        """See `SimpleOptimizer.averaged`: the average a of the parameter y."""
        beta = self.config.beta_1
        return (tensor - state["fast"] * (1.0 - beta)) * (1.0 / beta)


def _rates(
    lr: Real, lr_max: Real, time: Any, config: ScheduleFreeAdamWConfig, backend: Backend
) -> tuple[Real, Real, Real]:
    """The rate of this step, the greatest rate so far, and the weight of this step in the average."""
    count = real(time, backend)
    if config.warmup_steps:
        lr = lr * least(count / config.warmup_steps, 1.0, backend)
    lr_max = greatest(lr_max, lr, backend)
    return lr, lr_max, lr_max**config.weight_lr_power * count**config.weight_power

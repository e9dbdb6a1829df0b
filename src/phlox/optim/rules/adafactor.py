"""Adafactor: second moments of matrices, estimated from moments of rows and columns."""

from __future__ import annotations

from phlox.errors import ConfigError
from phlox.optim.config import SimpleConfig
from phlox.optim.rules.update_terms import decayed, root_mean_square
from phlox.optim.simple import AnyTensor, Rule, SimpleOptimizer
from phlox.optim.state.tree import State
from phlox.optim.step.shared_scalars import counted, least, real
from phlox.tensor import zeros, zeros_like


class AdafactorConfig(SimpleConfig):
    """Hyper-parameters of `Adafactor`; weight decay is decoupled. Defaults are PyTorch's.

    Args:
        decay_rate: step t keeps the part 1 - t^-decay_rate of the second moments (PyTorch's `beta2_decay`, negated).
        epsilon: the lower bound of the root of a second moment; None is the precision of the backend's elements.
        epsilon_scale: the lower bound of rms(x), to which the step is proportional.
        clip_threshold: the upper bound of the root mean square of a step, before it is scaled.

    >>> AdafactorConfig(weight_decay=0.01).init()
    OptimizerAdaptor(Adafactor, 0 states)
    """

    decay_rate: float = 0.8
    epsilon: float | None = None
    epsilon_scale: float = 1e-3
    clip_threshold: float = 1.0
    weight_decay: float = 0.0
    maximize: bool = False

    def validate(self) -> None:
        super().validate()
        if self.clip_threshold < 1.0:
            raise ConfigError(f"clip_threshold must be at least one, got {self.clip_threshold}")

    def simple(self) -> SimpleOptimizer:
        return Adafactor(self)


class Adafactor(Rule[AdafactorConfig]):
    """u = g / sqrt(v);  x = x - min(lr, 1 / sqrt(t)) max(eps_scale, rms(x)) u / max(1, rms(u) / clip_threshold).

    For tensors of rank two and more, v = r c / mean(r). r and c are moving averages of the means of g^2 over the last
    axis and over the last but one. For other tensors, v is a moving average of g^2. A new value has the weight
    t^-decay_rate. Shazeer, Stern 2018: "Adafactor: adaptive learning rates with sublinear memory cost".

    This is PyTorch's variant. The learning rate is the bound of the relative step (0.01 in the paper), and the factor
    of the decay. epsilon bounds v; the paper adds it to g^2. The last two axes are always factored, whatever their
    size. There is no first moment.
    """

    def init(self, tensor: AnyTensor) -> State:
        if tensor.ndim < 2:
            return {"rows": zeros_like(tensor), "columns": None, "time": 0}
        *before, n, m = tensor.shape
        rows, columns = (zeros((*before, *sides), device=tensor.device) for sides in ((n, 1), (1, m)))
        return {"rows": rows, "columns": columns, "time": 0}

    def step(self, lr: float, tensor: AnyTensor, grad: AnyTensor, state: State) -> tuple[AnyTensor, State]:
        c, backend = self.config, tensor.backend
        epsilon = _PRECISION[backend.float_element] if c.epsilon is None else c.epsilon
        grad = -grad if c.maximize else grad
        (time,) = counted(state["time"], backend)
        count = real(time, backend)
        new = count**-c.decay_rate
        scale = root_mean_square(tensor).maximum(c.epsilon_scale) * least(lr, count**-0.5, backend)
        squares, columns = grad.square(), state["columns"]
        if columns is None:
            rows = variance = state["rows"].lerp(squares, new)
        else:
            rows = state["rows"].lerp(squares.mean(axis=-1, keepdims=True), new)
            columns = columns.lerp(squares.mean(axis=-2, keepdims=True), new)
            variance = rows / rows.mean(axis=-2, keepdims=True).maximum(epsilon) * columns
        step = grad / variance.maximum(epsilon * epsilon).sqrt()
        clip = (root_mean_square(step) * (1.0 / c.clip_threshold)).maximum(1.0)
        tensor = decayed(tensor, lr, c.weight_decay) - step * (scale / clip)
        return tensor, {"rows": rows, "columns": columns, "time": time}


_PRECISION = {"f64": 2.0**-52, "f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}
"""The distance of 1 to the next element."""

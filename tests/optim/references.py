"""What independent implementations make of the problem: PyTorch's, Optax's, or the formula of a paper."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch

from tests.optim.problem import RATES, STEPS, Arrays, gradients, initial

Reference = Callable[[], Arrays]
Groups = Callable[[list[torch.Tensor]], list[torch.optim.Optimizer]]


def torch_groups(groups: Groups) -> Arrays:
    """PyTorch's optimizers, in float64, of whatever tensors each was given."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # of the counts and products that they keep
    try:
        return _torch_run(groups)
    finally:
        torch.set_default_dtype(usual)


def _torch_run(groups: Groups) -> Arrays:
    weights = [torch.tensor(value, dtype=torch.float64) for value in initial()]
    optimizers = groups(weights)
    for number in range(STEPS):
        for weight, grad in zip(weights, gradients(weights, number), strict=True):
            weight.grad = grad
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = RATES[number]
            optimizer.step()
    return [weight.numpy() for weight in weights]


def by_torch(name: str, **options: Any) -> Reference:
    return lambda: torch_groups(lambda weights: [getattr(torch.optim, name)(weights, lr=1.0, **options)])


def by_torch_muon(rest: dict[str, Any], **options: Any) -> Reference:
    """Its matrices are [outputs, inputs], and it iterates in bfloat16; ours are transposed and in the float at hand."""

    def reference() -> Arrays:
        views: list[tuple[torch.Tensor, torch.Tensor]] = []

        def groups(weights: list[torch.Tensor]) -> list[torch.optim.Optimizer]:
            views.extend((weight, weight.mT) for weight in weights if weight.ndim == 2)  # of one memory
            others = [weight for weight in weights if weight.ndim != 2]
            muon = torch.optim.Muon([view for _, view in views], lr=1.0, **options)
            take_step = muon.step

            def transposed_step() -> None:
                for weight, view in views:
                    view.grad = None if weight.grad is None else weight.grad.mT
                take_step()

            muon.step = transposed_step  # type: ignore[method-assign]
            return [muon, torch.optim.AdamW(others, lr=1.0, **rest)]

        with mock.patch.object(torch.Tensor, "bfloat16", torch.Tensor.clone):
            return torch_groups(groups)

    return reference


def by_optax(
    make: Callable[[Any], Any],
    found: Callable[[Any, Any], Any] = lambda state, weights: weights,
    rates: list[float] = RATES,
) -> Reference:
    """An Optax transformation, made of a function of the count that gives the rate, in float64."""

    def reference() -> Arrays:
        with jax.enable_x64(True):
            table = jnp.asarray(rates)
            transformation = make(lambda count: table[count])
            weights: Any = [jnp.asarray(value) for value in initial()]
            state = transformation.init(weights)
            update = jax.jit(transformation.update)
            for number in range(STEPS):
                updates, state = update(gradients(weights, number), state, weights)
                weights = optax.apply_updates(weights, updates)
            return [np.asarray(weight) for weight in found(state, weights)]

    return reference


def schedule_free(rates: Callable[[Any], Any], *, decay: float = 0.0, power: float = 2.0, b1: float = 0.9) -> Any:
    """Optax's, whose own shorthand takes no rates that change."""
    base = optax.chain(
        optax.scale_by_rms(decay=0.999, eps=1e-8, eps_in_sqrt=False, bias_correction=True),
        optax.add_decayed_weights(decay),
        optax.scale_by_learning_rate(rates),
    )
    # It counts from one, its base from zero.
    return optax.contrib.schedule_free(base, lambda count: rates(count - 1), b1=b1, weight_lr_power=power)


def adan(decay: float) -> Reference:
    """Algorithm 1 of Xie et al. 2022, where the betas are parts of what is new, and m_0, v_0 and n_0 are not zero.

    The authors' program and Optax start at zero and correct for it, which is done here, too.
    """

    def reference() -> Arrays:
        new_1, new_2, new_3, eps = 0.02, 0.08, 0.01, 1e-8
        weights = initial()
        m, v, n = ([np.zeros_like(w) for w in weights] for _ in range(3))
        before = None
        for number, lr in enumerate(RATES, 1):
            grads = gradients(weights, number - 1)
            for i, g in enumerate(grads):
                change = 0.0 if before is None else g - before[i]
                m[i] = (1 - new_1) * m[i] + new_1 * g
                v[i] = (1 - new_2) * v[i] + new_2 * change
                n[i] = (1 - new_3) * n[i] + new_3 * (g + (1 - new_2) * change) ** 2
                m_hat, v_hat, n_hat = (
                    x / (1 - (1 - new) ** number) for x, new in ((m[i], new_1), (v[i], new_2), (n[i], new_3))
                )
                rate = lr / (np.sqrt(n_hat) + eps)
                weights[i] = (weights[i] - rate * (m_hat + (1 - new_2) * v_hat)) / (1 + decay * lr)
            before = grads
        return [np.asarray(w) for w in weights]

    return reference

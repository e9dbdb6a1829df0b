"""Mixtures of experts: a router sends each token through a few of many feed-forward networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

from phlox.backend import Bool, DeviceLike, Float, Int
from phlox.config import config_of
from phlox.errors import ConfigError
from phlox.module import Module, Param
from phlox.module.reparameterization import computed
from phlox.nn.activation import ACTIVATIONS, ActivationName
from phlox.nn.initializer import Initializer, KaimingUniform, Zeros
from phlox.nn.linear import Linear
from phlox.tensor import Tensor, arange, functional, where

__all__ = [
    "ExpertLinear", "ExpertLinearConfig", "MixtureOfExperts", "MixtureOfExpertsConfig", "Router", "RouterConfig",
    "Routing", "balance_loss",
]  # fmt: skip


class Routing(NamedTuple):
    """The experts that a `Router` chose for each token; weights and probabilities are at full precision."""

    weights: Tensor
    """[..., top_k]: the factors of their results."""
    experts: Tensor[Any, Any, Int]
    """[..., top_k]: their numbers."""
    probabilities: Tensor
    """[..., n_experts]: what the router thinks of each expert; the sum for each token is 1."""

    @property
    def load(self) -> Tensor[Any, Any, Float]:
        """[n_experts]: the share of the tokens that each expert processes; the sum is top_k."""
        return self._chosen().mean(0)

    def _chosen(self) -> Tensor[Any, Any, Float]:
        """[tokens, n_experts]: one where an expert processes a token, else zero."""
        n = self.probabilities.shape[-1]
        experts = self.experts.to_full_precision()
        chosen = experts.reshape((-1, experts.shape[-1], 1)) == arange(n, device=experts.device)
        return chosen.float().sum(1)


def balance_loss(routings: Sequence[Routing], mask: Tensor[Any, Any, Bool] | None = None) -> Tensor:
    """The loss of routers that prefer some experts: n sum(load[e] mean(probability[e])), over all tokens and layers.

    It is top_k if all experts are equally busy, and larger otherwise (Fedus et al. 2021, "Switch transformers"). With a
    mask [...] of the tokens, only those where it is true count.

    >>> import phlox as px
    >>> layer = MixtureOfExperts(8, 16, n_experts=4, top_k=2).init(0)
    >>> y, routing = layer.with_routing(px.ones((3, 8)))
    >>> balance_loss([routing]).shape
    ()
    """
    n = routings[0].probabilities.shape[-1]
    counted = None if mask is None else mask.reshape((-1, 1)).to_full_precision().float()

    def mean_of(x: Tensor) -> Tensor:
        return x.mean(0) if counted is None else (x * counted).sum(0) / counted.sum()

    loads = [mean_of(routing._chosen()) for routing in routings]  # pyright: ignore[reportPrivateUsage]
    means = [mean_of(routing.probabilities.reshape((-1, n))) for routing in routings]
    load, mean = sum(loads[1:], loads[0]), sum(means[1:], means[0])
    return (load.detach() * mean).sum() * (n / len(routings) ** 2)


class Router(Module):
    """Chooses `top_k` of `n_experts` for each token x [..., d_model]; it computes at full precision.

    Args:
        d_model: the width of x.
        n_experts, top_k: the number of experts, and how many of them process a token.
        scores: "softmax" and "sigmoid" score all experts, and the best have their scores as weights; "selected" is a
            softmax over the best only (gpt-oss).
        renormalized: whether the weights of a token are divided by their sum; those of "selected" always have sum 1.
        scale: a factor of the weights.
        n_groups, top_groups: only experts of the best groups, of n_experts / n_groups each, are chosen (DeepSeek).
        group_score: what counts for a group: its best expert, or the sum of its two best.
        bias: whether scores have a bias.
        correction: whether a further bias, which is not trained, changes the choice and not the weights; see
            `balanced`.
        initializer: the initializer of the weight.
        device: the device of the parameters.

    >>> import phlox as px
    >>> routing = Router(8, 4, 2).init(0)(px.ones((3, 8)))
    >>> routing.experts.shape, round(routing.weights.sum(-1)[0].item(), 3)
    ((3, 2), 1.0)
    """

    def __init__(
        self,
        d_model: int,
        n_experts: int,
        top_k: int,
        *,
        scores: Literal["softmax", "sigmoid", "selected"] = "softmax",
        renormalized: bool = True,
        scale: float = 1.0,
        n_groups: int = 1,
        top_groups: int = 1,
        group_score: Literal["best", "two_best"] = "best",
        bias: bool = False,
        correction: bool = False,
        initializer: Initializer = KaimingUniform(),  # noqa: B008  (configs are immutable)
        device: DeviceLike | None = None,
    ) -> None:
        if not 1 <= top_k <= n_experts:
            raise ConfigError(f"Router: top_k must be from 1 to n_experts={n_experts}, got {top_k}")
        if n_groups < 1 or n_experts % n_groups or not 1 <= top_groups <= n_groups:
            raise ConfigError(
                f"Router: n_groups={n_groups} must divide n_experts={n_experts}, and top_groups={top_groups} be from 1 "
                "to n_groups"
            )
        if top_k > n_experts // n_groups * top_groups:
            raise ConfigError(f"Router: {top_groups} groups of {n_experts // n_groups} experts have not top_k={top_k}")
        fans = (d_model, n_experts)
        self.weight = Param.deferred(fans, initializer, fans=fans, device=device)
        self.bias = Param.deferred((n_experts,), Zeros(), device=device) if bias else None
        self.correction = None
        if correction:
            self.correction = Param.deferred((n_experts,), Zeros(), trained=False, device=device, full_precision=True)
        self.top_k, self.scores, self.renormalized, self.scale = top_k, scores, renormalized, scale
        self.n_groups, self.top_groups, self.group_score = n_groups, top_groups, group_score

    def __call__(self, x: Tensor) -> Routing:
        bias = None if self.bias is None else self.bias.val().to_full_precision()
        logits = functional.linear(x.to_full_precision(), self.weight.val().to_full_precision(), bias)
        probabilities = logits.softmax(-1)
        if self.scores == "selected":
            weights, experts = logits.topk(self.top_k)
            return Routing(weights.softmax(-1) * self.scale, experts, probabilities)
        scores = probabilities
        if self.scores == "sigmoid":
            scores = functional.sigmoid(logits)
            probabilities = scores / scores.sum(-1, keepdims=True)
        choice = scores.detach()
        if self.correction is not None:
            choice = choice + self.correction.val()
        experts = self._of_best_groups(choice).topk(self.top_k)[1]
        weights = scores.take_along_axis(experts)
        if self.renormalized:
            weights = weights / (weights.sum(-1, keepdims=True) + 1e-20)
        return Routing(weights * self.scale, experts, probabilities)

    def balance(self, routing: Routing, rate: float = 0.001) -> None:
        """Change the correction so that busy experts are chosen less (Wang et al. 2024); call it after a step."""
        if self.correction is None:
            raise ConfigError("Router: balance() needs correction=True")
        load = routing.load.detach()
        self.correction.set(self.correction.val() + (load.mean() - load).sign() * rate)

    def _of_best_groups(self, choice: Tensor) -> Tensor:
        """The scores, with -inf for experts of other groups than the best."""
        if self.top_groups == self.n_groups:
            return choice
        grouped = choice.reshape((*choice.shape[:-1], self.n_groups, -1))
        best = grouped.max(-1) if self.group_score == "best" else grouped.topk(2)[0].sum(-1)
        chosen = best.topk(self.top_groups)[1].expand_dims(-1) == arange(self.n_groups, device=choice.device)
        return where(chosen.any(-2).expand_dims(-1), grouped, float("-inf")).reshape(choice.shape)


class RouterConfig(config_of(Router)):
    """Hyper-parameters of `Router`."""


class ExpertLinear(Module):
    """A `Linear` of each expert: x [..., d_input] and the numbers of experts, Int [...], to [..., d_output].

    The weight [n_experts, d_input, d_output] is one parameter, which can be sharded along its first axis.

    >>> import phlox as px
    >>> ExpertLinear(4, 3, 2)(px.ones((5, 3)), px.tensor([0, 0, 3, 1, 3])).shape
    (5, 2)
    """

    _phlox_output_axis: ClassVar = -1

    def __init__(
        self,
        n_experts: int,
        d_input: int,
        d_output: int,
        *,
        bias: bool = True,
        initializer: Initializer = KaimingUniform(),  # noqa: B008  (configs are immutable)
        device: DeviceLike | None = None,
    ) -> None:
        fans = (d_input, d_output)
        self.weight = Param.deferred((n_experts, *fans), initializer, fans=fans, device=device)
        self.bias = Param.deferred((n_experts, d_output), Zeros(), device=device) if bias else None

    def __call__(self, x: Tensor, experts: Tensor[Any, Any, Int]) -> Tensor:
        bias = None if self.bias is None else self.bias.val()
        weight = self.weight
        if weight.__class__ is Param:
            return functional.expert_linear(x, weight.val(), experts, bias)
        return computed(weight).expert_linear(x, experts, bias)


class ExpertLinearConfig(config_of(ExpertLinear)):
    """Hyper-parameters of `ExpertLinear`."""


class SharedExpert(Module):
    """The gated feed-forward network of a `MixtureOfExperts` that processes all tokens."""

    def __init__(
        self, d_model: int, d_hidden: int, activation: ActivationName, scaled: bool, linear: Callable[..., Linear]
    ) -> None:
        self.gate, self.up, self.down = linear(d_model, d_hidden), linear(d_model, d_hidden), linear(d_hidden, d_model)
        self.scale = linear(d_model, 1, bias=False) if scaled else None
        self.activation: ActivationName = activation

    def __call__(self, x: Tensor) -> Tensor:
        y = self.down(ACTIVATIONS[self.activation](self.gate(x)) * self.up(x))
        return y if self.scale is None else y * functional.sigmoid(self.scale(x))


class MixtureOfExperts(Module):
    """Gated feed-forward networks, of which each token uses a few (Shazeer et al. 2017): [..., d_model] to the same.

    No token is dropped, whatever the router chooses.

    Args:
        d_model, d_hidden: the width of input and output, and of the hidden layer of an expert.
        n_experts, top_k: the number of experts, and how many of them process a token.
        activation: of the gate.
        limit: with a limit l, gate g and hidden layer u are clipped, g from above and u on both sides, and become
            g sigmoid(alpha g) (u + 1), as in gpt-oss.
        alpha: see `limit`.
        bias: whether experts have biases.
        d_shared: the width of the hidden layer of a further network for all tokens; by default there is none.
        shared_scale: whether its result is multiplied by the sigmoid of a linear map of x (Qwen2-MoE).
        shared_bias: whether it has biases.
        scores, renormalized, scale, n_groups, top_groups, group_score, router_bias, correction: see `Router`.
        initializer, out_initializer: of the weights, and of those of the last map of each expert.
        device: the device of the parameters.

    >>> import phlox as px
    >>> layer = MixtureOfExperts(8, 16, n_experts=4, top_k=2)
    >>> layer(px.ones((3, 5, 8))).shape
    (3, 5, 8)
    """

    def __init__(
        self,
        d_model: int,
        d_hidden: int,
        n_experts: int,
        top_k: int,
        *,
        activation: ActivationName = "silu",
        limit: float | None = None,
        alpha: float = 1.702,
        bias: bool = False,
        d_shared: int | None = None,
        shared_scale: bool = False,
        shared_bias: bool = False,
        scores: Literal["softmax", "sigmoid", "selected"] = "softmax",
        renormalized: bool = True,
        scale: float = 1.0,
        n_groups: int = 1,
        top_groups: int = 1,
        group_score: Literal["best", "two_best"] = "best",
        router_bias: bool = False,
        correction: bool = False,
        initializer: Initializer = KaimingUniform(),  # noqa: B008  (configs are immutable)
        out_initializer: Initializer | None = None,
        device: DeviceLike | None = None,
    ) -> None:
        self.router = Router(
            d_model, n_experts, top_k,
            scores=scores, renormalized=renormalized, scale=scale, n_groups=n_groups, top_groups=top_groups,
            group_score=group_score, bias=router_bias, correction=correction, initializer=initializer, device=device,
        )  # fmt: skip

        def stack(d_input: int, d_output: int, initializer: Initializer = initializer) -> ExpertLinear:
            return ExpertLinear(n_experts, d_input, d_output, bias=bias, initializer=initializer, device=device)

        def linear(d_input: int, d_output: int, bias: bool = shared_bias) -> Linear:
            return Linear(
                d_input, d_output, bias=bias, initializer=initializer, bias_initializer=Zeros(), device=device
            )

        self.gate, self.up = stack(d_model, d_hidden), stack(d_model, d_hidden)
        self.down = stack(d_hidden, d_model, out_initializer or initializer)
        self.shared = SharedExpert(d_model, d_shared, activation, shared_scale, linear) if d_shared else None
        self.activation: ActivationName = activation
        self.limit, self.alpha = limit, alpha

    def __call__(self, x: Tensor) -> Tensor:
        return self.with_routing(x)[0]

    def with_routing(self, x: Tensor) -> tuple[Tensor, Routing]:
        """The result, and which experts the router chose: for a loss that balances them, see `balance_loss`."""
        routing = self.router(x)
        experts = routing.experts.from_full_precision(x)
        rows = x.expand_dims(-2).broadcast_to((*experts.shape, x.shape[-1]))
        y = self.down(self._gated(self.gate(rows, experts), self.up(rows, experts)), experts)
        y = (y * routing.weights.from_full_precision(x).expand_dims(-1)).sum(-2)
        return y if self.shared is None else y + self.shared(x), routing

    def _gated(self, gate: Tensor, up: Tensor) -> Tensor:
        if self.limit is None:
            return ACTIVATIONS[self.activation](gate) * up
        gate, up = gate.minimum(self.limit), up.clip(-self.limit, self.limit)
        return gate * functional.sigmoid(gate * self.alpha) * (up + 1.0)


class MixtureOfExpertsConfig(config_of(MixtureOfExperts)):
    """Hyper-parameters of `MixtureOfExperts`."""

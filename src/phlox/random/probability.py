"""Distributions as objects, with samples, log-probabilities, entropies and divergences.

At half precision they compute in float32 and round once.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, cast

from phlox.backend import Bool, DeviceLike, Float, Int
from phlox.errors import KindError, RangeError, ShapeError
from phlox.random.distributions import bernoulli, categorical
from phlox.random.draws import normal, uniform
from phlox.tensor import Tensor, broadcast_arrays, tensor, where
from phlox.tensor.creation import Shape, sizes_of

_Floats = Tensor[Any, Any, Float]
_AnyTensor = Tensor[Any, Any, Any]

_INFINITY = float("inf")
_LARGE = 1e4
"""A logit beyond which a probability is zero in every dtype; products with it are still finite."""


class Distribution(ABC):
    """Base class of distributions. An object is an independent distribution for each element of `shape`, with a `mean`.

    All results are differentiable in the parameters, except samples of classes. A distribution holds only tensors, so
    compiled and batched functions can take and return one. Inside a compiled function its parameters have no values,
    and are not checked.
    """

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of the parameters; there is one distribution for each element."""

    @abstractmethod
    def sample(self, shape: Shape = ()) -> _AnyTensor:
        """Draw samples of shape [*shape, *self.shape] from the ambient stream (`px.random.stream`)."""

    @abstractmethod
    def log_prob(self, x: Any) -> _Floats:
        """The logarithm of the probability or density of x; x broadcasts with `shape`.

        It is minus infinity for values that cannot be drawn.
        """

    @abstractmethod
    def entropy(self) -> _Floats:
        """The entropy in nats: the expectation of -log_prob."""

    @abstractmethod
    def kl(self, other: Any) -> _Floats:
        """The Kullback-Leibler divergence KL(self || other), in nats: E[log_prob - other.log_prob].

        Raises `KindError` if `other` is a distribution of another class.
        """

    def _same_kind(self, other: Any) -> None:
        if type(other) is not type(self):
            raise KindError(f"{self._name}.kl: give another {self._name}, got {type(other).__name__}")

    @property
    def _name(self) -> str:
        return type(self).__name__

    def _set(self, **tensors: _Floats) -> None:
        for name, value in tensors.items():
            object.__setattr__(self, name, value)  # frozen: an object never becomes another distribution


@dataclass(frozen=True, init=False, eq=False)
class Categorical(Distribution):
    """Classes 0 to n - 1, with probabilities softmax(logits), or in proportion to `probs`, along the last axis.

    Args:
        logits: Float [*shape, n].
        probs: in place of logits, Float [*shape, n], not negative; they need not sum to one.

    `mean` is the mean of the class index. Samples are Int, and have no gradient.

    Raises `KindError` unless exactly one of both is given, as a Float tensor; `ShapeError` if there are no classes.

    >>> import phlox as px
    >>> coin = px.random.Categorical(logits=px.tensor([0.0, 0.0]))
    >>> coin.sample((3, 5)).shape
    (3, 5)
    >>> round(coin.entropy().item(), 4), round(coin.log_prob(1).exp().item(), 4)
    (0.6931, 0.5)
    """

    logits: _Floats
    """Normalized: the logarithms of the probabilities."""

    def __init__(self, logits: _Floats | None = None, *, probs: _Floats | None = None) -> None:
        params = _logits_or_probs("Categorical", logits=logits, probs=probs)
        if not params.ndim or not params.shape[-1]:
            raise ShapeError(
                f"Categorical: the last axis is the axis of the classes, but shape {params.shape} has none"
            )
        wide = params.to_full_precision()
        if logits is None:
            _check(valid=wide >= 0.0, text="Categorical: probabilities must not be negative or NaN")
            wide = wide.log()
        self._set(logits=wide.log_softmax(-1).from_full_precision(params))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.logits.shape[:-1]

    @property
    def probs(self) -> _Floats:
        """The probabilities [*shape, n], which sum to one."""
        return self.logits.exp()

    @property
    def mode(self) -> Tensor[Any, Any, Int]:
        """The class with the greatest probability."""
        return self.logits.argmax(-1)

    @property
    def mean(self) -> _Floats:
        classes = tensor([float(n) for n in range(self.logits.shape[-1])], device=self.logits.device)
        return (self.probs * classes).sum(-1)

    def sample(self, shape: Shape = ()) -> Tensor[Any, Any, Int]:
        return categorical(self.logits, shape)

    def log_prob(self, x: Any) -> _Floats:
        if not isinstance(x, Tensor):
            x = tensor(x, device=self.logits.device)
        x = cast("_AnyTensor", x)
        if x.kind is not Int:
            raise KindError(f"Categorical.log_prob: classes are an Int tensor, got {x.kind.__name__}; see Tensor.int")
        n = self.logits.shape[-1]
        shape = _shape_of_both("Categorical.log_prob", x.shape, self.shape)
        x = x.broadcast_to(shape)
        chosen = self.logits.broadcast_to((*shape, n)).take_along_axis(x.clip(0, n - 1).expand_dims(-1), -1).squeeze(-1)
        return where((x >= 0) & (x < n), chosen, -_INFINITY)

    def entropy(self) -> _Floats:
        return self._expected(-self.logits)

    def kl(self, other: Categorical) -> _Floats:
        self._same_kind(other)
        return self._expected(self.logits, other.logits)

    def _expected(self, x: _Floats, y: _Floats | None = None) -> _Floats:
        """The mean of x - y over the classes."""
        p, x = self.logits.to_full_precision().exp(), x.to_full_precision()
        terms = _weighted(p, x, None if y is None else y.to_full_precision())
        return terms.sum(-1).from_full_precision(self.logits)


@dataclass(frozen=True, init=False, eq=False)
class Bernoulli(Distribution):
    """True with probability sigmoid(logits), or `probs`.

    Args:
        logits: Float [*shape], the logarithm of p / (1 - p).
        probs: in place of logits, Float [*shape], between 0 and 1.

    Samples are Bool, and have no gradient. `log_prob` takes Bool, or zeros and ones.

    Raises `KindError` unless exactly one of both is given, as a Float tensor; `RangeError` if a probability is outside
    [0, 1].

    >>> import phlox as px
    >>> rain = px.random.Bernoulli(probs=px.tensor([0.25, 1.0]))
    >>> rain.log_prob(True).exp().tolist(), rain.sample()[1].item()
    ([0.25, 1.0], True)
    """

    logits: _Floats

    def __init__(self, logits: _Floats | None = None, *, probs: _Floats | None = None) -> None:
        params = _logits_or_probs("Bernoulli", logits=logits, probs=probs)
        if logits is None:
            wide = params.to_full_precision()
            _check(valid=(wide >= 0.0) & (wide <= 1.0), text="Bernoulli: probabilities must be between 0 and 1")
            params = (wide.log() - (-wide).log1p()).from_full_precision(params)
        self._set(logits=params)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.logits.shape

    @property
    def probs(self) -> _Floats:
        """The probability of True."""
        return self.logits.sigmoid()

    mean = probs

    @property
    def mode(self) -> Tensor[Any, Any, Bool]:
        """The value with the greater probability; True if both are equal."""
        return self.logits >= 0.0

    def sample(self, shape: Shape = ()) -> Tensor[Any, Any, Bool]:
        probs = self.logits.to_full_precision().sigmoid()
        drawn = bernoulli((*sizes_of("Bernoulli.sample", shape), *self.shape), probs)
        return drawn.to_device(self.logits.device)

    def log_prob(self, x: Any) -> _Floats:
        if not isinstance(x, Tensor):
            x = tensor(x, device=self.logits.device)
        x = cast("_AnyTensor", x)
        _shape_of_both("Bernoulli.log_prob", x.shape, self.shape)
        wide = self.logits.to_full_precision()
        of_one, of_zero = (-z.softplus().from_full_precision(self.logits) for z in (-wide, wide))
        is_one, is_zero = (x, ~x) if x.kind is Bool else (x == 1, x == 0)
        return where(is_one, of_one, where(is_zero, of_zero, -_INFINITY))

    def entropy(self) -> _Floats:
        # Beyond these logits the entropy is zero, and 0 * inf would be NaN.
        wide = self.logits.to_full_precision().clip(-_LARGE, _LARGE)
        terms = wide.sigmoid() * (-wide).softplus() + (-wide).sigmoid() * wide.softplus()
        return terms.from_full_precision(self.logits)

    def kl(self, other: Bernoulli) -> _Floats:
        self._same_kind(other)
        p, q = self.logits.to_full_precision(), other.logits.to_full_precision()
        terms = _weighted(p.sigmoid(), (-q).softplus(), (-p).softplus())
        terms = terms + _weighted((-p).sigmoid(), q.softplus(), p.softplus())
        return terms.from_full_precision(self.logits)


@dataclass(frozen=True, init=False, eq=False)
class Normal(Distribution):
    """The normal distribution with a mean and a standard deviation.

    Args:
        mean: Float [*shape], or a number.
        std: the standard deviation, like `mean`; the two broadcast.
        device: the device, if both are numbers.

    Samples are `mean + std * px.random.normal(...)`, and differentiable in mean and std (reparametrization; Kingma,
    Welling 2013: "Auto-encoding variational Bayes"). For REINFORCE, which uses the gradient of `log_prob`, use
    `sample().detach()`.

    Raises `KindError` if an argument is neither a number nor a Float tensor, `RangeError` if std is not positive.

    >>> import phlox as px
    >>> normal = px.random.Normal(px.tensor([0.0, 1.0]), 2.0)
    >>> normal.sample((3,)).shape, normal.log_prob(1.0).shape
    ((3, 2), (2,))
    >>> round(normal.kl(px.random.Normal(0.0, 2.0)).sum().item(), 4)
    0.125
    """

    mean: _Floats
    std: _Floats

    def __init__(self, mean: _Floats | float, std: _Floats | float, *, device: DeviceLike | None = None) -> None:
        first, second = _broadcast_parameters("Normal", device, mean=mean, std=std)
        _check(valid=second > 0.0, text="Normal: std must be greater than 0; for the output of a model, take .exp()")
        self._set(mean=first, std=second)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.mean.shape

    def sample(self, shape: Shape = ()) -> _Floats:
        mean = self.mean
        return mean + self.std * normal((*sizes_of("Normal.sample", shape), *mean.shape), device=mean.device)

    def log_prob(self, x: Any) -> _Floats:
        mean, std = (parameter.to_full_precision() for parameter in (self.mean, self.std))
        z = (_at_full_precision(x, "Normal.log_prob", self.mean) - mean) / std
        return (z.square() * -0.5 - std.log() - 0.5 * math.log(2.0 * math.pi)).from_full_precision(self.mean)

    def entropy(self) -> _Floats:
        return self.std.log() + 0.5 * (1.0 + math.log(2.0 * math.pi))

    def kl(self, other: Normal) -> _Floats:
        self._same_kind(other)
        mean, std, q_mean, q_std = (
            parameter.to_full_precision() for parameter in (self.mean, self.std, other.mean, other.std)
        )  # fmt: skip
        terms = ((std / q_std).square() + ((mean - q_mean) / q_std).square() - 1.0) * 0.5 + q_std.log() - std.log()
        return terms.from_full_precision(self.mean)


@dataclass(frozen=True, init=False, eq=False)
class Uniform(Distribution):
    """The uniform distribution over [low, high).

    Args:
        low: Float [*shape], or a number.
        high: like `low`; the two broadcast.
        device: the device, if both are numbers.

    Samples are differentiable in low and high.

    Raises `KindError` if an argument is neither a number nor a Float tensor, `RangeError` if high is not greater than
    low.

    >>> import phlox as px
    >>> round(px.random.Uniform(-1.0, 3.0).log_prob(0.0).exp().item(), 4)
    0.25
    """

    low: _Floats
    high: _Floats

    def __init__(self, low: _Floats | float, high: _Floats | float, *, device: DeviceLike | None = None) -> None:
        first, second = _broadcast_parameters("Uniform", device, low=low, high=high)
        _check(valid=second > first, text="Uniform: high must be greater than low")
        self._set(low=first, high=second)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.low.shape

    @property
    def mean(self) -> _Floats:
        return self.low * 0.5 + self.high * 0.5

    def sample(self, shape: Shape = ()) -> _Floats:
        unit = uniform((*sizes_of("Uniform.sample", shape), *self.shape), device=self.low.device)
        return self.low + (self.high - self.low) * unit

    def log_prob(self, x: Any) -> _Floats:
        low, high = (bound.to_full_precision() for bound in (self.low, self.high))
        x = _at_full_precision(x, "Uniform.log_prob", self.low)
        return where((x >= low) & (x < high), -(high - low).log(), -_INFINITY).from_full_precision(self.low)

    def entropy(self) -> _Floats:
        return (self.high - self.low).log()

    def kl(self, other: Uniform) -> _Floats:
        self._same_kind(other)
        is_covered = (other.low <= self.low) & (other.high >= self.high)
        return where(is_covered, (other.high - other.low).log() - (self.high - self.low).log(), _INFINITY)


# --- arguments


def _logits_or_probs(name: str, *, logits: Any, probs: Any) -> _Floats:
    if (logits is None) == (probs is None):
        raise KindError(f"{name}: give either logits or probs")
    parameter, value = ("logits", logits) if probs is None else ("probs", probs)
    return _float_tensor(name, parameter, value)


def _float_tensor(name: str, parameter: str, value: Any) -> _Floats:
    if not isinstance(value, Tensor):
        raise KindError(f"{name}: {parameter} is a Float tensor, got {type(value).__name__}; see px.tensor")
    x = cast("_AnyTensor", value)
    if x.kind is not Float:
        raise KindError(f"{name}: {parameter} is a Float tensor, got {x.kind.__name__}; convert with .float() first")
    return x


def _broadcast_parameters(name: str, device: DeviceLike | None, **parameters: Any) -> list[_Floats]:
    """The parameters as tensors of one shape, on one device."""
    target = next((value.device for value in parameters.values() if isinstance(value, Tensor)), device)
    tensors = [
        tensor(float(value), device=target)
        if isinstance(value, (int, float)) and not isinstance(value, bool)
        else _float_tensor(name, parameter, value)
        for parameter, value in parameters.items()
    ]
    return list(broadcast_arrays(*tensors))


def _check(valid: Tensor[Any, Any, Bool], text: str) -> None:
    """Raise `RangeError` if an element is not true; a traced tensor is not checked."""
    if not valid.backend.is_traced(valid.primitive) and not bool(valid.all()):
        raise RangeError(text)


def _shape_of_both(name: str, first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    rank = max(len(first), len(second))
    pairs = list(zip((1,) * (rank - len(first)) + first, (1,) * (rank - len(second)) + second, strict=True))
    if any(a != b and 1 not in (a, b) for a, b in pairs):
        raise ShapeError(f"{name}: values of shape {first} do not broadcast with distributions of shape {second}")
    return tuple(b if a == 1 else a for a, b in pairs)


def _at_full_precision(x: Any, name: str, like: _Floats) -> _Floats:
    """A value at full precision."""
    if isinstance(x, Tensor):
        value = _float_tensor(name, "x", x)
    elif isinstance(x, (int, float)) and not isinstance(x, bool):
        value = tensor(float(x), device=like.device)
    else:
        raise KindError(f"{name}: x is a Float tensor or a number, got {type(x).__name__}; see px.tensor")
    _shape_of_both(name, value.shape, like.shape)
    return value.to_full_precision()


def _weighted(probability: _Floats, x: _Floats, y: _Floats | None = None) -> _Floats:
    """The product with x - y; it is zero where the probability is zero, even if x is infinite."""
    is_possible = probability > 0.0
    x = where(is_possible, x, 0.0)
    return probability * (x if y is None else x - where(is_possible, y, 0.0))

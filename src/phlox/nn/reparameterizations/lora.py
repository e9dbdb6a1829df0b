"""LoRA: low-rank adapters."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

from phlox.errors import ModuleError
from phlox.module import Module, Param
from phlox.module.reparameterization import Site
from phlox.module.select import Selector
from phlox.nn.dropout import Dropout
from phlox.nn.initializer import KaimingUniform, Normal, Zeros
from phlox.nn.reparameterizations.adapters import Adapted, adapted
from phlox.tensor import Tensor, functional

M = TypeVar("M", bound=Module)


class LoraFactors(Module):
    """One adapter of a parameter: the factors A and B, whose product is added to it, scaled.

    The factors have the layout of the parameter: A [inputs, rank] and B [rank, outputs] of a `Linear`, A [entries,
    rank] and B [rank, width] of an `Embedding`, A [n, inputs, rank] and B [n, rank, outputs] of an `ExpertLinear`,
    A [rank, inputs, *kernel] and B [outputs, rank, 1, ...] of a convolution. With `head=False` only lookups in an
    embedding have them, and not a head that has the same weight.
    """

    scales_base: ClassVar = False
    """Whether it needs the product with the parameter itself."""

    def __init__(
        self,
        site: Site,
        *,
        rank: int,
        alpha: float,
        dropout: float,
        rank_stabilized: bool,
        head: bool = True,
        values: Mapping[str, Tensor] | None = None,
    ) -> None:
        shape = site.param.shape
        ndim = len(shape)
        is_kernel = ndim > 2 and not site.is_stack
        inputs, outputs = (math.prod(shape[1:]), shape[0]) if is_kernel else (shape[0], math.prod(shape[1:]))
        stack = shape[:1] if site.is_stack else ()
        if stack:
            inputs, outputs = shape[1:]
        device = site.param.device
        first = (rank, *shape[1:]) if is_kernel else (*stack, inputs, rank)
        second = (outputs, rank, *(1 for _ in shape[2:])) if is_kernel else (*stack, rank, outputs)
        # As PEFT: one factor of an embedding is drawn, and it is the other one that starts at zero.
        is_table = site.output_axis == 0 and not is_kernel
        a_initial, b_initial = (Zeros(), Normal()) if is_table else (KaimingUniform(), Zeros())
        a_fans, b_fans = (inputs, rank), (rank, outputs)
        self.A = Param(values["A"]) if values else Param.deferred(first, a_initial, fans=a_fans, device=device)
        self.B = Param(values["B"]) if values else Param.deferred(second, b_initial, fans=b_fans, device=device)
        self.alpha, self.rank_stabilized, self.head = float(alpha), rank_stabilized, head
        self.dropout = Dropout(dropout) if dropout else None
        self.is_kernel = is_kernel

    @property
    def rank(self) -> int:
        """The rank."""
        return self.A.shape[0 if self.is_kernel else -1]

    @property
    def scale(self) -> float:
        """The factor of the product: alpha / rank or, rank-stabilized, alpha / sqrt(rank) (Kalajdzievski 2023)."""
        return self.alpha / (math.sqrt(self.rank) if self.rank_stabilized else self.rank)

    def product(self) -> Tensor:
        """scale A B, in the shape of the parameter."""
        a, b = self.A.val(), self.B.val()
        if not self.is_kernel:
            return (a @ b) * self.scale
        whole = b.reshape(b.shape[0], a.shape[0]) @ a.reshape(a.shape[0], math.prod(a.shape[1:]))
        return (whole * self.scale).reshape(b.shape[0], *a.shape[1:])

    def delta(self, base: Tensor) -> Tensor:
        """What is added to the parameter, whose value is `base`."""
        return self.product()

    def of_linear(self, x: Tensor, product: Tensor, base: Any) -> Tensor:
        """What is added to `product`, which is x times the parameter `base`."""
        return (self.dropped(x) @ self.A.val()) @ self.B.val() * self.scale

    def of_experts(self, x: Tensor, experts: Tensor[Any, Any, Any]) -> Tensor:
        """What is added to the products of x with the matrices of these experts."""
        low = functional.expert_linear(self.dropped(x), self.A.val(), experts)
        return functional.expert_linear(low, self.B.val(), experts) * self.scale

    def of_rows(self, low: Tensor, rows: Tensor, base: Any) -> Tensor:
        """What is added to `rows` of the parameter `base`, where the rows of the product are `low`."""
        return low

    def dropped(self, x: Tensor) -> Tensor:
        """x after the dropout."""
        return x if self.dropout is None else self.dropout(x)


class Lora(Adapted):
    """weight = base + scale A B, where only A and B are trained (Hu et al. 2021); see `phlox.lora`.

    Layers add x A B to x W: the sum of both matrices is never made.
    """

    lora: dict[str, LoraFactors]

    def __init__(self, base: Any, name: str, factors: LoraFactors) -> None:
        self._start(base, name)
        self.lora = {name: factors}

    @property
    def adapters(self) -> dict[str, Any]:
        """See `Adapted.adapters`."""
        return self.lora

    def val(self) -> Tensor:
        """See `Reparameterization.val`."""
        base = self.base.val()
        return _sum(base, [(factors.delta(base), weight) for factors, weight in self.weights(None)])

    def linear(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """See `Reparameterization.linear`."""
        used = self.weights(x)
        scales_base = any(factors.scales_base for factors, _ in used)
        product = linear_by(self.base, x, None if scales_base else bias)
        y = product if bias is None or not scales_base else product + bias
        return _sum(y, [(factors.of_linear(x, product, self.base), weight) for factors, weight in used])

    def expert_linear(self, x: Tensor, experts: Tensor[Any, Any, Any], bias: Tensor | None = None) -> Tensor:
        """See `Reparameterization.expert_linear`."""
        base = self.base
        if isinstance(base, Param):
            y = functional.expert_linear(x, base.val(), experts, bias)
        else:
            y = base.expert_linear(x, experts, bias)
        return _sum(y, [(factors.of_experts(x, experts), weight) for factors, weight in self.weights(x)])

    def linear_transposed(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """See `Reparameterization.linear_transposed`."""
        used = [(factors, weight) for factors, weight in self.weights(x) if factors.head]
        base = self.base
        y = functional.linear(x, base.val().T, bias) if isinstance(base, Param) else base.linear_transposed(x, bias)
        return _sum(y, [(_transposed(factors, x, base), weight) for factors, weight in used])

    def embedding(self, indices: Tensor[Any, Any, Any], *, padding_index: int | None = None) -> Tensor:
        """See `Reparameterization.embedding`."""
        used = self.weights(indices)
        base = self.base
        options: dict[str, Any] = {"padding_index": padding_index}
        if isinstance(base, Param):
            y = functional.embedding(base.val(), indices, **options)
        else:
            y = base.embedding(indices, **options)
        low = [functional.embedding(f.A.val(), indices, **options) @ f.B.val() * f.scale for f, _ in used]
        parts = [factors.of_rows(rows, y, base) for rows, (factors, _) in zip(low, used, strict=True)]
        return _sum(y, [(part, _for_rows(weight, part)) for part, (_, weight) in zip(parts, used, strict=True)])

    def convolve(
        self, function: Callable[..., Tensor], x: Tensor, bias: Tensor | None = None, **options: Any
    ) -> Tensor:
        """See `Reparameterization.convolve`."""
        used = self.weights(x)
        one_by_one = _CONVOLUTIONS.get(x.ndim - 2)
        fits = function in _CONVOLUTIONS.values() and options.get("groups", 1) == 1
        in_factors = one_by_one is not None and fits and not any(factors.scales_base for factors, _ in used)
        if not in_factors and self.rows is None and all(factors.dropout is None for factors, _ in used):
            return super().convolve(function, x, bias, **options)
        base = self.base
        y = (
            function(x, base.val(), bias, **options)
            if isinstance(base, Param)
            else base.convolve(function, x, bias, **options)
        )
        if one_by_one is None or not in_factors:
            return _sum(y, [(function(f.dropped(x), f.delta(base.val()), None, **options), w) for f, w in used])
        low = [(function(f.dropped(x), f.A.val(), None, **options), f, weight) for f, weight in used]
        return _sum(y, [(one_by_one(h, f.B.val(), None) * f.scale, weight) for h, f, weight in low])

    def merged(self) -> Param:
        """See `Reparameterization.merged`."""
        if any(not factors.head for factors, _ in self.weights(None)):
            raise ModuleError(
                "an adapter that was loaded from PEFT changes this embedding but not the head that has the same "
                "weight, so no single weight gives the same results"
            )
        return super().merged()


def _transposed(factors: LoraFactors, x: Tensor, base: Any) -> Tensor:
    """What is added to x times the transpose of `base`."""
    if factors.scales_base:
        return x @ factors.delta(base.val()).T
    return x @ factors.B.val().T @ factors.A.val().T * factors.scale


_CONVOLUTIONS: dict[int, Callable[..., Tensor]] = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}


def linear_by(base: Any, x: Tensor, bias: Tensor | None) -> Tensor:
    return functional.linear(x, base.val(), bias) if isinstance(base, Param) else base.linear(x, bias)


def _sum(y: Tensor, parts: list[tuple[Tensor, Any]]) -> Tensor:
    for part, weight in parts:
        y = y + (part if isinstance(weight, float) and weight == 1.0 else part * weight)
    return y


def _for_rows(weight: Any, like: Tensor) -> Any:
    """The factors of the rows, with as many axes as the result."""
    return weight if isinstance(weight, float) else weight.reshape(weight.shape[0], *(1 for _ in like.shape[1:]))


def lora(
    model: M,
    which: Selector,
    *,
    rank: int = 8,
    alpha: float | None = None,
    dropout: float = 0.0,
    rank_stabilized: bool = False,
    name: str = "default",
    train: Selector | None = None,
) -> M:
    """A view of the model for fine-tuning: small factors beside the selected weights train, everything else is frozen.

    weight = base + (alpha / rank) A B (Hu et al. 2021). The result is the model's own until the first step, because B
    starts at zero. Weights of `Linear`, `Embedding` and convolutions can be selected, packed ones too (`quantize`).
    A second call adds an adapter of another name, which is then the one that is used and trained; see `use_adapters`.
    `merge` makes the model plain; `save_adapter` and `load_adapter` read and write files of PEFT.

    Args:
        model: any module.
        which: the weights, as in `Module.freeze`: "**.attention.*.weight".
        rank: the inner size of the factors.
        alpha: the scale times rank; by default the rank, which means no scaling.
        dropout: the rate at which inputs of the adapter are dropped in training.
        rank_stabilized: divide alpha by the square root of the rank instead (Kalajdzievski 2023).
        name: the adapter's name.
        train: further parameters that stay trained, such as "head" or "**.bias".

    Raises `ModuleError`, with the path, for a pattern that matches nothing, a parameter without a matrix, a rank above
    its size, and a name that the parameter has already.

    >>> import phlox as px
    >>> model = px.lora(px.nn.Linear(64, 32).init(0), "weight", rank=4, alpha=8)
    >>> [(path, param.shape) for path, param in model.named_params() if param.trained]
    [('weight.lora.default.A', (64, 4)), ('weight.lora.default.B', (4, 32))]
    """
    options = {"rank": rank, "alpha": alpha, "dropout": dropout, "rank_stabilized": rank_stabilized}
    return with_factors(model, which, LoraFactors, options, name, train)


def with_factors(
    model: M, which: Selector, factors: type[LoraFactors], options: dict[str, Any], name: str, train: Selector | None
) -> M:
    """A view of the model with `factors(site, **options)` at the selected parameters."""
    rank = options["rank"]
    options = {**options, "alpha": rank if options["alpha"] is None else options["alpha"]}

    def adapt(site: Site) -> Lora:
        shape = site.param.shape
        if len(shape) < 2:
            raise ModuleError(f"LoRA is for weights with at least two axes, and this parameter has the shape {shape}")
        largest = min(math.prod(shape[1:]), shape[0])
        if isinstance(rank, bool) or not isinstance(rank, int) or not 1 <= rank <= largest:
            raise ModuleError(f"rank must be between 1 and {largest} for a parameter of shape {shape}, got {rank}")
        return attached(site, name, lambda site: factors(site, **options))

    return adapted(model, which, name, adapt, train)


def attached(site: Site, name: str, make: Callable[[Site], LoraFactors]) -> Lora:
    """What stands at a site with a further adapter, which `make` gives for the site without its other ones."""
    other = site.param
    if not isinstance(other, Lora):
        return Lora(other, name, make(site))
    if name in other.lora:
        raise ModuleError(f"there is an adapter {name!r} already; give this one another name")
    other.lora = {**other.lora, name: make(site._replace(param=other.base))}
    return other

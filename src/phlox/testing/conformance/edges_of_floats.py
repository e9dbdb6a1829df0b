# ruff: noqa: E501
# pyright: standard
"""The edge-case contract, continued: infinities, NaN, ties, zeros of both signs, and points without a derivative."""

from __future__ import annotations

from math import inf, nan
from typing import Any

from phlox.errors import LinalgError
from phlox.testing.conformance.edge import Edge, raises


def _section(name: str, *entries: tuple[Any, ...], **options: Any) -> list[Edge]:
    return [Edge(name, statement, tuple(lines), **options) for statement, *lines in entries]


FLOATS = _section(
    "Infinities and NaN",
    ("Division by zero gives an infinity or NaN, as in IEEE 754.",
     ("t([1.0, -1.0, 0.0]) / 0.0", [inf, -inf, nan]), ("1.0 / t([0.0, -0.0])", [inf, -inf]), ("t([inf]) - t([inf])", [nan])),
    ("Functions give NaN outside their domain, and infinity at its ends.",
     ("t([-1.0, 0.0, inf]).log()", [nan, -inf, inf]), ("t([-1.0, inf]).sqrt()", [nan, inf]), ("t([-8.0]) ** 0.5", [nan]), ("t([-inf, inf]).exp()", [0.0, inf]),
     ("t([-inf, inf]).tanh()", [-1.0, 1.0]), ("t([-1.0, -2.0]).log1p()", [-inf, nan])),
    ("Anything to the power of zero is one, and one to any power is one, even with NaN.", ("t([0.0, nan, 1.0]) ** t([0.0, 0.0, nan])", [1.0, 1.0, 1.0])),
    ("NaN propagates: in minimum and maximum, in reductions, and through clip, sign and relu.",
     ("t([1.0, nan]).maximum(t([nan, 1.0]))", [nan, nan]), ("t([nan]).minimum(0.0)", [nan]), ("t([1.0, nan, 3.0]).max()", nan), ("t([1.0, nan, 3.0]).min()", nan),
     ("t([1.0, nan, 0.5]).cummax(0)", [1.0, nan, nan]), ("t([nan]).clip(0.0, 1.0)", [nan]), ("t([nan]).sign()", [nan]), ("t([nan]).relu()", [nan]), ("t([1.0, nan]).sum()", nan)),
    ("The first NaN is the argmax and the argmin.", ("t([1.0, nan, 3.0, nan]).argmax(0)", 1), ("t([1.0, nan, -3.0]).argmin(0)", 1)),
    ("Sorting puts NaN last, after infinity (first, if descending). If there is a NaN, a median or quantile is NaN.",
     ("t([inf, nan, 1.0, -inf]).sort()", [-inf, 1.0, inf, nan]), ("t([inf, nan, 1.0]).sort(descending=True)", [nan, inf, 1.0]),
     ("t([3.0, nan, 1.0]).argsort()", [2, 0, 1]), ("t([1.0, nan, 3.0]).topk(2)[0]", [nan, 3.0]), ("t([1.0, nan]).median()", nan), ("t([1.0, nan]).quantile(0.0)", nan),
     ("t([1.0, 3.0]).searchsorted(t([nan]))", [2])),
    ("Medians and quantiles are interpolated between their neighbours, also between infinite ones.",
     ("t([4.0, 1.0, 3.0, 2.0]).median()", 2.5), ("t([1.0, inf]).quantile(0.5)", inf), ("t([-inf, inf]).quantile(0.5)", nan), ("t([inf, inf]).quantile(0.5)", inf)),
    ("`unique` treats all NaN as one value, and `isin` never finds a NaN. NaN counts as not zero.",
     ("t([2.0, nan, 2.0, nan]).unique()", [2.0, nan]), ("t([nan]).isin(t([nan]))", [False]), ("t([0.0, nan]).count_nonzero()", 1)),
    ("NaN equals nothing and is not less than anything.",
     ("t([nan]) == nan", [False]), ("t([nan]) != t([nan])", [True]), ("t([nan, 1.0]) < t([1.0, nan])", [False, False]), ("t([nan]) >= nan", [False])),
    ("For a matrix that is not finite, decompositions, solvers and inverses raise an error; its determinant is NaN.",
     *((f"px.linalg.{name}(t([[nan, 0.0], [0.0, 1.0]]))", raises(LinalgError, "NaN or infinities")) for name in ("cholesky", "eigvalsh", "eigh", "qr", "svd", "svdvals", "inv", "pinv")),
     ("px.linalg.cholesky(t([[inf, 0.0], [0.0, 1.0]]))", raises(LinalgError)), ("px.linalg.solve(t([[1.0, 0.0], [-inf, 1.0]]), t([1.0, 2.0]))", raises(LinalgError)),
     ("px.linalg.solve_triangular(t([[1.0, nan], [0.0, 1.0]]), t([1.0, 2.0]), upper=True)", raises(LinalgError)), ("px.linalg.det(t([[nan, 0.0], [0.0, 1.0]]))", nan),
     ("px.linalg.slogdet(t([[nan, 0.0], [0.0, 1.0]])).sign", nan)),
    ("A term of weight zero counts as zero in a loss, even if it is infinite or NaN: 0 log 0 = 0.",
     ("f.binary_cross_entropy(t([0.0, 1.0]), t([0.0, 1.0]))", 0.0), ("f.binary_cross_entropy_with_logits(t([-inf, inf]), t([0.0, 1.0]))", 0.0),
     ("f.kl_div(t([-inf, 0.0]), t([0.0, 1.0]))", 0.0), ("f.kl_div(t([-inf, 0.0]), t([-inf, 0.0]), log_target=True)", 0.0),
     ("f.poisson_nll_loss(t([-inf]), t([0.0]))", 0.0), ("f.cross_entropy(t([[0.0, -inf]]), t([[1.0, 0.0]]))", 0.0), ("t([0.0]).xlogy(t([0.0]))", [0.0])),
    ("Elements that are masked, ignored or have a weight of zero may have any value.",
     ("f.cross_entropy(t([[0.0, -inf], [nan, nan]]), t([0, 9]), ignore_index=9)", 0.0), ("f.binary_cross_entropy(t([1.0, nan]), t([1.0, 0.0]), weight=t([1.0, 0.0]))", 0.0),
     ("f.attention(t([[1.0]]), t([[1.0], [nan]]), t([[2.0], [inf]]), mask=t([[True, False]]))", [[2.0]]),
     ("f.attention(t([[1.0]]), t([[1.0]]), t([[2.0]]), mask=t([[False]]))", [[0.0]]),
     ("f.rnn(t([[[1.0], [nan]]]), t([[1.0]]), t([[1.0]]), t([[1.0]]), mask=t([[True, False]]), activation='relu').y", [[[2.0], [0.0]]])),
    ("The softmax of only minus infinities is NaN. Among other values, minus infinity gives zero. `logsumexp` of only minus infinities is minus infinity.",
     ("t([0.0, -inf]).softmax()", [1.0, 0.0]), ("t([-inf, -inf]).softmax()", [nan, nan]), ("t([-inf, -inf]).logsumexp(0)", -inf), ("t([inf, 0.0]).logsumexp(0)", inf)),
)  # fmt: skip

ROUNDING = _section(
    "Rounding and ties",
    ("Halves are rounded to even.", ("t([0.5, 1.5, 2.5, -0.5, -1.5]).round()", [0.0, 2.0, 2.0, 0.0, -2.0])),
    ("Sorting is stable, also in descending order; zeros of both signs are equal.",
     ("t([2.0, 1.0, 2.0, 1.0]).argsort()", [1, 3, 0, 2]), ("t([2.0, 1.0, 2.0, 1.0]).argsort(descending=True)", [0, 2, 1, 3]), ("t([0.0, -0.0]).argsort()", [0, 1]),
     ("t([1.0, 3.0, 3.0]).topk(2)[1]", [1, 2]), ("t([0.0, -0.0, 0.0]).topk(2)[1]", [0, 1]), ("t([0.0, -0.0, -1.0]).topk(2, largest=False)[1]", [2, 0])),
    ("The remainder of floats has the sign of the divisor, as with integers; `fmod` has the sign of the dividend.",
     ("t([7.0, -7.0]) % 3.0", [1.0, 2.0]), ("t([7.0, -7.0]) // 2.0", [3.0, -4.0]), ("t([-7.0]).fmod(3.0)", [-1.0]), ("t([7.0]) % 0.0", [nan]), ("t([7.0, -7.0]) // 0.0", [inf, -inf])),
    ("Among equal elements, argmax and argmin give the first.",
     ("t([1.0, 3.0, 3.0]).argmax(0)", 1), ("t([2, 1, 1]).argmin(0)", 1), ("t([0.0, -0.0]).argmax(0)", 0)),
)  # fmt: skip

ZEROS = _section(
    "Negative zero",
    ("A negative zero equals zero. Odd functions and rounding keep it, and its sign counts in quotients.",
     ("-t([0.0])", [-0.0]), ("t([0.0]) * -1.0", [-0.0]), ("t([-0.4]).round()", [-0.0]), ("t([-0.5]).ceil()", [-0.0]), ("t([-0.0]).floor()", [-0.0]),
     ("t([-0.0]).sqrt()", [-0.0]), ("t([-0.0]).tanh()", [-0.0]), ("t([-0.0]).sin()", [-0.0]), ("t([-0.0]).expm1()", [-0.0]), ("t([-0.0]).log1p()", [-0.0]),
     ("t([-0.0]).erf()", [-0.0]), ("t([-0.0]) == 0.0", [True]), ("t([-0.0]) < 0.0", [False])),
    ("Other functions turn it into zero.", ("t([-0.0]).abs()", [0.0]), ("t([-0.0]) + 0.0", [0.0]), ("t([-0.0]).square()", [0.0]), ("t([-0.0]) ** 2", [0.0])),
    signs=True,
) + _section(
    "Negative zero",
    ("With zeros of both signs, `maximum`, `minimum`, `max`, `min`, `relu`, `clip`, `sign`, and sums of negative zeros may give either sign.",
     ("t([-0.0]).maximum(0.0)", [0.0]), ("t([0.0, -0.0]).min()", 0.0), ("t([-0.0]).relu()", [0.0]), ("t([-0.0]).sign()", [0.0]), ("t([-0.0, -0.0]).sum()", 0.0)),
)  # fmt: skip

DERIVATIVES = _section(
    "Derivatives at special points",
    ("Ties share the gradient evenly.",
     ("grad(lambda x: x.max(), [1.0, 3.0, 3.0])", [0.0, 0.5, 0.5]), ("grad(lambda x: x.maximum(2.0), [1.0, 2.0, 3.0])", [0.0, 0.5, 1.0])),
    ("At its bounds, clip has the same derivative as inside them.", ("grad(lambda x: x.clip(0.0, 1.0), [-1.0, 0.0, 1.0, 2.0])", [0.0, 1.0, 1.0, 0.0])),
    ("At a kink the derivative is zero.", ("grad(lambda x: x.abs(), [0.0])", [0.0]), ("grad(lambda x: x.relu(), [0.0])", [0.0]), ("grad(lambda x: x.round(), [0.4])", [0.0])),
    ("At a vertical tangent it is infinite. But the standard deviation of equal elements has derivative zero.",
     ("grad(lambda x: x.sqrt(), [0.0])", [inf]), ("grad(lambda x: x.std(), [1.0, 1.0])", [0.0, 0.0])),
    ("The norm at zero and the angle at the origin have derivative zero too, of every order.",
     ("grad(lambda x: x.norm(), [0.0, 0.0])", [0.0, 0.0]), ("twice(lambda x: x.norm(), [0.0, 0.0])", [0.0, 0.0]), ("twice(lambda x: x.std(), [1.0, 1.0])", [0.0, 0.0]),
     ("twice(lambda x: x[0].hypot(x[1]), [0.0, 0.0])", [0.0, 0.0]), ("twice(lambda x: x[0].atan2(x[1]), [0.0, 0.0])", [0.0, 0.0])),
    ("At a probability of zero or one, binary cross-entropy has gradient zero, because its logarithms are bounded. The same holds for infinite logits.",
     ("grad(lambda p: f.binary_cross_entropy(p, px.tensor([0.0, 1.0, 1.0], device=p.device)), [0.0, 1.0, 0.0])", [0.0, 0.0, 0.0]),
     ("grad(lambda x: f.binary_cross_entropy(x.sigmoid(), px.tensor([1.0], device=x.device)), [1000.0])", [0.0]),
     ("grad(lambda x: f.binary_cross_entropy_with_logits(x, px.tensor([1.0], device=x.device)), [inf])", [0.0])),
    ("At very large arguments, the derivative is its limit.",
     ("grad(lambda x: x.gelu(approximate=True), [30000.0, -30000.0])", [1.0, 0.0]), ("twice(lambda x: x.atan(), [inf])", [0.0]), ("twice(lambda x: x.erf(), [-inf])", [0.0]),
     ("grad(lambda v: f.gaussian_nll_loss(px.tensor([1.0], device=v.device), px.tensor([2.0], device=v.device), v), [inf])", [0.0])),
    ("Elements that are masked, ignored or have a weight of zero have gradient zero, and do not affect the gradients of others.",
     ("grad(lambda x: f.cross_entropy(x, px.tensor([0, 9], device=x.device), ignore_index=9), [[0.0, 0.0], [nan, nan]])", [[-0.5, 0.5], [0.0, 0.0]]),
     ("grad(lambda v: f.attention(v[:1], v, v, mask=px.tensor([[True, False]], device=v.device)), [[1.0], [nan]])", [[1.0], [0.0]])),
    ("The derivative of a product with respect to an element is the product of the others, also if there are zeros.",
     ("grad(lambda x: x.prod(), [0.0, 2.0, 3.0])", [6.0, 0.0, 0.0]), ("grad(lambda x: x.prod(), [0.0, 2.0, 0.0])", [0.0, 0.0, 0.0])),
    ("The branch of `where` that is not taken gets a gradient of exactly zero. A NaN in the derivative of that branch itself is not removed; guard its input.",
     ("grad(lambda x: px.where(x > 1.0, x, 0.0), [0.0, 2.0])", [0.0, 1.0]), ("grad(lambda x: px.where(x > 0.0, px.where(x > 0.0, x, 1.0).log(), 0.0), [0.0, 2.0])", [0.0, 0.5])),
    ("At zero, powers have the derivative of their formula.",
     ("grad(lambda x: x ** 2, [0.0])", [0.0]), ("grad(lambda x: x ** 1, [0.0])", [1.0]), ("grad(lambda x: x ** 0, [0.0])", [0.0])),
)  # fmt: skip

EDGES: list[Edge] = [*FLOATS, *ROUNDING, *ZEROS, *DERIVATIVES]

"""Einstein summation: parsing of the notation, and the plan of operations that computes it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar, cast

from phlox.backend import Bool
from phlox.backend.tracing.dimension import is_open
from phlox.backend.tracing.symbolic import by_shapes
from phlox.errors import KindError, ShapeError
from phlox.tensor.explain import failure
from phlox.tensor.products import promote_to_ops
from phlox.tensor.tensor import Tensor, wrap

T = TypeVar("T", bound=Tensor[Any, Any, Any])

Label: TypeAlias = str | int
"""The label of an axis: a letter, or, for axes under an ellipsis, a negative integer counted from its end."""

Labels: TypeAlias = tuple[Label, ...]
Tree: TypeAlias = "int | tuple[Tree, Tree]"
"""The index of an operand, or the product of two such trees."""

_EXHAUSTIVE = 6
"""Up to this many operands, the best contraction order is searched for; for more, it is chosen greedily."""


def einsum(subscripts: str, *operands: T) -> T:
    """Products and sums of tensors in Einstein notation, such as `"bij,bjk->bik"` for a batched matrix product.

    Each operand has one letter per axis. Axes with the same letter are multiplied elementwise. Letters that are missing
    after `->` are summed over. Without `->` the result has the letters that occur once, in alphabetical order. A letter
    repeated within one operand takes its diagonal. `...` stands for any number of axes, which broadcast; axes of size
    one broadcast too. With three or more operands, the contraction order is chosen to need few multiplications.

    Raises `ShapeError` if the notation is ill-formed or does not fit the shapes, `KindError` for Bool tensors.

    >>> import phlox as px
    >>> x = px.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> px.einsum("ij,kj->ik", x, x).tolist()
    [[5.0, 11.0], [11.0, 25.0]]
    >>> px.einsum("ii", x).item()
    5.0
    """
    if not operands:
        raise ShapeError(f"einsum: no tensors given for {subscripts!r}")
    ops, values = promote_to_ops("einsum", *operands)
    if ops.kind is Bool:
        raise KindError("einsum takes Float or Int tensors, got Bool; convert with .int() first")
    steps = by_shapes(_plan, subscripts, tuple(x.shape for x in operands))
    try:
        for name, sources, arguments in steps:
            values.append(ops[name](*[values[index] for index in sources], *arguments))
            for index in sources:
                values[index] = None  # each value is used once; this frees its memory
    except Exception as error:
        raise failure("einsum", ops, tuple(x.primitive for x in operands), error) from error
    return cast(T, wrap(ops, values[-1]))


# --- notation


def _read(subscripts: str, shapes: Sequence[tuple[int, ...]]) -> tuple[list[Labels], Labels]:
    """The labels of each operand's axes, and of the result's axes."""

    def wrong(reason: str) -> ShapeError:
        return ShapeError(f"einsum: {subscripts!r} {reason} (shapes {', '.join(map(str, shapes))})")

    text = subscripts.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(shapes):
        raise wrong(f"names {len(terms)} operands, but {len(shapes)} are given")

    def labels(term: str, rank: int) -> Labels:
        before, dots, after = term.partition("...")
        letters = before + after
        if not all(letter.isalpha() for letter in letters):
            raise wrong(f"is ill-formed: {term!r} must consist of letters and at most one '...'")
        covered = rank - len(letters)
        if covered < 0 or (covered and not dots):
            raise wrong(f"does not fit: {term!r} names {len(letters)} axes of a tensor of rank {rank}")
        return (*before, *range(-covered, 0), *after)

    inputs = [labels(term, len(shape)) for term, shape in zip(terms, shapes, strict=True)]
    counts: dict[Label, int] = {}
    for operand_labels in inputs:
        for label in operand_labels:
            counts[label] = counts.get(label, 0) + 1
    covered = [label for label in counts if isinstance(label, int)]
    if not arrow:
        single_letters = sorted(label for label, count in counts.items() if isinstance(label, str) and count == 1)
        return inputs, (*sorted(covered), *single_letters)
    if covered and "..." not in right:
        raise wrong("must name the axes of '...' in the result too")
    output = labels(right, len(right.replace("...", "")) + len(covered))
    if len(set(output)) < len(output):
        raise wrong("repeats a letter in the result")
    unknown = [label for label in output if label not in counts]
    if unknown:
        raise wrong(f"has {unknown[0]!r} in the result, but in no operand")
    return inputs, output


def _sizes(subscripts: str, inputs: list[Labels], shapes: Sequence[tuple[int, ...]]) -> dict[Label, int]:
    """The size of each label, ignoring axes of size one, which broadcast."""
    sizes: dict[Label, int] = {}
    for labels, shape in zip(inputs, shapes, strict=True):
        own_sizes: dict[Label, int] = {}
        for label, size in zip(labels, shape, strict=True):
            common = sizes.setdefault(label, size)
            if common == 1:
                sizes[label] = size
            if own_sizes.setdefault(label, size) != size or (common != 1 and size not in (1, common)):
                name = repr(label) if isinstance(label, str) else "'...'"
                common = own_sizes[label] if own_sizes[label] != size else common
                raise ShapeError(
                    f"einsum: in {subscripts!r} the axes {name} have sizes {common} and {size} "
                    f"(shapes {', '.join(map(str, shapes))})"
                )
    return sizes


# --- the plan


Step: TypeAlias = tuple[str, tuple[int, ...], tuple[Any, ...]]
"""An operation, the indices of its input values, and its other arguments. Each result gets the next index."""


@lru_cache(1024)
def _plan(subscripts: str, shapes: tuple[tuple[int, ...], ...]) -> list[Step]:
    inputs, output = _read(subscripts, shapes)
    sizes = _sizes(subscripts, inputs, shapes)
    planner = _Planner(sizes, output, len(shapes))
    # Axes of size one are removed, so that they broadcast, and restored at the end.
    wide = [tuple(axis for axis, size in enumerate(shape) if size != 1) for shape in shapes]
    named = [tuple(labels[axis] for axis in axes) for labels, axes in zip(inputs, wide, strict=True)]
    values: list[_Value] = []
    for index, (labels, shape) in enumerate(zip(named, shapes, strict=True)):
        needed = set(output).union(*named[:index], *named[index + 1 :])
        values.append(planner.single(index, labels, len(labels) < len(shape), needed))
    tree = _order([frozenset(value.labels) for value in values], frozenset(output), sizes)
    planner.finish(planner.product(tree, values)[0])
    return planner.steps


@dataclass
class _Value:
    """An array that the plan computes: its index, and the labels of its axes."""

    index: int
    labels: Labels


@dataclass
class _Planner:
    sizes: dict[Label, int]
    output: Labels
    count: int
    steps: list[Step] = field(default_factory=list[Step])

    def step(self, name: str, sources: tuple[int, ...], *arguments: Any) -> int:
        self.steps.append((name, sources, arguments))
        return self.count + len(self.steps) - 1

    def single(self, index: int, labels: Labels, narrower: bool, needed: set[Label]) -> _Value:
        """Prepare one operand: remove axes of size one, take diagonals, and sum over axes that nothing else needs."""
        if narrower:
            index = self.step("reshape", (index,), tuple(self.sizes[label] for label in labels))
        while len(set(labels)) < len(labels):
            index, labels = self.diagonal(index, labels)
        alone = tuple(axis for axis, label in enumerate(labels) if label not in needed)
        if alone:
            index = self.step("sum", (index,), alone, False)
        return _Value(index, tuple(label for label in labels if label in needed))

    def diagonal(self, index: int, labels: Labels) -> tuple[int, Labels]:
        """Take the diagonal of the first repeated label: every (n + 1)-th element of the two axes, flattened."""
        label = next(label for label in labels if labels.count(label) > 1)
        first = labels.index(label)
        second = labels.index(label, first + 1)
        other_axes = tuple(axis for axis in range(len(labels)) if axis not in (first, second))
        other_sizes = tuple(self.sizes[labels[axis]] for axis in other_axes)
        n = self.sizes[label]
        if (*other_axes, first, second) != tuple(range(len(labels))):
            index = self.step("permute_dims", (index,), (*other_axes, first, second))
        index = self.step("reshape", (index,), (*other_sizes, n * n))
        whole = tuple([slice(0, size, 1) for size in other_sizes])
        if is_open(n):  # a slice cannot have an open step: in rows of n + 1 elements, the first is the diagonal
            index = self.step("pad", (index,), (*((0, 0),) * len(other_sizes), (0, n)), 0)
            index = self.step("reshape", (index,), (*other_sizes, n, n + 1))
            index = self.step("index", (index,), (*whole, slice(0, n, 1), 0))
        else:
            index = self.step("index", (index,), (*whole, slice(0, n * n, n + 1)))
        return index, (*(labels[axis] for axis in other_axes), label)

    def product(self, tree: Tree, values: list[_Value]) -> tuple[_Value, frozenset[int]]:
        """The value of a tree of products, and the set of its leaves."""
        if isinstance(tree, int):
            return values[tree], frozenset((tree,))
        (left, left_leaves), (right, right_leaves) = self.product(tree[0], values), self.product(tree[1], values)
        leaves = left_leaves | right_leaves
        outside = set(self.output).union(*(value.labels for i, value in enumerate(values) if i not in leaves))
        return self.pair(left, right, outside), leaves

    def pair(self, left: _Value, right: _Value, outside: set[Label]) -> _Value:
        """The product of two values, summed over the shared labels that no other value and no output axis has."""
        shared = [label for label in left.labels if label in right.labels]
        order = {label: i for i, label in enumerate(self.output)}
        batch = sorted((label for label in shared if label in outside), key=lambda label: order.get(label, -1))
        summed = [label for label in shared if label not in outside]
        free = [[label for label in value.labels if label not in shared] for value in (left, right)]
        firsts = [min((order[label] for label in labels if label in order), default=math.inf) for labels in free]
        if firsts[1] < firsts[0]:  # this order saves a permutation of the result
            left, right, free = right, left, free[::-1]
        pairs = [
            tuple(tuple(value.labels.index(label) for label in labels) for value in (left, right))
            for labels in (batch, summed)
        ]
        index = self.step("dot_general", (left.index, right.index), *pairs)
        return _Value(index, (*batch, *free[0], *free[1]))

    def finish(self, value: _Value) -> None:
        """Permute the axes to the order of the result, and restore the axes of size one."""
        result_labels = [label for label in self.output if self.sizes[label] != 1]
        order = tuple(value.labels.index(label) for label in result_labels)
        index = value.index
        if order != tuple(range(len(order))):
            index = self.step("permute_dims", (index,), order)
        if len(result_labels) < len(self.output):
            index = self.step("reshape", (index,), tuple(self.sizes[label] for label in self.output))


# --- the order of contraction


def _order(inputs: list[frozenset[Label]], output: frozenset[Label], sizes: dict[Label, int]) -> Tree:
    if len(inputs) <= 2:
        return (0, 1) if len(inputs) == 2 else 0
    return (_best if len(inputs) <= _EXHAUSTIVE else _greedy)(inputs, output, sizes)


def _cost(labels: frozenset[Label], sizes: dict[Label, int]) -> float:
    """The number of elements of an array with these axes, or of multiplications of a product over them."""
    return math.prod(sizes[label] for label in labels)


def _best(inputs: list[frozenset[Label]], output: frozenset[Label], sizes: dict[Label, int]) -> Tree:
    """The tree with the fewest multiplications, by dynamic programming over subsets."""
    count = len(inputs)
    everything = (1 << count) - 1

    def within(subset: int) -> frozenset[Label]:
        return frozenset[Label]().union(*(inputs[i] for i in range(count) if subset >> i & 1))

    visible = {s: within(s) & (output | within(everything ^ s)) for s in range(1, everything + 1)}
    best: dict[int, tuple[float, Tree]] = {1 << i: (0.0, i) for i in range(count)}
    for subset in range(1, everything + 1):
        part = (subset - 1) & subset
        while part:
            other = subset ^ part
            if part > other:
                cost = best[part][0] + best[other][0] + _cost(visible[part] | visible[other], sizes)
                if subset not in best or cost < best[subset][0]:
                    best[subset] = cost, (best[part][1], best[other][1])
            part = (part - 1) & subset
    return best[everything][1]


def _greedy(inputs: list[frozenset[Label]], output: frozenset[Label], sizes: dict[Label, int]) -> Tree:
    """Repeatedly multiply the pair whose product adds the least memory; among equals, the cheapest."""
    trees: list[tuple[frozenset[Label], Tree]] = [(labels, i) for i, labels in enumerate(inputs)]
    while len(trees) > 1:
        choices: list[tuple[float, float, int, int]] = []
        for i, (a, _) in enumerate(trees):
            for j in range(i):
                b = trees[j][0]
                needed = output.union(*(labels for k, (labels, _) in enumerate(trees) if k not in (i, j)))
                added_memory = _cost((a | b) & needed, sizes) - _cost(a, sizes) - _cost(b, sizes)
                choices.append((added_memory, _cost(a | b, sizes), j, i))
        _, _, j, i = min(choices)
        (b, right), (a, left) = trees[i], trees[j]
        needed = output.union(*(labels for k, (labels, _) in enumerate(trees) if k not in (i, j)))
        trees = [tree for k, tree in enumerate(trees) if k not in (i, j)]
        trees.append(((a | b) & needed, (left, right)))
    return trees[0][1]

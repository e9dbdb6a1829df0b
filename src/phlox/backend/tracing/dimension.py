"""`Dimension`: the size of an open axis while a model is traced, an integer that also knows how it came about.

A dimension is an int with the value that the trace uses, so it can stand wherever a size can. It also holds a
polynomial in the names of the open axes, with quotients rounded down as further variables. Sums, products and quotients
of dimensions keep the polynomial; a result that depends on no open axis is a plain int.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, SupportsIndex, TypeAlias, cast

from phlox.backend.tracing.symbolic import RULES, differ, real, rules_of

Atom: TypeAlias = "str | tuple[str, Terms, Terms]"
"""The name of an open axis, or (operation, left, right) with operation `floordiv`, `min` or `max`."""
Monomial: TypeAlias = tuple[Atom, ...]
Terms: TypeAlias = tuple[tuple[Monomial, int], ...]
"""A polynomial: products of atoms, each with its coefficient, in one order."""


class Dimension(int):
    """A size that depends on open axes: `Dimension.named("batch", 7)` and the sizes computed from it.

    It compares as its value. With a float on its left (`1.0 / n`) the result is a plain number; `1 / n`, `ratio(1, n)`
    and `n**-0.5` keep the polynomial. It has the polynomial's hash, so a cache keyed by sizes does not
    return the entry of a plain size of the same value.

    >>> batch = Dimension.named("batch", 7)
    >>> 2 * batch + 1, (2 * batch + 1) % 2, batch - batch
    (2*batch + 1, 1, 0)
    """

    terms: Terms

    @classmethod
    def named(cls, name: str, value: int) -> Dimension:
        """The size of the axis `name`, which is `value` in this trace."""
        return _dimension(value, (((name,), 1),))

    def __hash__(self) -> int:
        return hash(self.terms)

    def __eq__(self, other: object) -> bool:
        return int.__eq__(self, other) if isinstance(other, int) else False

    # --- arithmetic that keeps the polynomial

    def __add__(self, other: Any) -> Any:
        return _polynomial(self, other, operator.add, _sum) if isinstance(other, int) else _real(_ADD, self, other)

    def __sub__(self, other: Any) -> Any:
        return self + (-other) if isinstance(other, (int, float)) else NotImplemented

    def __rsub__(self, other: Any) -> Any:
        return (-self) + other

    def __mul__(self, other: Any) -> Any:
        return _polynomial(self, other, operator.mul, _product) if isinstance(other, int) else _real(_MUL, self, other)

    __radd__ = __add__
    __rmul__ = __mul__

    def __neg__(self) -> Any:
        return self * -1

    def __pos__(self) -> Any:
        return self

    def __floordiv__(self, other: Any) -> Any:
        return _floordiv(self, other) if isinstance(other, int) else NotImplemented

    def __rfloordiv__(self, other: Any) -> Any:
        return _floordiv(other, self) if isinstance(other, int) else NotImplemented

    def __mod__(self, other: Any) -> Any:
        return self - other * (self // other) if isinstance(other, int) else NotImplemented

    def __rmod__(self, other: Any) -> Any:
        return other - self * (other // self) if isinstance(other, int) else NotImplemented

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __truediv__(self, other: Any) -> Any:
        return _real(_DIV, self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _real(_DIV, other, self)

    def __pow__(self, other: Any, modulus: Any = None) -> Any:
        if isinstance(other, int) and other >= 0 and modulus is None:
            return math.prod([self] * other)
        if isinstance(other, (int, float)) and modulus is None:
            return _real(_POW, self, other)
        return cast(Any, pow)(int(self), other, modulus)

    def __floor__(self) -> Any:
        return self

    def __ceil__(self) -> Any:
        return self

    def __trunc__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return self if int(self) >= 0 else -self

    def __repr__(self) -> str:
        return text_of(self.terms)

    __str__ = __repr__

    def __reduce__(self) -> tuple[Any, ...]:
        return _dimension, (int(self), self.terms)


class DimensionReal(float):
    """A real number that depends on dimensions, such as the 1 / n of a mean. It remembers how it was computed."""

    tree: tuple[Any, ...]
    """(operation, left, right); operands are numbers, dimensions, or other numbers of this class."""

    def __add__(self, other: Any) -> Any:
        return _real(_ADD, self, other)

    def __radd__(self, other: Any) -> Any:
        return _real(_ADD, other, self)

    def __sub__(self, other: Any) -> Any:
        return _real(_SUB, self, other)

    def __rsub__(self, other: Any) -> Any:
        return _real(_SUB, other, self)

    def __mul__(self, other: Any) -> Any:
        return _real(_MUL, self, other)

    def __rmul__(self, other: Any) -> Any:
        return _real(_MUL, other, self)

    def __truediv__(self, other: Any) -> Any:
        return _real(_DIV, self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _real(_DIV, other, self)

    def __pow__(self, other: Any, modulus: None = None) -> Any:
        return _real(_POW, self, other)

    def __neg__(self) -> Any:
        return _real(_MUL, self, -1.0)

    def __floor__(self) -> Any:
        """A dimension times a fraction gives a quotient of integers; anything else gives a plain int."""
        from fractions import Fraction  # which imports much, and is needed nowhere else

        name, left, right = self.tree
        if name == _MUL and isinstance(left, Dimension) and isinstance(right, float):
            share = Fraction(right).limit_denominator(4096)
            if float(share) == right:
                return left * share.numerator // share.denominator
        return math.floor(float(self))


_ADD, _SUB, _MUL, _DIV, _POW = "add", "sub", "mul", "div", "pow"
_REALS: dict[str, Callable[[Any, Any], Any]] = {
    _ADD: float.__add__, _SUB: float.__sub__, _MUL: float.__mul__, _DIV: float.__truediv__, _POW: float.__pow__,
}  # fmt: skip


def _real(name: str, left: Any, right: Any) -> Any:
    if not isinstance(left, (int, float)) or not isinstance(right, (int, float)):
        return NotImplemented
    number = DimensionReal(_REALS[name](*[float(x) for x in (left, right)]))
    number.tree = (name, left, right)
    return number


def _dimension(value: int, terms: Terms) -> Any:
    dimension = Dimension(value)
    dimension.terms = terms
    return dimension


def _result(value: int, terms: Terms) -> Any:
    """A dimension, or a plain int if no term depends on an open axis."""
    return value if all(not monomial for monomial, _ in terms) else _dimension(value, terms)


def terms_of(size: int) -> Terms:
    """The polynomial of a size, open or not."""
    if isinstance(size, Dimension):
        return size.terms
    return (((), int(size)),) if size else ()


def as_size(value: SupportsIndex) -> int:
    """`operator.index`, except that a dimension, or an engine's symbolic size, is returned as it is."""
    if type(value) is int:  # almost always
        return value
    return cast(int, value) if isinstance(value, Dimension) or type(value) in RULES else operator.index(value)


def is_open(size: Any) -> bool:
    """Does a size, or a real number made of sizes, depend on an open axis?"""
    return type(size) is not int and (isinstance(size, (Dimension, DimensionReal)) or type(size) in RULES)


_NUMBERS = frozenset({int, float})


def ratio(numerator: float, denominator: float) -> float:
    """The real quotient of two numbers or sizes, whatever the open axes are; NaN if the denominator is not positive.

    >>> ratio(3, 2), ratio(3, 0)
    (1.5, nan)
    """
    if type(denominator) in _NUMBERS and type(numerator) in _NUMBERS:  # almost always
        return numerator / denominator if denominator > 0 else math.nan
    if rules_of(numerator, denominator) is not None:
        return real(numerator) / real(denominator)
    if is_open(denominator):
        return numerator / denominator if isinstance(numerator, int) else numerator * (1 / denominator)
    return numerator / denominator if denominator > 0 else math.nan


def same_size(lhs: int, rhs: int) -> bool:
    """Are two sizes equal, whatever the open axes are?"""
    if (rules := rules_of(lhs, rhs)) is not None:
        return rules.same(lhs, rhs)
    return lhs == rhs and terms_of(lhs) == terms_of(rhs)


def pads(widths: Iterable[tuple[int, int]]) -> bool:
    """Is any of these widths of padding positive, in this trace or for other sizes of the open axes?"""
    return any(is_open(width) or width for pair in widths for width in pair)  # `bool` of an open width would fix it


def smaller(lhs: int, rhs: int) -> int:
    """The smaller of two sizes, whatever the open axes are."""
    if (rules := rules_of(lhs, rhs)) is not None:
        return rules.smaller(lhs, rhs)
    return _min_or_max("min", min, lhs, rhs)


def larger(lhs: int, rhs: int) -> int:
    """The larger of two sizes, whatever the open axes are."""
    if (rules := rules_of(lhs, rhs)) is not None:
        return rules.larger(lhs, rhs)
    return _min_or_max("max", max, lhs, rhs)


def _min_or_max(name: str, choose: Callable[[int, int], int], lhs: int, rhs: int) -> int:
    if not (is_open(lhs) or is_open(rhs)):
        return choose(lhs, rhs)
    if never_negative(terms_of(lhs - rhs)):
        return lhs if choose is max else rhs
    if never_negative(terms_of(rhs - lhs)):
        return rhs if choose is max else lhs
    value = choose(int(lhs), int(rhs))
    return _dimension(value, ((((name, terms_of(lhs), terms_of(rhs)),), 1),))


def never_negative(terms: Terms) -> bool:
    """Is this polynomial certainly not negative, given that no size is negative?"""
    if all(count > 0 and all(map(_never_below, monomial)) for monomial, count in terms):
        return True
    for monomial, count in terms:
        if len(monomial) != 1 or isinstance(monomial[0], str):
            continue
        operation, left, right = monomial[0]
        remainder = _sum(terms, ((monomial, -count),))
        if operation == "floordiv":  # for a dividend >= 0, the quotient is at most the dividend
            if count < 0 and never_negative(left) and never_negative(_sum(remainder, _product(left, (((), count),)))):
                return True
            continue
        sides = [never_negative(_sum(remainder, _product(side, (((), count),)))) for side in (left, right)]
        return any(sides) if (operation == "max") == (count > 0) else all(sides)
    return False


def _never_below(atom: Atom) -> bool:
    """Is this factor certainly not negative?"""
    if isinstance(atom, str):
        return True
    operation, left, right = atom
    sides = never_negative(left), never_negative(right)
    return any(sides) if operation == "max" else all(sides)


# --- polynomials


def _polynomial(lhs: int, rhs: int, combine: Callable[[int, int], int], rule: Callable[[Terms, Terms], Terms]) -> Any:
    return _result(combine(int(lhs), int(rhs)), rule(terms_of(lhs), terms_of(rhs)))


def _normal(terms: Iterable[tuple[Monomial, int]]) -> Terms:
    coefficients: dict[Monomial, int] = {}
    for monomial, coefficient in terms:
        coefficients[monomial] = coefficients.get(monomial, 0) + coefficient
    nonzero = [(monomial, coefficient) for monomial, coefficient in coefficients.items() if coefficient]
    return tuple(sorted(nonzero, key=lambda term: (-len(term[0]), repr(term[0]))))


def _sum(lhs: Terms, rhs: Terms) -> Terms:
    return _normal((*lhs, *rhs))


def _product(lhs: Terms, rhs: Terms) -> Terms:
    return _normal((tuple(sorted((*first, *second), key=repr)), a * b) for first, a in lhs for second, b in rhs)


def _floordiv(lhs: int, rhs: int) -> Any:
    """The quotient rounded down: terms divisible without remainder are divided; the others become a new variable."""
    if int(lhs) < 0 < int(rhs):  # engines round toward zero; -((b - 1 - a) // b) is the same, with a dividend >= 0
        return -((-lhs + rhs - 1) // rhs)
    value = int(lhs) // int(rhs)
    exact, remainder = _divided_terms(terms_of(lhs), terms_of(rhs))
    if remainder:
        if not is_open(rhs) and all(not monomial for monomial, _ in remainder):
            remainder = terms_of(sum(coefficient for _, coefficient in remainder) // int(rhs))
        else:
            remainder = (((("floordiv", remainder, terms_of(rhs)),), 1),)
    return _result(value, _sum(exact, remainder))


def _divided_terms(terms: Terms, by: Terms) -> tuple[Terms, Terms]:
    """Quotient and remainder: each term that a single term divides exactly goes into the quotient."""
    if len(by) != 1:
        return ((((), 1),), ()) if terms == by else ((), terms)
    (monomial, coefficient), exact, remainder = by[0], list[tuple[Monomial, int]](), list[tuple[Monomial, int]]()
    for factors, count in terms:
        quotient = list(factors)
        for factor in monomial:
            if factor in quotient:
                quotient.remove(factor)
            else:
                break
        else:
            if count % coefficient == 0:
                exact.append((tuple(quotient), count // coefficient))
                continue
        remainder.append((factors, count))
    return _normal(exact), _normal(remainder)


def text_of(terms: Terms) -> str:
    """A polynomial as text: `2*batch + 1`."""
    parts = [_term_text(monomial, coefficient) for monomial, coefficient in terms]
    return " + ".join(parts).replace("+ -", "- ") or "0"


def _term_text(monomial: Monomial, coefficient: int) -> str:
    factors = [_atom_text(atom) for atom in monomial]
    if not factors:
        return str(coefficient)
    sign = "-" if coefficient == -1 else "" if coefficient == 1 else f"{coefficient}*"
    return sign + "*".join(factors)


def _atom_text(atom: Atom) -> str:
    if isinstance(atom, str):
        return atom
    name, left, right = atom
    if name == "floordiv":
        return f"(({text_of(left)}) // {text_of(right) if len(right) == 1 else f'({text_of(right)})'})"
    return f"{name}({text_of(left)}, {text_of(right)})"


def evaluate(terms: Terms, sizes: Mapping[str, int]) -> int:
    """The value of a polynomial for sizes of the open axes.

    >>> evaluate((3 * Dimension.named("n", 7) // 2).terms, {"n": 4})
    6
    """
    return sum(
        coefficient * math.prod(_atom_value(atom, sizes) for atom in monomial) for monomial, coefficient in terms
    )


def _atom_value(atom: Atom, sizes: Mapping[str, int]) -> int:
    if isinstance(atom, str):
        return sizes[atom]
    name, left, right = atom
    lhs, rhs = evaluate(left, sizes), evaluate(right, sizes)
    return lhs // rhs if name == "floordiv" else min(lhs, rhs) if name == "min" else max(lhs, rhs)


def common_size(lhs: int, rhs: int) -> int:
    """The size that two sizes broadcast to; of two equal open sizes, the one that is a plain name is preferred."""
    if lhs == 1:
        return rhs
    return rhs if isinstance(lhs, Dimension) and isinstance(rhs, Dimension) and _is_name(rhs.terms) else lhs


def _is_name(terms: Terms) -> bool:
    return len(terms) == 1 and terms[0][1] == 1 and len(terms[0][0]) == 1 and isinstance(terms[0][0][0], str)


def broadcast_sizes(shapes: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape that these shapes broadcast to, with dimensions kept; `ValueError` if they do not broadcast."""
    broadcast: tuple[int, ...] = ()
    for shape in shapes:
        rank = max(len(shape), len(broadcast))
        pairs = zip((1,) * (rank - len(broadcast)) + broadcast, (1,) * (rank - len(shape)) + shape, strict=True)
        sizes: list[int] = []
        for lhs, rhs in pairs:
            if rules_of(lhs, rhs) is not None:
                sizes.append(rhs if type(lhs) is int and lhs == 1 else lhs)
                if differ(lhs, rhs) and 1 not in (lhs, rhs):
                    raise ValueError(f"shapes {broadcast} and {shape} do not broadcast")
                continue
            if lhs != rhs and 1 not in (int(lhs), int(rhs)):
                raise ValueError(f"shapes {broadcast} and {shape} do not broadcast")
            sizes.append(common_size(lhs, rhs))
        broadcast = tuple(sizes)
    return broadcast

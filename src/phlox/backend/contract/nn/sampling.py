"""Reading images between their pixels."""

from __future__ import annotations

import math
from itertools import product
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from phlox.backend.contract.indexing import IndexingOps
from phlox.backend.contract.types import Array, Gradients, Needed
from phlox.backend.kind import Float, Int

if TYPE_CHECKING:
    from phlox.backend.contract.nn.resampling import Resampling

Reading: TypeAlias = Literal["linear", "nearest", "cubic"]
Beyond: TypeAlias = Literal["zeros", "border", "reflection"]
"""The values that are read outside of the image."""

Tap: TypeAlias = tuple[Array, Any, Any, Any]
"""Along one axis: position (Int), weight, slope of the weight, is it inside? All [n, points]; None is 1, 0 or true."""


class SamplingOps(IndexingOps):
    """Interpolation and sampling on grids."""

    # --- interpolate: x [n, channels, ...], a table for each spatial axis

    def interpolate(self, x: Array, plans: tuple[Resampling, ...]) -> Array:
        """x resampled along every spatial axis, one after the other."""
        for axis, plan in enumerate(plans):
            x = self._resample(x, 2 + axis, plan)
        return x

    def interpolate_forward(self, x: Array, plans: tuple[Resampling, ...]) -> tuple[Array, Any]:
        """See `interpolate`."""
        return self.interpolate(x, plans), None

    def interpolate_backward(self, saved: Any, g: Array, needed: Needed, plans: tuple[Resampling, ...]) -> Gradients:
        """The transposed tables."""
        return (self.interpolate(g, tuple(plan.transpose for plan in plans)),)

    def _resample(self, x: Array, axis: int, plan: Resampling) -> Array:
        positions, weights = plan.table
        device, rank = self.device_of(x), len(self.shape(x))
        y = None
        for position, weight in zip(positions.T, weights.T, strict=True):
            part = self.take(x, self.from_host(position, Int, device), axis)
            if not (weight == 1.0).all():
                shape = tuple(len(weight) if i == axis else 1 for i in range(rank))
                part = self.float_mul(part, self.from_host(weight.reshape(shape), Float, device))
            y = part if y is None else self.float_add(y, part)
        return y

    # --- grid sample (Jaderberg et al. 2015): x [n, channels, (depth,) height, width], grid [n, ..., 2 or 3]

    def grid_sample(self, x: Array, grid: Array, reading: Reading, beyond: Beyond, align_corners: bool) -> Array:
        """x at the points of the grid; coordinates, the last axis of x first, are -1 and 1 at the edges."""
        return self.grid_sample_forward(x, grid, reading, beyond, align_corners)[0]

    def grid_sample_forward(
        self, x: Array, grid: Array, reading: Reading, beyond: Beyond, align_corners: bool
    ) -> tuple[Array, Any]:
        """The weighted sum of the neighbours of each point."""
        (n, channels, *sizes), (_, *out, rank) = self.shape(x), self.shape(grid)
        points = math.prod(out)
        pixels = self.reshape(self.permute_dims(x, (0, *range(2, rank + 2), 1)), (n * math.prod(sizes), channels))
        flat = self.reshape(grid, (n, points, rank))
        leading = (slice(0, n, 1), slice(0, points, 1))
        axes: list[list[Tap]] = []
        for axis, size in enumerate(sizes):
            along = self.index(flat, (*leading, rank - 1 - axis))
            axes.append(self._taps(along, size, reading, beyond, align_corners))
        neighbours: list[tuple[Array, Any]] = []
        y = None
        for taps in product(*axes):
            rows = self._neighbour_rows(taps, sizes, n, points)
            weight = self._product_of_taps([tap[1] for tap in taps], taps, n * points)
            part = self.take(pixels, rows, 0)
            if weight is not None:
                part = self.float_mul(part, weight)
            y = part if y is None else self.float_add(y, part)
            neighbours.append((rows, weight))
        y = self.reshape(self.permute_dims(self.reshape(y, (n, points, channels)), (0, 2, 1)), (n, channels, *out))
        return y, (x, grid, pixels, axes, neighbours)

    def grid_sample_backward(
        self, saved: Any, g: Array, needed: Needed, reading: Reading, beyond: Beyond, align_corners: bool
    ) -> Gradients:
        """Each point's gradient goes to its neighbours by their weights, and to the grid by the weights' slopes."""
        x, grid, pixels, axes, neighbours = saved
        (n, channels, *sizes), (_, *out, rank) = self.shape(x), self.shape(grid)
        points = math.prod(out)
        g = self.permute_dims(self.reshape(g, (n, channels, points)), (0, 2, 1))
        g = self.reshape(g, (n * points, channels))
        dx = dgrid = None
        if needed[0]:
            parts = [g if weight is None else self.float_mul(g, weight) for _, weight in neighbours]
            rows = self.concat([rows for rows, _ in neighbours], 0)
            dx = self.float_take_adjoint(self.concat(parts, 0), rows, 0, self.shape(pixels))
            dx = self.permute_dims(self.reshape(dx, (n, *sizes, channels)), (0, rank + 1, *range(1, rank + 1)))
        if needed[1]:
            slopes: list[Any] = [None] * rank
            for taps, (rows, _) in zip(product(*axes), neighbours, strict=True):
                if taps[0][2] is None:
                    continue
                seen = self.float_sum(self.float_mul(g, self.take(pixels, rows, 0)), (1,), True)
                for axis in range(rank):
                    factors = [tap[2] if axis == other else tap[1] for other, tap in enumerate(taps)]
                    part = self.float_mul(seen, self._product_of_taps(factors, taps, n * points))
                    slopes[axis] = part if slopes[axis] is None else self.float_add(slopes[axis], part)
            if slopes[0] is None:
                dgrid = self.float_mul(grid, 0.0)
            else:
                dgrid = self.reshape(self.concat(slopes[::-1], 1), self.shape(grid))
        return dx, dgrid

    def _neighbour_rows(self, taps: tuple[Tap, ...], sizes: list[int], n: int, points: int) -> Array:
        """The rows of the pixels [n * height * width, channels] that hold the neighbours."""
        examples = self.int_arange(0, n, 1, self.device_of(taps[0][0]))
        rows = self.broadcast_to(self.reshape(examples, (n, 1)), (n, points))
        for tap, size in zip(taps, sizes, strict=True):
            rows = self.int_add(self.int_mul(rows, size), tap[0])
        return self.reshape(rows, (n * points,))

    def _product_of_taps(self, factors: list[Any], taps: tuple[Tap, ...], count: int) -> Any:
        """The product of the factors, one for each axis, as a column; zero for a neighbour that is not inside."""
        y = None
        for factor in factors:
            if factor is not None:
                y = factor if y is None else self.float_mul(y, factor)
        for *_, inside in taps:
            if inside is not None:
                y = self.where(inside, 1.0 if y is None else y, 0.0)
        return None if y is None else self.reshape(y, (count, 1))

    def _taps(self, along: Array, size: int, reading: Reading, beyond: Beyond, align_corners: bool) -> list[Tap]:
        """The neighbours along an axis of points at `along` in [-1, 1], with weights and their slopes in `along`."""
        scale: Any = (size - 1 if align_corners else size) / 2.0
        point = self.float_add(self.float_mul(along, scale), (size - 1) / 2.0)
        if reading != "cubic" and beyond != "zeros":
            point, slope = self._brought_inside(point, size, beyond, align_corners)
            scale = self.float_mul(slope, scale)
        if reading == "nearest":
            return [self._tap(self.float_round(point), None, None, size, beyond)]
        low = self.float_floor(point)
        share = self.float_sub(point, low)
        if reading == "linear":
            falling = -scale if isinstance(scale, float) else self.float_neg(scale)
            return [
                self._tap(low, self.float_sub(1.0, share), falling, size, beyond),
                self._tap(self.float_add(low, 1.0), share, scale, size, beyond),
            ]
        taps: list[Tap] = []
        for offset in (-1, 0, 1, 2):
            position = self.float_add(low, float(offset))
            if beyond != "zeros":
                position = self._brought_inside(position, size, beyond, align_corners)[0]
            weight, slope = self._cubic_weight(share, offset)
            taps.append(self._tap(position, weight, self.float_mul(slope, scale), size, beyond))
        return taps

    def _tap(self, position: Array, weight: Any, slope: Any, size: int, beyond: Beyond) -> Tap:
        """A neighbour at a position, which may lie outside the image or be NaN."""
        position = self.detach(position)
        position = self.where(self.float_isnan(position), 0.0, position)
        number = self.float_into_int(self.float_clip(position, 0.0, float(max(size - 1, 0))))
        if beyond != "zeros":
            return number, weight, slope, None
        inside = self.bool_and(self.float_less_equal(0.0, position), self.float_less_equal(position, float(size - 1)))
        return number, weight, slope, inside

    def _brought_inside(self, position: Array, size: int, beyond: Beyond, align_corners: bool) -> tuple[Array, Array]:
        """The coordinate inside the image that is read instead of `position`, and its derivative: 1, -1 or 0."""
        slope: Any = 1.0
        if beyond == "reflection":
            # About the centres of the outermost pixels, or about their edges.
            low, span = (0.0, float(size - 1)) if align_corners else (-0.5, float(size))
            offset = self.float_sub(position, low)
            distance, slope = self.float_abs(offset), self.float_sign(offset)
            flips = self.float_floor(self.float_div(distance, span or 1.0))
            extra = self.float_sub(distance, self.float_mul(flips, span))
            halves = self.float_mul(flips, 0.5)
            odd = self.float_less(self.float_floor(halves), halves)
            position = self.float_add(self.where(odd, self.float_sub(span, extra), extra), low)
            slope = self.where(odd, self.float_neg(slope), slope)
        last = float(max(size - 1, 0))
        between = self.bool_and(self.float_less(0.0, position), self.float_less(position, last))
        return self.float_clip(position, 0.0, last), self.where(between, slope, 0.0)

    def _cubic_weight(self, share: Array, offset: int) -> tuple[Array, Array]:
        """The weight of a neighbour by cubic convolution (Keys 1981, a = -0.75), and its slope."""
        a = -0.75
        far = offset in (-1, 2)
        sign = 1.0 if offset < 1 else -1.0
        away = self.float_mul(self.float_sub(share, float(offset)), sign)
        c3, c2, c1, c0 = (a, -5.0 * a, 8.0 * a, -4.0 * a) if far else (a + 2.0, -(a + 3.0), 0.0, 1.0)
        weight = self._horner(away, (c3, c2, c1, c0))
        return weight, self.float_mul(self._horner(away, (3.0 * c3, 2.0 * c2, c1)), sign)

    def _horner(self, x: Array, coefficients: tuple[float, ...]) -> Array:
        y = self.float_add(self.float_mul(x, coefficients[0]), coefficients[1])
        for coefficient in coefficients[2:]:
            y = self.float_add(self.float_mul(y, x), coefficient)
        return y

"""Pooling over any number of spatial axes."""

from __future__ import annotations

import math
from typing import Any

from phlox.backend.contract.nn.conv import ConvOps
from phlox.backend.contract.types import Array, Gradients, Index, Needed, Shape, Widths
from phlox.backend.device import Device
from phlox.backend.tracing.dimension import same_size
from phlox.backend.tracing.symbolic import is_symbolic, real, whole


class PoolingOps(ConvOps):
    """Pooling of the windows of x [n, channels, *spatial]; options as in `ConvOps`.

    The sum or maximum of a window is computed axis by axis: the cost is the sum of its sides, not their product.
    """

    # --- max pooling

    def max_pool(self, x: Array, window: Shape, stride: Shape, padding: Widths, dilation: Shape) -> Array:
        """The maximum of each window; NaN wins; padding counts as minus infinity."""
        return self.max_pool_forward(x, window, stride, padding, dilation)[0]

    def max_pool_forward(
        self, x: Array, window: Shape, stride: Shape, padding: Widths, dilation: Shape
    ) -> tuple[Array, Any]:
        """See `max_pool`."""
        stages = [self._pad_spatial(x, padding, -math.inf)]
        # The last axis first: then the first maximum along each axis is the first in row-major order.
        for axis in reversed(range(len(window))):
            views = self._views(self.shape(stages[-1]), 2 + axis, window[axis], stride[axis], dilation[axis])
            stages.append(self._greatest(stages[-1], views))
        return stages[-1], tuple(stages)

    def max_pool_backward(
        self, saved: Any, g: Array, needed: Needed, window: Shape, stride: Shape, padding: Widths, dilation: Shape
    ) -> Gradients:
        """The gradient goes to the first maximum of each window, in row-major order."""
        for axis in range(len(window)):
            x, y = saved[-2 - axis], saved[-1 - axis]
            views = self._views(self.shape(x), 2 + axis, window[axis], stride[axis], dilation[axis])
            g = self._to_greatest(x, y, g, views)
        return (self._unpad_spatial(g, padding),)

    def _greatest(self, x: Array, views: list[Index]) -> Array:
        """The elementwise maximum of x at the views."""
        y = self.index(x, views[0])
        for view in views[1:]:
            y = self.float_maximum(y, self.index(x, view))
        return y

    def _to_greatest(self, x: Array, y: Array, g: Array, views: list[Index]) -> Array:
        """`g` added where the first of the views of x has the maximum y."""
        undefined = self.float_isnan(y)  # A NaN equals nothing: the first NaN counts as the maximum.
        shares: list[Array] = []
        free: Array | None = None
        for view in views:
            part = self.index(x, view)
            hit = self.bool_or(self.float_equal(part, y), self.bool_and(undefined, self.float_isnan(part)))
            shares.append(self.where(hit if free is None else self.bool_and(hit, free), g, 0.0))
            free = self.bool_not(hit) if free is None else self.bool_and(free, self.bool_not(hit))
        return self._spread(shares, self.shape(x), views)

    # --- average pooling: of the padding, the widths `counted` count as zeros; the other padding is ignored

    def avg_pool(self, x: Array, window: Shape, stride: Shape, padding: Widths, counted: Widths) -> Array:
        """The mean of each window."""
        total = self._pad_spatial(x, padding, 0.0)
        for axis in reversed(range(len(window))):
            total = self._sum_of_views(total, self._views(self.shape(total), 2 + axis, window[axis], stride[axis], 1))
        return self._mean(total, self.shape(x), window, stride, padding, counted)

    def avg_pool_forward(
        self, x: Array, window: Shape, stride: Shape, padding: Widths, counted: Widths
    ) -> tuple[Array, Any]:
        """See `avg_pool`."""
        return self.avg_pool(x, window, stride, padding, counted), self.shape(x)

    def avg_pool_backward(
        self, saved: Any, g: Array, needed: Needed, window: Shape, stride: Shape, padding: Widths, counted: Widths
    ) -> Gradients:
        """The transpose of `avg_pool`: each window's gradient goes evenly to its elements."""
        g = self._mean(g, saved, window, stride, padding, counted)
        for axis, (size, (before, after)) in enumerate(zip(saved[2:], padding, strict=True)):
            sizes = self.shape(g)
            shape = (*sizes[: 2 + axis], before + size + after, *sizes[3 + axis :])
            views = self._views(shape, 2 + axis, window[axis], stride[axis], 1)
            g = self._spread([g] * len(views), shape, views)
        return (self._unpad_spatial(g, padding),)

    def _sum_of_views(self, x: Array, views: list[Index]) -> Array:
        """The sum of x at the views."""
        total = self.index(x, views[0])
        for view in views[1:]:
            total = self.float_add(total, self.index(x, view))
        return total

    def _mean(self, y: Array, shape: Shape, window: Shape, stride: Shape, padding: Widths, counted: Widths) -> Array:
        """y, one element for each window of an input of `shape`, divided by the number of counted elements in it."""
        factor = 1.0
        for axis, (side, outer, inner) in enumerate(zip(window, padding, counted, strict=True)):
            if all(map(same_size, inner, outer)):
                factor /= side
                continue
            ones = self.float_full((inner[0] + shape[2 + axis] + inner[1],), 1.0, self.device_of(y))
            ones = self.pad(ones, ((outer[0] - inner[0], outer[1] - inner[1]),), 0.0)
            counts = self._sum_of_views(ones, self._views(self.shape(ones), 0, side, stride[axis], 1))
            y = self.float_div(y, self.reshape(counts, (-1, *(1 for _ in window[axis + 1 :]))))
        return y if factor == 1.0 else self.float_mul(y, factor)

    # --- pooling to fixed sizes: window i of an axis goes from floor(i size / count) up to ceil((i + 1) size / count)

    def adaptive_max_pool(self, x: Array, counts: Shape) -> Array:
        """The maximum of each window, `counts` of them along each axis, as in `max_pool`."""
        sides: list[int] = []
        for axis, count in enumerate(counts, 2):
            size = self.shape(x)[axis]
            if is_symbolic(size) or size % count:  # windows side by side; a short one repeats its last element
                positions, _, lasts = self._adaptive_windows(size, count, self.device_of(x))
                x = self.take(x, self.reshape(self.int_minimum(positions, lasts), (-1,)), axis)
            sides.append(self.shape(x)[axis] // count)
        window = tuple(sides)
        return self.max_pool(x, window, window, ((0, 0),) * len(window), (1,) * len(window))

    def adaptive_avg_pool(self, x: Array, counts: Shape) -> Array:
        """The mean of each window, `counts` of them along each axis."""
        y = self.adaptive_sum_pool(x, counts)
        factor = 1.0
        for axis, (size, count) in enumerate(zip(self.shape(x)[2:], counts, strict=True), 2):
            if is_symbolic(size) and count == 1:
                y = self.float_div(y, real(size))
            elif not is_symbolic(size) and size % count == 0:
                factor *= count / size
            elif is_symbolic(size) or count % size:
                _, starts, lasts = self._adaptive_windows(size, count, self.device_of(x))
                lengths = self.int_into_float(self.int_add(self.int_sub(lasts, starts), 1))
                y = self.float_div(y, self.reshape(lengths, (count, *(1 for _ in counts[axis - 1 :]))))
        return y if factor == 1.0 else self.float_mul(y, factor)

    def adaptive_sum_pool(self, x: Array, counts: Shape) -> Array:
        """The sum of each window, `counts` of them along each axis.

        Window i of `count` over `size` contains j if and only if window j of `size` over `count` contains i. So the
        transpose of this map is the same map, back to the old sizes.
        """
        for axis, count in enumerate(counts, 2):
            shape = self.shape(x)
            size = shape[axis]
            before, after = shape[:axis], shape[axis + 1 :]
            if (not is_symbolic(size) and size % count == 0) or count == 1:
                x = self.float_sum(self.reshape(x, (*before, count, size // count, *after)), (axis + 1,), False)
            elif not is_symbolic(size) and count % size == 0:
                x = self.broadcast_to(self.expand_dims(x, (axis + 1,)), (*before, size, count // size, *after))
                x = self.reshape(x, (*before, count, *after))
            else:
                positions, _, lasts = self._adaptive_windows(size, count, self.device_of(x))
                x = self.take(x, self.int_minimum(positions, lasts), axis)
                inside = self.reshape(self.int_less_equal(positions, lasts), (count, -1, *(1 for _ in after)))
                x = self.float_sum(self.where(inside, x, 0.0), (axis + 1,), False)
        return x

    def _adaptive_windows(self, size: int, count: int, device: Device) -> tuple[Array, Array, Array]:
        """The positions in each window [count, longest], some past its end, and its first and last, [count, 1]."""
        if is_symbolic(size):
            longest = size // count + 2  # the last positions may lie past every window
        else:
            lengths = {-(-(i + 1) * size // count) - i * size // count for i in range(count // math.gcd(size, count))}
            longest = max(lengths)
        side, remainder = whole(size // count), whole(size % count)
        numbers = self.reshape(self.int_arange(0, count, 1, device), (count, 1))
        # i size / count = i side + i remainder / count; these products are small.
        starts = self.int_floordiv(self.int_mul(numbers, remainder), count)
        starts = self.int_add(self.int_mul(numbers, side), starts)
        ends = self.int_floordiv(self.int_add(self.int_mul(numbers, remainder), remainder + count - 1), count)
        lasts = self.int_add(self.int_mul(self.int_add(numbers, 1), side), self.int_sub(ends, 1))
        positions = self.int_add(starts, self.int_arange(0, longest, 1, device))
        return positions, starts, lasts

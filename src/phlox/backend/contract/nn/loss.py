"""Losses that are one operation; the others are a few operations on tensors."""

from __future__ import annotations

import math
from typing import Any

from phlox.backend.contract.nn.linear import DenseOps
from phlox.backend.contract.types import Array, Gradients, Needed
from phlox.host.dtypes import LARGEST

LEAST_LOG = -100.0
"""The lower bound of the logarithms in a binary cross-entropy."""


class LossOps(DenseOps):
    """Losses with one scalar for each example."""

    # --- binary cross-entropy, elementwise: probabilities p and targets of one shape

    def float_binary_cross_entropy(self, p: Array, target: Array) -> Array:
        """-(target log p + (1 - target) log(1 - p)); the logarithms are at least -100."""
        complement = self.float_sub(1.0, p)
        hit_term = self.float_mul(target, self._bounded_log(p, p))
        miss_term = self.float_mul(self.float_sub(1.0, target), self._bounded_log(complement, p))
        return self.float_neg(self.float_add(hit_term, miss_term))

    def _bounded_log(self, x: Array, p: Array) -> Array:
        """log x, at least -100, for x = p or x = 1 - p; it avoids log(0), whose derivative is infinite."""
        is_zero = self.float_equal(x, 0.0)
        log = (
            self.float_log(self.where(is_zero, 1.0, x))
            if x is p
            else self.float_log1p(self.where(is_zero, 0.0, self.float_neg(p)))
        )
        return self.where(is_zero, LEAST_LOG, self.float_maximum(log, LEAST_LOG))

    def float_binary_cross_entropy_backward(self, g: Array, p: Array, target: Array) -> Array:
        """g (p - target) / (p (1 - p)); zero where p is so close to zero or one that the bound of the log applies."""
        spread = self.float_mul(p, self.float_sub(1.0, p))
        flat = self.float_less_equal(spread, max(math.exp(LEAST_LOG), 1.0 / LARGEST[self.float_element]))
        slope = self.float_div(self.float_sub(p, target), self.where(flat, 1.0, spread))
        return self.float_mul(g, self.where(flat, 0.0, slope))

    # --- cross-entropy: logits [n, classes], targets Int [n], class weights [classes] -> losses [n]

    def cross_entropy(
        self, logits: Array, targets: Array, weight: Array | None, smoothing: float, ignored: int | None
    ) -> Array:
        """The negative log-likelihood of each target under softmax(logits), times the weight of its class.

        With smoothing s, a fraction s of each target is spread evenly over all classes (Szegedy et al. 2016). The loss
        and the gradient of a row whose target is `ignored` are zero, for any logits.
        """
        return self.cross_entropy_forward(logits, targets, weight, smoothing, ignored)[0]

    def cross_entropy_forward(
        self, logits: Array, targets: Array, weight: Array | None, smoothing: float, ignored: int | None
    ) -> tuple[Array, Any]:
        """See `cross_entropy`."""
        rows, classes = self.shape(logits)
        counted = None if ignored is None else self.int_not_equal(targets, ignored)
        if counted is not None:
            targets = self.where(counted, targets, 0)
            logits = self.where(self.reshape(counted, (rows, 1)), logits, 0.0)
        log_p = self.log_softmax(logits, 1)
        column = self.reshape(targets, (rows, 1))
        picked = self.reshape(self.take_along_axis(log_p, column, 1), (rows,))
        factor = None if weight is None else self.take(weight, targets, 0)
        likelihood = picked if factor is None else self._weighed(picked, factor)
        if smoothing:
            weighed = log_p if weight is None else self._weighed(log_p, weight)
            spread = self.float_mul(self.float_sum(weighed, (1,), False), smoothing / classes)
            likelihood = self.float_add(self.float_mul(likelihood, 1.0 - smoothing), spread)
        loss = self.float_neg(likelihood)
        return loss if counted is None else self.where(counted, loss, 0.0), (log_p, column, factor, weight, counted)

    def cross_entropy_backward(
        self, saved: Any, g: Array, needed: Needed, smoothing: float, ignored: int | None
    ) -> Gradients:
        """For the coefficients a_c of the loss -sum(a_c log p_c): d logits = (sum(a) softmax(logits) - a) g."""
        log_p, column, factor, weight, counted = saved
        rows, classes = self.shape(log_p)
        if counted is not None:
            g = self.where(counted, g, 0.0)
        g = self.reshape(g, (rows, 1))
        hit = self.bool_into_float(self.int_equal(column, self._class_numbers(column, classes)))
        p = self.float_exp(log_p)
        hits = g if factor is None else self.float_mul(g, self.reshape(factor, (rows, 1)))
        if not smoothing:
            return self.float_mul(self.float_sub(p, hit), hits), None, None
        hits = self.float_mul(hits, 1.0 - smoothing)
        evenly = self.float_mul(g, smoothing / classes)
        total = self.float_mul(evenly, float(classes) if weight is None else self.float_sum(weight, (0,), False))
        share = evenly if weight is None else self.float_mul(evenly, weight)
        dlogits = self.float_sub(self.float_mul(p, self.float_add(hits, total)), self.float_mul(hit, hits))
        return self.float_sub(dlogits, share), None, None

    def _weighed(self, x: Array, weight: Array) -> Array:
        """x times constants; where a constant is zero, the result is zero, even for infinite x."""
        return self.where(self.float_equal(weight, 0.0), 0.0, self.float_mul(x, weight))

    def _class_numbers(self, like: Array, classes: int) -> Array:
        """0, 1, ..., classes - 1 as a row, on the device of `like`."""
        return self.reshape(self.int_arange(0, classes, 1, self.device_of(like)), (1, classes))

    # --- connectionist temporal classification (Graves et al. 2006)

    def ctc_loss(self, log_p: Array, targets: Array, input_lengths: Array, target_lengths: Array, blank: int) -> Array:
        """-log of the probability of all paths that spell a target: log_p [time, n, classes], targets [n, length].

        A path is read by merging repeats, then dropping blanks. Both lengths are Int [n]; elements beyond them are
        ignored. If no path fits, the loss is infinite and its gradient zero.
        """
        return self.ctc_loss_forward(log_p, targets, input_lengths, target_lengths, blank)[0]

    def ctc_loss_forward(
        self, log_p: Array, targets: Array, input_lengths: Array, target_lengths: Array, blank: int
    ) -> tuple[Array, Any]:
        """By the forward variables: log-probabilities of the beginnings of paths, [time, n, states].

        The states are the target with blanks before, between and after. The log-probability of an impossible path is a
        large negative number: differences of minus infinity would be NaN.
        """
        steps, n, _ = self.shape(log_p)
        length = self.shape(targets)[1]
        states = 2 * length + 1
        device = self.device_of(targets)
        never = self._ctc_never()
        column = self.reshape(target_lengths, (n, 1))
        positions = self._class_numbers(targets, length)
        inside = self.int_less(self.broadcast_to(positions, (n, length)), column)
        padded = self.where(inside, targets, blank)
        blanks = self.int_full((n, length, 1), blank, device)
        labels = self.reshape(self.concat([blanks, self.reshape(padded, (n, length, 1))], 2), (n, 2 * length))
        labels = self.concat([labels, self.int_full((n, 1), blank, device)], 1)
        # A path may leave out the blank between two different labels.
        differs = self.int_not_equal(labels, self._shifted_states(labels, 2, blank))
        leap = self.bool_and(differs, self.int_not_equal(labels, blank))
        skip = self.where(leap, 0.0, never)
        everywhere = self.broadcast_to(self.reshape(labels, (1, n, states)), (steps, n, states))
        emitted = self.float_maximum(self.take_along_axis(log_p, everywhere, 2), never)
        numbers = self._class_numbers(targets, states)
        start = self.where(self.int_less(self.broadcast_to(numbers, (n, states)), 2), 0.0, never)
        times = self.reshape(self._class_numbers(targets, steps), (steps, 1))
        first = self.broadcast_to(self.int_equal(times, 0), (steps, n))
        alphas = self._ctc_scan(emitted, skip, start, first)
        # Paths end in the last label or in the blank after it.
        distance = self.int_sub(self.int_mul(column, 2), self.broadcast_to(numbers, (n, states)))
        ends = self.bool_or(self.int_equal(distance, 0), self.int_equal(distance, 1))
        end = self.where(ends, 0.0, never)
        last = self.int_maximum(self.int_sub(input_lengths, 1), 0)
        ends = self.broadcast_to(self.reshape(last, (1, n, 1)), (1, n, states))
        final = self.reshape(self.take_along_axis(alphas, ends, 0), (n, states))
        likelihood = self.float_logsumexp(self.float_add(final, end), (1,), False)
        impossible = self.float_less(likelihood, never / 2)
        is_nonempty = self.int_less(0, input_lengths)
        loss_of_empty = self.where(self.int_equal(target_lengths, 0), 0.0, math.inf)
        loss = self.where(is_nonempty, self.where(impossible, math.inf, self.float_neg(likelihood)), loss_of_empty)
        used = self.bool_and(
            self.int_less(self.broadcast_to(times, (steps, n)), input_lengths), self.bool_not(impossible)
        )
        return loss, (log_p, everywhere, emitted, alphas, likelihood, skip, end, last, used)

    def ctc_loss_backward(self, saved: Any, g: Array, needed: Needed, blank: int) -> Gradients:
        """d log_p[t, k] = -(the probability that a path that spells the target emits k at time t)."""
        log_p, labels, emitted, alphas, likelihood, skip, end, last, used = saved
        steps, n, states = self.shape(emitted)
        # The backward variables are the forward ones of the reversed problem.
        times = self.reshape(self._class_numbers(last, steps), (steps, 1))
        late = self.int_less_equal(last, self.broadcast_to(times, (steps, n)))
        back = self._shifted_states(self.flip(skip, (1,)), 2, self._ctc_never())
        betas = self._ctc_scan(self.flip(emitted, (0, 2)), back, self.flip(end, (1,)), self.flip(late, (0,)))
        joint = self.float_sub(self.float_add(alphas, self.flip(betas, (0, 2))), emitted)
        used = self.broadcast_to(self.reshape(used, (steps, n, 1)), (steps, n, states))
        posterior = self.float_exp(self.where(used, self.float_sub(joint, self.reshape(likelihood, (1, n, 1))), 0.0))
        share = self.where(used, self.float_mul(posterior, self.reshape(self.float_neg(g), (1, n, 1))), 0.0)
        return self.float_take_along_axis_adjoint(share, labels, 2, self.shape(log_p)), None, None, None

    def _ctc_never(self) -> float:
        """A finite value in place of minus infinity."""
        return -(LARGEST[self.float_element] ** 0.75)

    def _shifted_states(self, x: Array, by: int, value: float) -> Array:
        """x [n, states] moved `by` states up; the first states become `value`."""
        n, states = self.shape(x)
        by = min(by, states)
        return self.pad(self.index(x, (slice(0, n, 1), slice(0, states - by, 1))), ((0, 0), (by, 0)), value)

    def _ctc_scan(self, emitted: Array, skip: Array, start: Array, fresh: Array) -> Array:
        """The recursion over time of the log-probabilities a [time, n, states] of arriving in a state.

        a_t is emitted_t + log of the sum of exp(a_{t-1}) over the state itself, the one before, and, where `skip` is 0,
        the one before that; where `fresh` [time, n] is true, `start` replaces the logarithm.
        """
        steps, n, states = self.shape(emitted)
        never = self._ctc_never()
        alphas: list[Array] = []
        for t in range(steps):
            arrived = start
            if alphas:
                before = self.reshape(alphas[-1], (n, states))
                arrived = self._logaddexp3(
                    before,
                    self._shifted_states(before, 1, never),
                    self.float_add(self._shifted_states(before, 2, never), skip),
                )
                now = self.reshape(self.index(fresh, (t, slice(0, n, 1))), (n, 1))
                arrived = self.where(now, start, arrived)
            emission = self.index(emitted, (t, slice(0, n, 1), slice(0, states, 1)))
            alphas.append(self.reshape(self.float_add(arrived, emission), (1, n, states)))
        return self.concat(alphas, 0)

    def _logaddexp3(self, x: Array, y: Array, z: Array) -> Array:
        """log(exp(x) + exp(y) + exp(z)) of finite values."""
        highest = self.detach(self.float_maximum(self.float_maximum(x, y), z))
        total = self.float_exp(self.float_sub(x, highest))
        total = self.float_add(total, self.float_exp(self.float_sub(y, highest)))
        total = self.float_add(total, self.float_exp(self.float_sub(z, highest)))
        return self.float_add(self.float_log(total), highest)

"""Recurrent layers: one layer in one direction over a whole sequence."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from phlox.backend.contract.nn.recurrence import RecurrenceOps, States
from phlox.backend.contract.types import Array, Gradients, Needed

Activation: TypeAlias = Literal["tanh", "relu"]


class RecurrentOps(RecurrenceOps):
    """Recurrent layers, with a state [batch, width] that every step of a sequence updates.

    x is [time, batch, features] with at least one step, the weight [features, gates * width] and the recurrent weight
    [width, gates * width]. `alive`, [time, batch, 1] or None, is false for padding: there the state stays and the
    result is zero. With `reverse` the steps run from the last to the first.
    """

    # --- lstm: gates i, f, g, o; three results: [time, batch, width], and the last two states

    def lstm(
        self,
        x: Array,
        hidden: Array,
        cell: Array,
        weight: Array,
        recurrent: Array,
        bias: Array | None,
        alive: Array | None,
        reverse: bool,
    ) -> tuple[Array, Array, Array]:
        """c = f c + i g, h = o tanh(c), where i, f, o are sigmoid and g is tanh of x weight + bias + h recurrent.

        Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000.
        """
        return self.lstm_forward(x, hidden, cell, weight, recurrent, bias, alive, reverse)[0]

    def lstm_forward(
        self,
        x: Array,
        hidden: Array,
        cell: Array,
        weight: Array,
        recurrent: Array,
        bias: Array | None,
        alive: Array | None,
        reverse: bool,
    ) -> tuple[tuple[Array, Array, Array], Any]:
        """See `lstm`."""

        def step(z: Array, states: States) -> tuple[States, States]:
            h, c = states
            i, f, g, o = self._parts_of_gates(self.float_add(self.float_matmul(h, recurrent), z), 4)
            i, f, o = self.float_sigmoid(i), self.float_sigmoid(f), self.float_sigmoid(o)
            g = self.float_tanh(g)
            c = self.float_add(self.float_mul(f, c), self.float_mul(i, g))
            t = self.float_tanh(c)
            return (self.float_mul(o, t), c), (i, f, g, o, t)

        y, (h, c), before, saved = self._through_time(step, x, weight, bias, (hidden, cell), alive, reverse)
        return (y, h, c), (x, weight, recurrent, alive, before, saved)

    def lstm_backward(self, saved: Any, gs: tuple[Array | None, ...], needed: Needed, reverse: bool) -> Gradients:
        """For t = tanh(c): dc = dc + dh o (1 - t^2), from which each gate's gradient follows by its slope."""
        x, weight, recurrent, alive, before, steps = saved
        transposed = self.permute_dims(recurrent, (1, 0))

        def back(dstates: States, saved: States) -> tuple[States, States]:
            (dh, dc), (i, f, g, o, t, c) = dstates, saved
            dc = self.float_add(dc, self.float_tanh_backward(self.float_mul(dh, o), t))
            dz = self.concat(
                (
                    self.float_sigmoid_backward(self.float_mul(dc, g), i),
                    self.float_sigmoid_backward(self.float_mul(dc, c), f),
                    self.float_tanh_backward(self.float_mul(dc, i), g),
                    self.float_sigmoid_backward(self.float_mul(dh, t), o),
                ),
                1,
            )
            return (dz,), (self.float_matmul(dz, transposed), self.float_mul(dc, f))

        (dz,), (dh, dc) = self._back_through_time(back, gs, (*steps, before[1]), before[0], alive, reverse)
        dx, dw, db = self.linear_backward((x, weight), dz, (needed[0], needed[3], needed[5]))
        du = self._product_of_steps(before[0], dz) if needed[4] else None
        return dx, dh, dc, dw, du, db, None

    # --- gru: gates r, z, n; two results: [time, batch, width], and the last state

    def gru(
        self,
        x: Array,
        hidden: Array,
        weight: Array,
        recurrent: Array,
        bias: Array | None,
        recurrent_bias: Array | None,
        alive: Array | None,
        reverse: bool,
    ) -> tuple[Array, Array]:
        """h = (1 - z) n + z h, where n = tanh(x weight + bias + r (h recurrent + recurrent_bias)).

        r and z are sigmoids of x weight + bias + h recurrent (Cho et al. 2014), each with its own columns of the
        weights; r is applied after the product, as in cuDNN and PyTorch. The recurrent bias, [width], is only for n:
        for r and z it would be the same as the bias.
        """
        return self.gru_forward(x, hidden, weight, recurrent, bias, recurrent_bias, alive, reverse)[0]

    def gru_forward(
        self,
        x: Array,
        hidden: Array,
        weight: Array,
        recurrent: Array,
        bias: Array | None,
        recurrent_bias: Array | None,
        alive: Array | None,
        reverse: bool,
    ) -> tuple[tuple[Array, Array], Any]:
        """See `gru`."""

        def step(z: Array, states: States) -> tuple[States, States]:
            (h,) = states
            x_r, x_u, x_n = self._parts_of_gates(z, 3)
            h_r, h_u, h_n = self._parts_of_gates(self.float_matmul(h, recurrent), 3)
            r, u = self.float_sigmoid(self.float_add(x_r, h_r)), self.float_sigmoid(self.float_add(x_u, h_u))
            m = h_n if recurrent_bias is None else self.float_add(h_n, recurrent_bias)
            n = self.float_tanh(self.float_add(x_n, self.float_mul(r, m)))
            h = self.float_add(n, self.float_mul(u, self.float_sub(h, n)))
            return (h,), (r, u, n, m)

        y, (h,), before, saved = self._through_time(step, x, weight, bias, (hidden,), alive, reverse)
        return (y, h), (x, weight, recurrent, alive, before, saved)

    def gru_backward(self, saved: Any, gs: tuple[Array | None, ...], needed: Needed, reverse: bool) -> Gradients:
        """The gradient of n reaches the input part unchanged, and the state part multiplied by r."""
        x, weight, recurrent, alive, before, steps = saved
        transposed = self.permute_dims(recurrent, (1, 0))

        def back(dstates: States, saved: States) -> tuple[States, States]:
            (dh,), (r, u, n, m, h) = dstates, saved
            dn = self.float_tanh_backward(self.float_mul(dh, self.float_sub(1.0, u)), n)
            du = self.float_sigmoid_backward(self.float_mul(dh, self.float_sub(h, n)), u)
            dr = self.float_sigmoid_backward(self.float_mul(dn, m), r)
            dm = self.float_mul(dn, r)
            towards_state = self.float_matmul(self.concat((dr, du, dm), 1), transposed)
            return (dr, du, dn, dm), (self.float_add(towards_state, self.float_mul(dh, u)),)

        (dr, du, dn, dm), (dh,) = self._back_through_time(back, gs, (*steps, before[0]), before[0], alive, reverse)
        dx, dw, db = self.linear_backward((x, weight), self.concat((dr, du, dn), 2), (needed[0], needed[2], needed[4]))
        d_recurrent = self._product_of_steps(before[0], self.concat((dr, du, dm), 2)) if needed[3] else None
        d_bias = self.float_sum(dm, (0, 1), False) if needed[5] else None
        return dx, dh, dw, d_recurrent, db, d_bias, None

    # --- rnn: one gate; two results: [time, batch, width], and the last state

    def rnn(
        self,
        x: Array,
        hidden: Array,
        weight: Array,
        recurrent: Array,
        bias: Array | None,
        alive: Array | None,
        reverse: bool,
        activation: Activation,
    ) -> tuple[Array, Array]:
        """h = activation(x weight + bias + h recurrent) (Elman 1990)."""
        return self.rnn_forward(x, hidden, weight, recurrent, bias, alive, reverse, activation)[0]

    def rnn_forward(
        self,
        x: Array,
        hidden: Array,
        weight: Array,
        recurrent: Array,
        bias: Array | None,
        alive: Array | None,
        reverse: bool,
        activation: Activation,
    ) -> tuple[tuple[Array, Array], Any]:
        """See `rnn`."""
        activate = self.float_relu if activation == "relu" else self.float_tanh

        def step(z: Array, states: States) -> tuple[States, States]:
            h = activate(self.float_add(self.float_matmul(states[0], recurrent), z))
            return (h,), (h,)

        y, (h,), before, saved = self._through_time(step, x, weight, bias, (hidden,), alive, reverse)
        return (y, h), (x, weight, recurrent, alive, before, saved)

    def rnn_backward(
        self, saved: Any, gs: tuple[Array | None, ...], needed: Needed, reverse: bool, activation: Activation
    ) -> Gradients:
        """The slope of either activation is known from its result."""
        x, weight, recurrent, alive, before, steps = saved
        slope = self.float_relu_backward if activation == "relu" else self.float_tanh_backward
        transposed = self.permute_dims(recurrent, (1, 0))

        def back(dstates: States, saved: States) -> tuple[States, States]:
            dz = slope(dstates[0], saved[0])
            return (dz,), (self.float_matmul(dz, transposed),)

        (dz,), (dh,) = self._back_through_time(back, gs, steps, before[0], alive, reverse)
        dx, dw, db = self.linear_backward((x, weight), dz, (needed[0], needed[2], needed[4]))
        du = self._product_of_steps(before[0], dz) if needed[3] else None
        return dx, dh, dw, du, db, None

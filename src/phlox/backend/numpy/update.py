"""Updates of optimizers on NumPy: one pass over memory, block by block."""

from __future__ import annotations

import numpy as np

from phlox.backend.contract import Backend
from phlox.backend.contract.types import Array
from phlox.backend.contract.update import AdamNumbers
from phlox.backend.numpy.blocks import in_blocks, scratch


class Update(Backend):
    """See `phlox.backend.contract.update`."""

    def adam_update(self, x: Array, g: Array, m: Array, v: Array, numbers: AdamNumbers) -> tuple[Array, Array, Array]:
        lr, beta_1, beta_2, epsilon, decay, decoupled, correction_1, correction_2 = numbers
        old = [np.ascontiguousarray(array).reshape(-1) for array in (x, g, m, v)]
        new = [np.empty_like(array) for array in (old[0], old[2], old[3])]

        def work(start: int, stop: int) -> None:
            here = slice(start, stop)
            x_old, g_old, m_old, v_old = (array[here] for array in old)
            x_new, m_new, v_new = (array[here] for array in new)
            part = scratch(x_old)
            if decay and not decoupled:
                g_sum = scratch(x_old, 1)
                np.multiply(x_old, decay, out=g_sum)
                g_sum += g_old
                g_old = g_sum
            np.multiply(m_old, beta_1, out=m_new)
            np.multiply(g_old, 1.0 - beta_1, out=part)
            m_new += part
            np.multiply(v_old, beta_2, out=v_new)
            np.multiply(g_old, g_old, out=part)
            part *= 1.0 - beta_2
            v_new += part
            np.multiply(v_new, 1.0 / correction_2, out=part)
            np.sqrt(part, out=part)
            part += epsilon
            np.divide(m_new, part, out=part)
            part *= lr / correction_1
            if decay and decoupled:
                np.multiply(x_old, 1.0 - lr * decay, out=x_new)
                x_new -= part
            else:
                np.subtract(x_old, part, out=x_new)

        in_blocks(work, x.size, 1)
        shape: tuple[int, ...] = x.shape
        return new[0].reshape(shape), new[1].reshape(shape), new[2].reshape(shape)

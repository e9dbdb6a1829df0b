"""Writes `src/phlox/backend/threefry/half_normal.py`: the half-normal quantile as a table of integers.

Run it (with mpmath installed, some seconds) only to change the table, which changes every normal number ever drawn:

    python tools/make_quantile_table.py
"""

from __future__ import annotations

import base64
import textwrap
import zlib
from pathlib import Path

import mpmath
import numpy as np

OCTAVES, STEPS, SCALE = 24, 512, 2**26

TEMPLATE = '''"""The half-normal quantile as integers: how every engine turns uniform bits into the same normal numbers.

Written by `tools/make_quantile_table.py`; do not edit. For m in 1..2**24, the magnitude of a standard normal number is
Q(m) = -ndtri((m - 0.5) / 2**25). `NODES[k]` is round(2**26 * Q(m)) at m = 2**(k // 512) * (1 + k % 512 / 512), for k
in 0..12288, and between two nodes every engine interpolates linearly, in integers of 32 bits. With `bits` the float32
pattern of m (exact: m has at most 24 bits), exponent and leading mantissa bits name the node, 14 bits the fraction:

    k = (bits >> 14) - ORIGIN
    r = NODES[k] - (STEPS[k] * (bits & 0x3FFF) >> 14)       # STEPS[k] = NODES[k] - NODES[k + 1], at most 103063
    Q = r * 2**-26                                          # float32(r) rounds to nearest even, the product is exact

No product reaches 2**31, r falls strictly as m grows, r > 0, and |r * 2**-26 - Q(m)| < 2.2e-7 for every m
(3.4e-7 after the rounding to float32). The tail is where m is small, and there the nodes are densest: Q(1) = 5.54.
Floating-point formulas would not do: libm, fused multiply-add and vector mathematics differ between engines.
"""

from __future__ import annotations

import base64
import zlib
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["NODES", "ORIGIN", "STEPS"]

ORIGIN: Final = 127 << 9
"""What the float32 pattern of 1.0 gives, shifted right by 14."""

# The second differences of the nodes, as little-endian int32: two running sums give the nodes back, exactly.
_PACKED = """
{packed}
"""


def _unpack() -> npt.NDArray[np.int32]:
    differences = np.frombuffer(zlib.decompress(base64.b64decode(_PACKED)), "<i4")
    return np.cumsum(np.cumsum(differences, dtype=np.int64)).astype(np.int32)


NODES: Final = _unpack()
"""round(2**26 * Q) at the 12289 nodes, int32, falling."""

STEPS: Final = np.append(NODES[:-1] - NODES[1:], np.int32(0))
"""By how much the quantile falls from each node to the next, int32."""

NODES.flags.writeable = STEPS.flags.writeable = False
'''


def node(k: int) -> int:
    """round(2**26 * Q) at node k, from 40 correct digits."""
    m = (1 + mpmath.mpf(k % STEPS) / STEPS) * 2 ** (k // STEPS)
    quantile = mpmath.sqrt(2) * mpmath.erfinv(1 - (m - mpmath.mpf("0.5")) / 2**24)
    return int(mpmath.nint(quantile * SCALE))


def main() -> None:
    mpmath.mp.dps = 40
    nodes = np.array([node(k) for k in range(OCTAVES * STEPS + 1)], np.int64)
    packed = zlib.compress(np.diff(nodes, n=2, prepend=(0, 0)).astype("<i4").tobytes(), 9)
    text = textwrap.fill(base64.b64encode(packed).decode(), 120)
    path = Path(__file__).parent.parent / "src/phlox/backend/threefry/half_normal.py"
    path.write_text(TEMPLATE.format(packed=text))


if __name__ == "__main__":
    main()

"""What eight devices send and compute: as much for each as with two.

Serves: benchmarks/sharding.py
"""

from __future__ import annotations

import pytest

from tests.simulated_devices import check_on_devices

PROGRAM = """
import faulthandler
faulthandler.dump_traceback_later(600, exit=True)
from benchmarks.sharding import lowered, scaling

for row in scaling():
    assert row.ratio <= row.target, row
report, model = lowered({"data": 2, "model": 4}, "tensor")
assert {*report.collectives} <= {"all-reduce", "all-gather"} and report.devices == 8
"""


@pytest.mark.full
def test_the_counts_do_not_grow_with_the_devices() -> None:
    check_on_devices(8, PROGRAM)

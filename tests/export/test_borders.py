"""A file is run at the borders of its sizes, and with special values: what it does otherwise than the model is said.

Serves: src/phlox/export/borders.py
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox.backend import NumPy
from phlox.errors import ExportError
from phlox.export.arguments import read
from phlox.export.borders import BorderReport, at_borders, sizes_at_borders, work_of
from phlox.export.comparison import limit_of
from phlox.module.calls import FunctionLayer

MODEL: Any = FunctionLayer(lambda x: x * 2.0)
INPUTS = read(MODEL, [px.TensorSpec(("n", 4))], None)
PLACE = NumPy().device()
Run = Callable[[Any], Any]


def found_with(run: Run, **options: Any) -> BorderReport:
    sizes = sizes_at_borders(["n"], {"n": 7}, [])
    models = MODEL, PLACE, MODEL, PLACE
    return at_borders("export", models, INPUTS, ["y"], sizes, {"n": 7}, run, limit_of("f32", None), 24, **options)


def as_model(values: Sequence[Any]) -> list[Any]:
    return [values[0] * 2]


def with_wrong(of: Run, at: int) -> Run:
    return lambda values: [of(values)[0] + (len(values[0]) == at)]


def test_a_file_that_is_right_is_right_everywhere() -> None:
    found = found_with(as_model)
    assert [one["n"] for one in found.sizes] == [0, 1, 2, 6, 8, 500, 3, 4, 5]
    assert found.constraints() == [] and found.remarks == []


@pytest.mark.parametrize("size", [1, 2, 6, 8])
def test_a_file_that_is_wrong_at_a_border_is_refused(size: int) -> None:
    with pytest.raises(ExportError, match=rf"output y at n={size}: the file differs.*sizes=\.\.\. only those"):
        found_with(with_wrong(as_model, size))


def test_what_an_exporter_rules_out_is_said() -> None:
    found = found_with(lambda values: [np.ones((1, 4))] if not len(values[0]) else as_model(values), assumes=1)
    assert found.remarks == ["it is wrong where n = 0, which PyTorch's exporter rules out"]


@pytest.mark.parametrize(("refused", "said"), [((0, 1, 2), "n >= 3"), ((1,), "n is not 1"), ((2, 8), "n is not 2, 8")])
def test_sizes_that_the_file_refuses_are_conditions(refused: tuple[int, ...], said: str) -> None:
    def run(values: Any) -> Any:
        if len(values[0]) in refused:
            raise RuntimeError("no")
        return as_model(values)

    assert found_with(run).constraints() == [said]


@pytest.mark.parametrize(("run", "said"), [
    (lambda x: np.nan_to_num(x, nan=0.0, posinf=np.inf, neginf=-np.inf), "with NaN in its inputs y differs.*0 and nan"),
    (lambda x: np.clip(x, -3e38, 3e38), "with zeros and infinities in its inputs y differs.* and inf"),
])  # fmt: skip
def test_special_values_that_become_others_are_remarked_upon(run: Run, said: str) -> None:
    (remark,) = found_with(lambda values: [run(values[0] * 2.0)]).remarks
    assert re.match(said, remark)


def test_work_is_that_of_the_model_and_not_of_its_inputs() -> None:
    wide = px.nn.Sequential([px.nn.Linear(4, 512), px.nn.Linear(512, 512)]).init(0)
    assert work_of(wide, INPUTS, {"n": 7}, PLACE) > 2 * 7 * 512 * 512


def test_every_size_is_taken_by_a_program_of_pytorch(tmp_path: Path) -> None:
    """Its own stride rules would refuse sizes at which a slice is everything, or one element."""
    pytest.importorskip("torch")
    model: Any = FunctionLayer(lambda x: px.concat([x[:, :4], x[:, ::2], x[:, -3:], x.at[:, 1:3].add(1.0)], 1))
    report = px.export.torch(model, [px.TensorSpec(("n", "t", 4))], tmp_path / "m.pt2")
    assert report.constraints == () and report.remarks == ()
    assert {one["t"] for one in report.tried} >= {0, 1, 2, 3, 4, 5, 500}
    assert "  the same at n = 0, 1, 2, 3, 4, 5, 6, 8, 500" in str(report)

from __future__ import annotations

import pytest

from phlox.distributed.processes import gpus


@pytest.mark.parametrize(
    "before, size, shares",
    [
        ("0,1,2,3", 2, ["0,1", "2,3"]),
        ("GPU-a, GPU-b", 2, ["GPU-a", "GPU-b"]),
        ("0,1,2", 2, ["0", "1"]),
        ("0", 2, ["0", "0"]),  # shared out already, or too few: as it was
        ("", 2, ["", ""]),
        ("0,1", 1, ["0,1"]),
    ],
)
def test_shares_of_visible_gpus(before: str, size: int, shares: list[str]) -> None:
    for rank, share in enumerate(shares):
        environment = {gpus.VISIBLE: before}
        gpus.narrow_gpus(rank, size, environment)
        assert environment == {gpus.VISIBLE: share}


def test_gpus_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "_count", lambda: 4)
    environment: dict[str, str] = {}
    gpus.narrow_gpus(1, 4, environment)
    assert environment == {gpus.VISIBLE: "1"}
    monkeypatch.setattr(gpus, "_count", lambda: 0)
    environment = {}
    gpus.narrow_gpus(1, 4, environment)
    assert environment == {}

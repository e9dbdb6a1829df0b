"""`phlox verify`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from phlox.cli import main
from tests.cli.support import run


@pytest.mark.parametrize("device", ["numpy", "jax", "torch"])
def test_verify(device: str, small_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(small_run), "--device", device]) == 0
    out, err = capsys.readouterr()
    assert err == "" and device in out and "of 359 predictions agree" in out


def test_verify_in_a_new_process_that_has_numpy_alone(small_run: Path) -> None:
    done = run("verify", small_run, before="sys.modules['jax'] = sys.modules['torch'] = sys.modules['rich'] = None")
    assert done.returncode == 0 and done.stderr == "" and "no initializer ran" in done.stdout


def test_verify_notices_another_model(own_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with np.load(own_run / "predictions.npz") as arrays:
        changed = {**arrays, "probabilities": arrays["probabilities"].copy()}
    changed["probabilities"][7] = np.roll(changed["probabilities"][7], 1)
    np.savez(own_run / "predictions.npz", **changed)
    assert main(["verify", str(own_run)]) == 1
    _, err = capsys.readouterr()
    assert err.count("\n") == 1 and "not from the same run" in err

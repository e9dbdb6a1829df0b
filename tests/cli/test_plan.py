"""`phlox plan`: what it prints for presets, files and sizes, and what it says of wrong input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from phlox.cli import main
from phlox.cli.command import MISUSED
from phlox.cli.plan import PRESETS
from phlox.models import GptConfig, LlamaConfig

SMALL = ["--n-layers", "2", "--d-model", "64", "--n-heads", "4", "--vocabulary", "256", "--context", "32"]


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["plan", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_sizes_by_options_and_by_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = GptConfig(vocabulary=256, context=32, n_layers=2, d_model=64, n_heads=4)
    config.save(tmp_path / "gpt.json")
    by_file = planned(capsys, "--config", str(tmp_path / "gpt.json"), "--mesh", "data=4", "--batch", "8")
    assert by_file == planned(capsys, *SMALL, "--mesh", "data=4", "--batch", "8")
    assert by_file["count"] == config.init().summary().parameters
    assert (
        planned(capsys, "--config", str(tmp_path / "gpt.json"), "--n-layers", "4", "--mesh", "data=4")["count"]
        > (by_file["count"])
    )


@pytest.mark.parametrize(("preset", "count"), [("1B", 1.236e9), ("7B", 6.738e9), ("8B", 8.030e9), ("70B", 70.55e9)])
def test_the_presets_of_llama_are_the_published_ones(
    preset: str, count: float, capsys: pytest.CaptureFixture[str]
) -> None:
    found = planned(capsys, "--model", "llama", "--preset", preset, "--mesh", "data=8,model=8")
    assert found["count"] == pytest.approx(count, rel=1e-3)
    assert found["layout"] == "tensor-parallel+fsdp" and found["batch"] == 8
    assert set(PRESETS["llama", preset]) <= set(LlamaConfig().to_dict())


def test_options_of_the_training(capsys: pytest.CaptureFixture[str]) -> None:
    base = planned(capsys, *SMALL, "--mesh", "data=4")
    single = planned(capsys, *SMALL, "--mesh", "data=4", "--precision", "f32")
    assert single["parameters"] == 2 * base["parameters"]
    assert planned(capsys, *SMALL, "--mesh", "data=4", "--optimizer", "lion")["optimizer"] < base["optimizer"]
    kept = planned(capsys, *SMALL, "--mesh", "data=4", "--no-checkpoint")
    assert kept["flops"] < base["flops"] and kept["memory"] > base["memory"]
    whole = planned(capsys, *SMALL, "--mesh", "data=4", "--layout", "data")
    assert whole["parameters"] > base["parameters"] and whole["gathered"] == 0
    alone = planned(capsys, *SMALL, "--mesh", "model=4")
    assert alone["mesh"] == {"data": 1, "model": 4} and alone["batch"] == 1


def test_rates(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--flops", "1e12", "--link", "1e9", "--network", "1e8"]
    found = planned(capsys, *SMALL, "--mesh", "data=4", *given)
    assert found["compute_seconds"] == pytest.approx(found["flops"] / 1e12)
    assert found["exchange_seconds"] == pytest.approx(found["sent"] / 1e9)


def test_bert_is_trained_to_predict_masked_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--model", "bert", *SMALL, "--mesh", "data=2"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("bert, ") and "all-gather" in out and "fits 80.0 GB of h100" in out


def test_what_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--preset", "70B", "--mesh", "data=1,model=8", "--device", "a100"]) == 0
    out = capsys.readouterr().out
    assert "does not fit 80.0 GB of a100" in out
    *_, advice, options = out.splitlines()
    assert advice.startswith("it fits on 32 devices, ")
    assert main(["plan", "--preset", "70B", "--device", "a100", *options.split()]) == 0
    assert "  fits 80.0 GB of a100" in capsys.readouterr().out
    assert main(["plan", "--model", "llama", "--preset", "70B", "--mesh", "data=8", "--device", "tpu-v5e"]) == 0
    assert "it fits on no 4,096 of these devices; give fewer rows (--batch)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--mesh", "data=8,model=3", "--preset", "1B"], "n_heads=16, which do not divide over 3 devices"),
        (["--mesh", "data=3", "--batch", "8"], "8 rows do not divide over 3 devices"),
        (["--mesh", "data=3", "--batch", "0"], "0 rows do not divide"),
        (["--mesh", "data=2", "--d-model", "0"], "d_model must be at least one"),
        (["--mesh", "data=2", "--model", "bert", "--n-kv-heads", "2"], "BertConfig has no n_kv_heads"),
        (["--mesh", "data=2", "--model", "bert", "--preset", "1B"], "there is no preset 1B of bert; give its sizes"),
        (["--mesh", "data=2", "--preset", "8B"], "there is no preset 8B of gpt; give --preset 1B, 7B, 70B, its sizes"),
        (["--mesh", "data=8192", "--device", "tpu-v4", "--batch", "8192"], "give it as --network RATE"),
        (
            ["--mesh", "data=2", "--layout", "tensor-parallel"],
            "cuts over an axis `model`, which the mesh does not have",
        ),
        (["--mesh", "data=2", "--preset", "1B", "--config", "x.json"], "give --config or --preset, not both"),
        (["--mesh", "data=2", "--config", "missing.json"], "missing.json"),
    ],
)
def test_wrong_input(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *arguments]) == MISUSED
    error = capsys.readouterr().err
    assert sentence in error and error.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [["--mesh", "data=x"], ["--mesh", "data=2,data=4"], ["--mesh", "data=2", "--flops", "-1"], []]
)
def test_options_that_cannot_be_read(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["plan", *arguments])
    assert "phlox plan: " in capsys.readouterr().err

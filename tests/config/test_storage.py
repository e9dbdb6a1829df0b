"""Configs in files and as text: what is written, and what is said of what cannot be read."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from phlox.config import Config
from phlox.errors import ConfigError


class HeadConfig(Config):
    d_input: int
    bias: bool = True


class MlpConfig(Config):
    name: str
    dropout: float = 0.1
    head: HeadConfig | None = None
    sizes: tuple[int, ...] = ()


class Chain(Config):
    next: Chain | None = None


def refused(*parts: str) -> pytest.RaisesExc[ConfigError]:
    return pytest.RaisesExc(ConfigError, check=lambda error: all(part in str(error) for part in parts))


def test_the_text_is_indented_in_the_order_of_declaration(tmp_path: Path) -> None:
    config = MlpConfig("é", dropout=float("inf"), head=HeadConfig(3), sizes=(1,))
    config.save(tmp_path / "config.json")
    assert (tmp_path / "config.json").read_text(encoding="utf-8") == (
        '{\n  "name": "é",\n  "dropout": "inf",\n  "head": {\n    "d_input": 3,\n    "bias": true\n  },\n'
        '  "sizes": [\n    1\n  ]\n}\n'
    )
    assert MlpConfig.load(tmp_path / "config.json") == config
    assert MlpConfig.load(str(tmp_path / "config.json")) == config


def test_saving_replaces_the_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    for name in ("a", "b"):
        MlpConfig(name).save(str(path))
        assert MlpConfig.load(path) == MlpConfig(name)
    assert [file.name for file in tmp_path.iterdir()] == ["config.json"]


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.json"
    MlpConfig("old").save(path)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with refused(f"{path} cannot be written: No space left on device"):
        MlpConfig("new").save(path)
    assert MlpConfig.load(path) == MlpConfig("old") and [file.name for file in tmp_path.iterdir()] == ["config.json"]


def test_errors_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"name": "a", "head": {"d_inputt": 3}, "dropout": "high"}))
    with pytest.raises(ConfigError) as caught:
        MlpConfig.load(path)
    assert str(caught.value) == (
        f"MlpConfig from {path} has 2 errors:\n"
        "  dropout: expected float, got str 'high'\n"
        "  head.d_inputt: unknown key; did you mean `d_input`?"
    )


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with refused(f"{tmp_path / 'none.json'} does not exist"):
        MlpConfig.load(tmp_path / "none.json")
    with refused(f"{tmp_path} cannot be read: "):
        MlpConfig.load(tmp_path)
    (tmp_path / "latin.json").write_bytes(b'{"name": "\xe9"}')
    with refused(f"{tmp_path / 'latin.json'} is not UTF-8 text", "byte 10"):
        MlpConfig.load(tmp_path / "latin.json")
    with refused(f"{tmp_path / 'no' / 'config.json'} cannot be written: No such file"):
        MlpConfig("a").save(tmp_path / "no" / "config.json")


def test_a_byte_order_mark_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b'\xef\xbb\xbf{"name": "a"}')
    assert MlpConfig.load(tmp_path / "config.json") == MlpConfig("a")


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "not valid JSON at line 1, column 1: Expecting value"),
        ('{\n  "name": "a",\n}', "not valid JSON at line "),
        ('{"name": "a"} x', "not valid JSON at line 1, column 15: Extra data"),
        ('{"name": "a", "name": "b"}', "not valid JSON: the key `name` is given twice"),
        ('{"name": "a", "dropout": NaN}', 'not valid JSON: NaN is not JSON; write "nan"'),
        ('{"name": "a", "dropout": -Infinity}', 'write "-inf"'),
        ('{"name": "a", "dropout": 1e999}', "1e999 is beyond the range of a float"),
        ('{"name": "a", "dropout": ' + "9" * 5000 + "}", "not valid JSON: "),
        ("[" * 100_000, "nested too deeply"),
        ('{"name": "\\ud800"}', "name: expected str, got str '\\ud800', which is not valid Unicode"),
        ("[1]", "MlpConfig: expected an object (MlpConfig), got list [1]"),
        ("null", "MlpConfig: expected an object (MlpConfig), got None"),
    ],
)
def test_text_that_is_no_config(text: str, message: str, tmp_path: Path) -> None:
    with refused("MlpConfig", message):
        MlpConfig.from_json(text)
    (tmp_path / "config.json").write_text(text)
    with refused(str(tmp_path / "config.json"), message.removeprefix("MlpConfig")):
        MlpConfig.load(tmp_path / "config.json")


def test_deep_nesting_is_an_error_and_not_a_crash() -> None:
    data: dict[str, object] = {}
    for _ in range(5000):
        data = {"next": data}
    with refused("Chain is nested too deeply"):
        Chain.from_dict(data)

"""XLA's programs on disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("jax")

from phlox.backend.jax import program_cache
from phlox.host.cache_folder import VARIABLE

SOURCE = Path(__file__).parents[3] / "src"
SCRIPT = """
import json, logging
import jax
from phlox.backend import Jax
import phlox as px
config = jax.config
config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
hits = []
jax.monitoring.register_event_listener(lambda name, **_: hits.append(name))
run = px.compile(lambda x: (x.sin() * 3.0).exp())
value = run(px.ones((5,), device=Jax()))
print(json.dumps({"dir": config.jax_compilation_cache_dir, "hits": sum("cache_hits" in name for name in hits),
    "value": value.tolist()}))
"""


def ran(**variables: str) -> dict[str, Any]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    environment |= {"PYTHONPATH": str(SOURCE), **variables}
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_second_process_loads_the_program(tmp_path: Path) -> None:
    first, second = (ran(**{VARIABLE: str(tmp_path / "cache")}) for _ in range(2))
    folder = Path(first["dir"])
    assert folder.parent == tmp_path / "cache"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert first["hits"] == 0
    assert second["hits"] > 0
    assert second["value"] == first["value"]


class Config:
    """JAX's settings."""

    def __init__(self, folder: str | None = None, on: bool = True) -> None:
        self.jax_compilation_cache_dir, self.jax_enable_compilation_cache = folder, on
        self.jax_persistent_cache_min_compile_time_secs = 1.0

    def update(self, name: str, value: Any) -> None:
        assert hasattr(self, name)
        setattr(self, name, value)


def kept_in(config: Config, monkeypatch: pytest.MonkeyPatch) -> str | None:
    monkeypatch.setattr(program_cache, "jax", SimpleNamespace(config=config))
    program_cache.keep_programs()
    return config.jax_compilation_cache_dir


def test_the_settings_of_the_user_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    assert kept_in(Config("own"), monkeypatch) == "own"
    assert kept_in(Config(on=False), monkeypatch) is None
    assert not (tmp_path / "cache").exists()
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "1.0")
    config = Config()
    assert Path(str(kept_in(config, monkeypatch))).parent == tmp_path / "cache"
    assert config.jax_persistent_cache_min_compile_time_secs == 1.0
    monkeypatch.setenv(VARIABLE, "off")
    assert kept_in(Config(), monkeypatch) is None


def test_a_folder_of_others_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o777)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert kept_in(Config(), monkeypatch) is None


def test_the_folder_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    folder = Path(str(kept_in(Config(), monkeypatch)))
    for number in range(4):
        (folder / f"{number}-cache").write_bytes(bytes(1000))
        os.utime(folder / f"{number}-cache", (number, number))
    monkeypatch.setattr(program_cache, "LIMIT", 2500)
    kept_in(Config(), monkeypatch)
    assert sorted(path.name for path in folder.iterdir()) == ["2-cache", "3-cache"]

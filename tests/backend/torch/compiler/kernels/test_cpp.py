"""Kernels of our own on PyTorch: who cannot have them does without, and is told why if that is unexpected."""

from __future__ import annotations

import platform

import pytest
from torch._inductor import codecache

from phlox.backend.torch.compiler.kernels import cpp

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own, as its compiler loads
NAMES = ["attention", "bernoulli", "gemm", "lstm", "winograd"]


@pytest.mark.parametrize("name", NAMES)
def test_who_cannot_have_a_kernel_is_told_why(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError("no space left on device\nand more")

    monkeypatch.setattr(codecache.CppCodeCache, "load", broken)
    with pytest.warns(RuntimeWarning, match=f"there is no {name} of our own.*: no space left on device$"):
        assert cpp.load(name, {}) is None


@pytest.mark.parametrize("name", NAMES)
def test_there_is_none_for_other_processors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = "#undef __AVX512F__\n#undef __AVX2__\n"
    text = {file: cpp.source(file) for file in ("vectors.h", f"{name}.cpp")}
    monkeypatch.setattr(cpp, "source", lambda file: bare * (file == "vectors.h") + text[file])
    assert cpp.load(name, {}) is None


def test_nothing_is_compiled_for_other_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(cpp, "source", lambda file: pytest.fail(f"{file} was read"))
    assert cpp.load("lstm", {}) is None

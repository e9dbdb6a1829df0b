"""What the tests of backends share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest


@pytest.fixture
def kernels_of_our_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """PyTorch's programs become code, with kernels of ours on any number of threads; skips where there are none."""
    import torch

    from phlox.backend.torch.compiler.codegen import VARIABLE
    from phlox.backend.torch.compiler.kernels import cpp

    monkeypatch.setenv(VARIABLE, "inductor")
    if cpp.load("bernoulli", {}) is None:
        pytest.skip("the kernels are for other processors than this one")
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def calls_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Of a module that has a kernel: which functions of it are called from now on, as they are."""

    def watch(module: Any, name: str = "_kernel") -> list[str]:
        kernel, calls = getattr(module, name)(), list[str]()

        class Watched:
            lanes = kernel.lanes

            def __getattr__(self, name: str) -> Any:
                calls.append(name)
                return getattr(kernel, name)

        monkeypatch.setattr(module, name, lambda: Watched())
        return calls

    return watch

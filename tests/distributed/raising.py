"""As `pytest.raises`, for processes that pytest does not run."""

from __future__ import annotations


class raised:
    """A scope that has to raise an error of a class, which says certain words."""

    def __init__(self, kind: type[Exception], *words: str) -> None:
        self.kind, self.words = kind, words

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        assert error is not None and isinstance(error, self.kind), f"expected {self.kind.__name__}, got {error!r}"
        for word in self.words:
            assert word in str(error), f"{word!r} is not in: {error}"
        return True

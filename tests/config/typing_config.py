# pyright: strict, reportUnnecessaryTypeIgnoreComment=true
"""What a type checker must accept and must refuse; `test_typing.py` runs one on this file. Nothing here is called."""

from __future__ import annotations

from dataclasses import KW_ONLY, field
from typing import Any, assert_type

from phlox.config import BaseConfig, Config, config_of


class Linear:
    def __init__(self, d_input: int, d_output: int, *, bias: bool = True, device: str | None = None) -> None: ...


class LinearConfig(config_of(Linear)):
    """Hyper-parameters of `Linear`."""

    def validate(self) -> None:
        if self.d_input < 1:
            raise ValueError("d_input must be positive")


class MlpConfig(Config):
    d_input: int
    dropout: float = 0.1
    sizes: list[int] = [32]  # noqa: RUF012
    options: dict[str, int] = field(default_factory=dict[str, int])
    head: LinearConfig | None = None
    _: KW_ONLY
    depth: int = 1

    def init(self, device: str | None = None) -> Mlp:
        return Mlp(self, device=device)


class DeepMlpConfig(MlpConfig):
    levels: int = 1


class Mlp:
    def __init__(self, config: MlpConfig, device: str | None = None) -> None: ...


def declared_configs() -> None:
    config = MlpConfig(64, dropout=0, sizes=[1], head=LinearConfig(1, 2), depth=2)
    assert_type(config.dropout, float)
    assert_type(config.head, LinearConfig | None)
    assert_type(config.init(), Mlp)
    assert_type(config.replace(dropout=0.0), MlpConfig)
    assert_type(MlpConfig.load("config.json"), MlpConfig)
    assert_type(DeepMlpConfig.from_dict({}), DeepMlpConfig)
    assert_type(DeepMlpConfig(1, levels=2).levels, int)
    assert_type(hash(config), int)
    MlpConfig()  # pyright: ignore[reportCallIssue]
    MlpConfig("x")  # pyright: ignore[reportArgumentType]
    MlpConfig(64, droput=0.1)  # pyright: ignore[reportCallIssue]
    MlpConfig(64, 0.1, [1], {}, None, 2)  # pyright: ignore[reportCallIssue]
    config.dropout = 0.2  # pyright: ignore[reportAttributeAccessIssue]
    print(config.droput)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]


def derived_configs() -> None:
    config = LinearConfig(64, 10, bias=False)
    assert_type(config.init(), Linear)
    assert_type(config.init("jax"), Linear)
    assert_type(config.d_input, Any)
    assert_type(config.replace(bias=True), LinearConfig)
    assert_type(LinearConfig.from_json("{}"), LinearConfig)
    LinearConfig("x", 10)  # pyright: ignore[reportArgumentType]
    LinearConfig(64)  # pyright: ignore[reportCallIssue]
    LinearConfig(64, 10, False)  # pyright: ignore[reportCallIssue]
    LinearConfig(64, 10, biass=False)  # pyright: ignore[reportCallIssue]
    config.d_input = 3  # pyright: ignore[reportAttributeAccessIssue]
    MlpConfig(64, head=MlpConfig(64))  # pyright: ignore[reportArgumentType]


def any_config(config: BaseConfig) -> dict[str, Any]:
    return config.to_dict()


def both_kinds_are_configs() -> None:
    any_config(MlpConfig(64))
    any_config(LinearConfig(64, 10))

"""`config_of`: the config of a layer comes from the signature of its `__init__`."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from phlox.config import BaseConfig, Config, FrozenList, LayerConfig, config_of
from phlox.errors import ConfigError


class Initializer(Config):
    """Base of initializers."""


class KaimingUniform(Initializer):
    gain: float = 1.0


class Zeros(Initializer):
    pass


class Layer:
    """Keeps its arguments, as a witness."""

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return 0


class Linear(Layer):
    def __init__(
        self,
        d_input: int,
        d_output: int = 10,
        *,
        bias: bool = True,
        initializer: Initializer = KaimingUniform(),  # noqa: B008
        device: Undefined | None = None,  # noqa: F821  # pyright: ignore[reportUndefinedVariable]
    ) -> None:
        self.arguments = (d_input, d_output, bias, initializer, device)


class LinearConfig(config_of(Linear)):
    """Hyper-parameters of `Linear`."""


class Conv(Layer):
    def __init__(self, kernel: list[int], padding: Literal["same"] | int = "same", *, sizes: list[int] = [1]) -> None:  # noqa: B006
        self.arguments = (kernel, padding, sizes)


class ConvConfig(config_of(Conv)):
    """Hyper-parameters of `Conv`."""

    def validate(self) -> None:
        if not self.kernel:
            raise ValueError("kernel must have at least one size")


class MlpConfig(Config):
    head: LinearConfig
    tail: LinearConfig | ConvConfig | None = None


def refused(*parts: str) -> pytest.RaisesExc[ConfigError]:
    return pytest.RaisesExc(ConfigError, check=lambda error: all(part in str(error) for part in parts))


def test_a_config_makes_its_layer() -> None:
    assert LinearConfig(64, 10, bias=False).init("gpu:0") == Linear(64, 10, bias=False, device="gpu:0")
    assert LinearConfig(64).init() == Linear(64)
    assert type(LinearConfig(64, initializer=Zeros()).init()) is Linear
    assert ConvConfig([3, 3]).init() == Conv([3, 3]) == ConvConfig([3, 3]).init("gpu:0")  # it takes no device


def test_fields_come_from_the_signature() -> None:
    config = LinearConfig(64, bias=False)
    assert config.d_input == 64 and config.initializer == KaimingUniform()
    assert repr(config) == ("LinearConfig(d_input=64, d_output=10, bias=False, initializer=KaimingUniform(gain=1.0))")
    expected = inspect.signature(Linear).parameters
    for name, parameter in inspect.signature(LinearConfig).parameters.items():
        assert parameter == expected[name]
    assert set(expected) - set(vars(config)) == {"device"}
    assert LinearConfig.__doc__ == "Hyper-parameters of `Linear`." and LinearConfig.__module__ == __name__
    assert isinstance(config, Config) and isinstance(config, BaseConfig) and isinstance(config, LayerConfig)


def test_it_is_a_value_like_every_config(tmp_path: Path) -> None:
    config = LinearConfig(64, initializer=Zeros())
    assert config == LinearConfig(64, 10, initializer=Zeros()) != LinearConfig(64)
    assert {config: 1}[config.replace()] == 1 and config.replace(d_output=3) == LinearConfig(64, 3, initializer=Zeros())
    assert copy.deepcopy(config) == config
    config.save(tmp_path / "linear.json")
    assert LinearConfig.load(tmp_path / "linear.json") == config
    assert config.to_dict()["initializer"] == {"type": "Zeros"}
    with refused("is immutable"):
        config.d_input = 3  # pyright: ignore[reportAttributeAccessIssue]


def test_it_nests() -> None:
    config = MlpConfig(LinearConfig(64), ConvConfig([3], 1))
    assert MlpConfig.from_json(config.to_json()) == config
    assert config.to_dict()["tail"] == {"type": "ConvConfig", "kernel": [3], "padding": 1, "sizes": [1]}
    with refused("head.d_inputt: unknown key; did you mean `d_input`?"):
        MlpConfig.from_dict({"head": {"d_inputt": 64}})
    with refused("tail.type: unknown class 'ConvConf'; did you mean `ConvConfig`?; expected one of ConvConfig, Linear"):
        MlpConfig.from_dict({"head": {"d_input": 64}, "tail": {"type": "ConvConf"}})
    with refused("MlpConfig: tail: kernel must have at least one size"):
        MlpConfig.from_dict({"head": {"d_input": 64}, "tail": {"type": "ConvConfig", "kernel": []}})


def test_values_are_validated() -> None:
    wrong: dict[str, Any] = {"d_output": "x", "biass": True}
    with pytest.raises(ConfigError) as caught:
        LinearConfig(**wrong)
    assert str(caught.value).splitlines() == [
        "LinearConfig has 3 errors:",
        "  biass: unknown key; did you mean `bias`?",
        "  d_input: missing; expected int",
        "  d_output: expected int, got str 'x'",
    ]
    with refused("takes at most 2 positional values (d_input, d_output), got 3"):
        LinearConfig(1, 2, True)  # pyright: ignore[reportCallIssue]
    assert isinstance(ConvConfig([3]).sizes, FrozenList)


def test_a_device_is_given_to_init() -> None:
    with refused("LinearConfig: device: a device is not a hyper-parameter: pass it to `init(device)`"):
        LinearConfig(64, device="gpu:0")


def test_local_layers_and_types() -> None:
    class Option(Config):
        a: int = 1

    class Local(Layer):
        def __init__(self, option: Option = Option(), *, parts: list[Option] = []) -> None:  # noqa: B006, B008
            self.arguments = (option, parts)

    class LocalConfig(config_of(Local)):
        """Hyper-parameters of `Local`."""

    assert LocalConfig.from_json(LocalConfig(Option(2)).to_json()).init() == Local(Option(2))


def test_an_inherited_or_wrapped_signature_and_a_function() -> None:
    class Wide(Linear):
        pass

    class WideConfig(config_of(Wide)):
        """Hyper-parameters of `Wide`."""

    assert WideConfig(3).init() == Wide(3)

    def make(size: int, *, device: object = None) -> Linear:
        return Linear(size, device=device)

    assert config_of(make)(3).init("cpu") == Linear(3, device="cpu")

    @functools.wraps(make)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return make(*args, **kwargs)

    assert config_of(wrapper)(3).init("cpu") == Linear(3, device="cpu")


def test_a_subclass_adds_no_fields() -> None:
    with refused("WideConfig.extra", "the parameters of the layer"):

        class WideConfig(LinearConfig):
            extra: int = 1


def positional(a: int, /) -> None: ...
def starred(*a: int) -> None: ...
def double_starred(**a: int) -> None: ...
def bare(a, b=1) -> None: ...
def late(device: object, a: int) -> None: ...
def unsupported(a: Callable[[int], int] = abs) -> None: ...
def ill_typed(a: int = "x") -> None: ...  # pyright: ignore[reportArgumentType]
def reserved(type: str) -> None: ...
def taken(init: int) -> None: ...


@pytest.mark.parametrize(
    "layer, message",
    [
        (positional, "config_of(positional), parameter `a: 'int'`: a field needs a name"),
        (starred, "parameter `*a: 'int'`: a field needs a name"),
        (double_starred, "parameter `**a: 'int'`: a field needs a name"),
        (bare, "config_of(bare), parameter `a`: annotate it"),
        (late, "parameter `a: 'int'`: it follows `device`"),
        (unsupported, "config_of(unsupported).a: a config cannot hold"),
        (ill_typed, "config_of(ill_typed).a, its default: expected int, got str 'x'"),
        (reserved, "config_of(reserved).type: "),
        (taken, "config_of(taken).init: "),
    ],
)
def test_signatures_that_make_no_config(layer: Callable[..., Any], message: str) -> None:
    with refused(message):
        config_of(layer)


def test_an_annotation_that_cannot_be_resolved() -> None:
    def layer(a: Undefined) -> None: ...  # noqa: F821  # pyright: ignore[reportUndefinedVariable]

    class UnresolvedConfig(config_of(layer)):
        """It can be defined, but not used."""

    with refused("config_of(", ".a: the annotation `Undefined` cannot be resolved"):
        UnresolvedConfig(1)

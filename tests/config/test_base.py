"""`Config` as a value: construction, immutability, equality, defaults, inheritance, and what a class may declare.

Serves: phlox/config/{frozen,schema}.py
"""

from __future__ import annotations

import abc
import copy
import dataclasses
import inspect
import math
import pickle
from dataclasses import KW_ONLY
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from phlox.config import Config
from phlox.errors import ConfigError, PhloxError

if TYPE_CHECKING:
    from decimal import Decimal


class HeadConfig(Config):
    """Documented."""

    classes: int
    bias: bool = True


class MlpConfig(Config):
    d_input: int
    d_hidden: int = 32
    dropout: float = 0.1
    head: HeadConfig | None = None

    scale: ClassVar[float] = 2.0

    def validate(self) -> None:
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1), got {self.dropout}")


class DeepMlpConfig(MlpConfig):
    depth: int = 3
    dropout: float = 0.5


class Later(Config):
    """Its annotation names what is defined further down the module."""

    inner: Latest


class Latest(Config):
    size: int = 1


def raises(*parts: str) -> pytest.RaisesExc[ConfigError]:
    return pytest.RaisesExc(ConfigError, check=lambda error: all(part in str(error) for part in parts))


def test_positional_and_keyword_arguments_and_defaults() -> None:
    assert vars(MlpConfig(64)) == {"d_input": 64, "d_hidden": 32, "dropout": 0.1, "head": None}
    assert MlpConfig(64, 32, dropout=0.1) == MlpConfig(d_input=64)
    assert MlpConfig(64, dropout=0).dropout == 0.0
    assert type(MlpConfig(64, dropout=0).dropout) is float


def test_config_is_a_value() -> None:
    one, same, other = MlpConfig(64, head=HeadConfig(3)), MlpConfig(64, head=HeadConfig(3)), MlpConfig(64)
    assert one == same and hash(one) == hash(same) and one != other
    assert {one: "found"}[same] == "found"
    assert one != "MlpConfig" and MlpConfig(64, dropout=0.5) != DeepMlpConfig(64)


def test_nan_equals_itself() -> None:
    class Loss(Config):
        floor: float = math.nan
        weights: tuple[float, ...] = ()
        by_name: dict[str, float] = {}  # noqa: RUF012

    one = Loss(float("nan"), (float("nan"),), {"a": float("nan")})
    assert one == Loss(-float("nan"), (math.inf - math.inf,), {"a": math.nan})
    assert one == Loss.from_json(one.to_json()) and hash(one) == hash(Loss.from_json(one.to_json()))
    assert one != Loss()


def test_repr_is_the_call() -> None:
    assert repr(MlpConfig(64, head=HeadConfig(3))) == (
        "MlpConfig(d_input=64, d_hidden=32, dropout=0.1, head=HeadConfig(classes=3, bias=True))"
    )


def test_config_cannot_be_changed() -> None:
    config = MlpConfig(64)
    with raises("MlpConfig is immutable", "config.replace(dropout=...)"):
        config.dropout = 0.2  # pyright: ignore[reportAttributeAccessIssue]
    with raises("cannot be deleted"):
        del config.dropout  # pyright: ignore[reportAttributeAccessIssue]
    with raises("is immutable"):
        config.unknown = 1  # pyright: ignore[reportAttributeAccessIssue]
    assert config == MlpConfig(64)


def test_replace() -> None:
    config = DeepMlpConfig(64)
    assert config.replace(depth=5, d_hidden=8) == DeepMlpConfig(64, 8, depth=5)
    assert config == DeepMlpConfig(64)
    assert type(config.replace()) is DeepMlpConfig
    with raises("DeepMlpConfig: dropuot: unknown key; did you mean `dropout`?"):
        config.replace(dropuot=0.0)
    with raises("depth: expected int, got str '5'"):
        config.replace(depth="5")


def test_copies_and_pickles_are_equal() -> None:
    config = MlpConfig(64, head=HeadConfig(3))
    assert copy.copy(config) == copy.deepcopy(config) == pickle.loads(pickle.dumps(config)) == config  # noqa: S301


def test_it_is_a_dataclass_to_whoever_asks() -> None:
    assert [field.name for field in dataclasses.fields(MlpConfig)] == ["d_input", "d_hidden", "dropout", "head"]
    assert list(inspect.signature(DeepMlpConfig).parameters) == ["d_input", "d_hidden", "dropout", "head", "depth"]
    assert MlpConfig.__doc__ is not None and "d_hidden" in MlpConfig.__doc__ and HeadConfig.__doc__ == "Documented."
    assert MlpConfig.scale == 2.0


def test_fields_are_inherited() -> None:
    assert list(vars(DeepMlpConfig(1))) == ["d_input", "d_hidden", "dropout", "head", "depth"]
    assert DeepMlpConfig(1).dropout == 0.5 and MlpConfig(1).dropout == 0.1
    with raises("DeepMlpConfig: dropout must lie in [0, 1)"):
        DeepMlpConfig(1, dropout=1.0)


def test_mutable_defaults_and_arguments_are_frozen() -> None:
    class Net(Config):
        hidden: list[int] = [32, 16]  # noqa: RUF012
        options: dict[str, list[int]] = {"a": [1]}  # noqa: RUF012
        made: list[int] = dataclasses.field(default_factory=lambda: [1, 2])

    given = [1]
    net = Net(hidden=given)
    given.append(2)
    assert net.hidden == [1] and isinstance(net.hidden, list) and [0, *net.hidden] == [0, 1]
    assert [0] + net.hidden == [0, 1]  # noqa: RUF005
    assert Net() == Net() and hash(Net()) == hash(Net()) and Net().made == [1, 2]
    refused = "is immutable"
    for change in (
        lambda: net.hidden.append(1),
        lambda: net.hidden.sort(),
        lambda: net.hidden.__setitem__(0, 5),
        lambda: net.options.update(b=[]),
        lambda: net.options.pop("a"),
        lambda: net.options["a"].extend([1]),
        lambda: Net.hidden.append(1),
    ):
        with raises(refused):
            change()
    assert net == Net(hidden=[1]) == copy.deepcopy(net)
    assert pickle.loads(pickle.dumps((net.hidden, net.options))) == ([1], {"a": [1]})  # noqa: S301


def test_a_wrong_call_names_class_and_field() -> None:
    with raises("MlpConfig: d_input: missing; expected int"):
        MlpConfig()  # pyright: ignore[reportCallIssue]
    with raises("MlpConfig: takes at most 4 positional values (d_input, d_hidden, dropout, head), got 5"):
        MlpConfig(1, 2, 0.3, None, 5)  # pyright: ignore[reportCallIssue]
    with raises("d_input: given twice"):
        MlpConfig(1, d_input=1)  # pyright: ignore[reportCallIssue]


def test_all_errors_at_once() -> None:
    wrong: dict[str, Any] = {"d_hidden": True, "dropout": "high", "head": "big", "droput": 1, "zzz": 2}
    with pytest.raises(ConfigError) as caught:
        MlpConfig(**wrong)
    assert str(caught.value).splitlines() == [
        "MlpConfig has 6 errors:",
        "  droput: unknown key; did you mean `dropout`?",
        "  zzz: unknown key",
        "  d_input: missing; expected int",
        "  d_hidden: expected int, got bool True",
        "  dropout: expected float, got str 'high'",
        "  head: expected HeadConfig | None, got str 'big'",
    ]
    assert isinstance(caught.value, PhloxError) and isinstance(caught.value, ValueError)


def test_a_misspelt_key_is_not_missing_as_well() -> None:
    with raises("MlpConfig: d_inputt: unknown key; did you mean `d_input`?"):
        MlpConfig(d_inputt=1)  # pyright: ignore[reportCallIssue]


def test_keyword_only_fields() -> None:
    class Net(Config):
        size: int = 1
        _: KW_ONLY
        depth: int

    assert Net(depth=2) == Net(1, depth=2)
    with raises("takes at most 1 positional values (size), got 2"):
        Net(1, 2)  # pyright: ignore[reportCallIssue]


def test_local_classes_are_resolved() -> None:
    class Part(Config):
        size: int

    class Tree(Config):
        part: Part
        children: tuple[Tree, ...] = ()

        def init(self, device: Decimal | None = None) -> Defined:
            return Defined()

    class Defined:
        pass

    tree = Tree(Part(1), (Tree(Part(2)),))
    assert Tree.from_json(tree.to_json()) == tree
    assert isinstance(tree.init(), Defined)


def test_a_name_defined_later_in_the_module_is_resolved_at_first_use() -> None:
    assert Later.from_dict({"inner": {"size": 3}}) == Later(Latest(3))


def test_an_annotation_that_cannot_be_resolved() -> None:
    class Net(Config):
        size: Decimal

    class Child(Net):
        other: int = 1

    for use in (lambda: Net(1), lambda: Net.from_dict({}), lambda: Child(1)):  # pyright: ignore[reportArgumentType]
        with raises("Net.size", "`Decimal` cannot be resolved", "not under TYPE_CHECKING"):
            use()


def test_an_invalid_annotation() -> None:
    with raises("Net.size: the annotation `int | 3` is not valid"):

        class Net(Config):
            size: int | 3  # pyright: ignore[reportGeneralTypeIssues]


def test_defaults_are_validated() -> None:
    with raises("Net.size, its default: expected int, got float 0.5"):

        class Net(Config):
            size: int = 0.5  # pyright: ignore[reportAssignmentType]

    class Made(Config):
        sizes: list[int] = dataclasses.field(default_factory=lambda: ["a"])  # pyright: ignore[reportAssignmentType]

    with raises("Made: sizes.0: expected int, got str 'a'"):
        Made()


@pytest.mark.parametrize("name", ["type", "save", "to_dict", "validate", "replace"])
def test_names_that_a_field_cannot_have(name: str) -> None:
    with raises(f"Net.{name}"):
        type("Net", (Config,), {"__annotations__": {name: int}, "__module__": __name__})


@pytest.mark.parametrize("name", ["__init__", "__post_init__"])
def test_a_config_has_no_constructor_of_its_own(name: str) -> None:
    with raises(f"Net defines {name}", "validate"):
        type("Net", (Config,), {name: lambda self: None, "__module__": __name__})


def test_declarations_that_would_not_work_as_they_read() -> None:
    with raises("Net.d_hidden is a field", "repeat its annotation"):

        class Net(MlpConfig):
            d_hidden = 64

    with raises("After.b has no default but comes after `a`", "KW_ONLY"):

        class After(Config):
            a: int = 1
            b: int  # pyright: ignore[reportGeneralTypeIssues]

    with raises("Hidden.a", "a constructor argument"):

        class Hidden(Config):
            a: int = dataclasses.field(default=1, init=False)

    with raises("Unhashable: mutable default"):

        class Unhashable(Config):
            a: set[int] = set()  # noqa: RUF012


def test_validate_may_raise_either_error_and_other_errors_pass() -> None:
    class Net(Config):
        size: int

        def validate(self) -> None:
            if self.size < 0:
                raise ConfigError("size must not be negative")
            assert 10 // self.size

    with raises("Net: size must not be negative"):
        Net(-1)
    with pytest.raises(ZeroDivisionError):
        Net(0)


def test_validate_runs_only_on_values_of_the_right_types() -> None:
    with raises("MlpConfig: dropout: expected float, got None"):
        MlpConfig(1, dropout=None)  # pyright: ignore[reportArgumentType]


def test_an_abstract_config_has_no_values() -> None:
    class Shape(Config, abc.ABC):
        @abc.abstractmethod
        def area(self) -> float: ...

    with pytest.raises(TypeError, match="abstract"):
        Shape()  # pyright: ignore[reportAbstractUsage]


def test_the_base_has_no_values() -> None:
    with raises("Config has no fields, so it has no instances"):
        Config()
    with raises("Config: type: missing; expected one of "):
        Config.from_dict({})

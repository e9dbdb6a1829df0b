"""Configs of layers, derived from their signatures."""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, ParamSpec, TypeVar, cast

from phlox.backend import DeviceLike
from phlox.config.annotations import Scope, mentioned
from phlox.config.base import BaseConfig, Config
from phlox.config.schema import own_annotations
from phlox.errors import ConfigError

if TYPE_CHECKING:
    # For a type checker, a subclass of Config has a constructor of its own annotations, and inherits none.
    _Parent = BaseConfig
else:
    _Parent = Config

P = ParamSpec("P")
M = TypeVar("M")

DEVICE = "device"
"""The argument of a layer that is not a hyper-parameter: the device of its parameters."""


class LayerConfig(_Parent, Generic[P, M]):
    """The hyper-parameters of a layer `M` with constructor arguments `P`. `config_of` creates its subclasses."""

    __phlox_root__ = True
    __phlox_layer__: ClassVar[Callable[..., Any]]
    __phlox_takes_device__: ClassVar[bool]

    if TYPE_CHECKING:

        def __init__(self, *args: P.args, **kwargs: P.kwargs) -> None: ...
        def __getattr__(self, name: str) -> Any: ...

    def __init_subclass__(cls, **kwargs: Any) -> None:
        if "__phlox_layer__" not in vars(cls):  # a subclass written by a user
            for name in own_annotations(cls):
                raise ConfigError(
                    f"{cls.__name__}.{name}: the fields of a layer's config are the parameters of the layer; "
                    "add it to the signature of `__init__`"
                )
        super().__init_subclass__(**kwargs)

    @classmethod
    def __phlox_unknown__(cls, name: object) -> str:
        if name == DEVICE:
            return "a device is not a hyper-parameter: pass it to `init(device)`"
        return super().__phlox_unknown__(name)

    def init(self, device: DeviceLike | None = None) -> M:
        """Create the layer from these hyper-parameters, with its parameters on `device` (None: the default device)."""
        device_argument = {DEVICE: device} if self.__phlox_takes_device__ else {}
        return type(self).__phlox_layer__(**vars(self), **device_argument)


def config_of(layer: Callable[P, M]) -> type[LayerConfig[P, M]]:
    """Derive the config of a layer from the signature of its `__init__`; subclass the result under the config's name.

    The arguments of the layer become the fields of the config, with the same types, defaults, order and keyword-only
    marks. Only `device` is left out: it is passed to `init`. Everything else is as in `Config`.

    Raises `ConfigError`, naming the argument, if one is positional-only, starred or not annotated, or has a type that
    configs cannot hold.

    >>> class Scale:
    ...     def __init__(self, d_model: int, *, factor: float = 1.0, device: object = None) -> None:
    ...         self.d_model, self.factor = d_model, factor
    >>> class ScaleConfig(config_of(Scale)):
    ...     '''Hyper-parameters of `Scale`.'''
    >>> config = ScaleConfig(64, factor=2)
    >>> config
    ScaleConfig(d_model=64, factor=2.0)
    >>> config.init().factor
    2.0
    """
    layer_name = getattr(layer, "__qualname__", repr(layer))
    name = f"config_of({layer_name})"
    annotations: dict[str, Any] = {}
    body: dict[str, Any] = {
        "__module__": layer.__module__,
        "__doc__": f"The hyper-parameters of `{layer_name}`.",
        "__annotations__": annotations,
        "__phlox_layer__": staticmethod(layer),
        "__phlox_takes_device__": False,
    }
    for parameter in inspect.signature(layer).parameters.values():
        keyword_only = parameter.kind is parameter.KEYWORD_ONLY
        _check(name, parameter, follows_device=body["__phlox_takes_device__"] and not keyword_only)
        if parameter.name == DEVICE:
            body["__phlox_takes_device__"] = True
            continue
        default = dataclasses.MISSING if parameter.default is parameter.empty else parameter.default
        annotations[parameter.name] = parameter.annotation
        body[parameter.name] = dataclasses.field(default=default, kw_only=keyword_only)
    frame = inspect.currentframe()
    caller = None if frame is None else frame.f_back
    body["__phlox_scope__"] = _scope(layer, annotations.values(), {} if caller is None else caller.f_locals)
    config_class = types.new_class(name, (LayerConfig,), exec_body=lambda namespace: namespace.update(body))
    return cast("type[LayerConfig[P, M]]", config_class)


def _check(name: str, parameter: inspect.Parameter, *, follows_device: bool) -> None:
    location = f"{name}, parameter `{parameter}`"
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        raise ConfigError(
            f"{location}: a field needs a name and one value, so the parameter cannot be starred or positional-only"
        )
    if parameter.annotation is parameter.empty and parameter.name != DEVICE:
        raise ConfigError(f"{location}: annotate it, since the field has the annotated type")
    if follows_device:
        raise ConfigError(f"{location}: it follows `device`, which is not a field of the config; put `device` last")


def _scope(layer: Callable[..., Any], annotations: Iterable[object], caller_names: Mapping[str, Any]) -> Scope:
    function = inspect.unwrap(layer.__init__ if isinstance(layer, type) else layer)
    module: dict[str, Any] = getattr(function, "__globals__", {})
    names = {name: value for name, value in mentioned(annotations, caller_names).items() if name not in module}
    return Scope(module, names)

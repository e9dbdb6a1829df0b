"""Parameters that are computed from others: `Reparameterization`, `reparameterize` and `merge`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeAlias, TypeVar, cast

from phlox.backend import Backend, Device, Float, Kind
from phlox.errors import ModuleError
from phlox.module.fields import Fields
from phlox.module.module import Module
from phlox.module.param import Param
from phlox.module.select import Selector, select_among
from phlox.module.structure import Container, Leaf, Part, Shared, build
from phlox.tensor import Tensor, functional

M = TypeVar("M", bound=Module)


class Reparameterization(Module):
    """A module that stands in the place of a parameter, and computes its value from parameters of its own.

    A subclass keeps what it starts from in the field `base`: the original parameter, or another reparameterization. It
    defines `val`. Layers call it as they call a parameter, so all of them work; it is walked, trained, saved, moved and
    compiled as any other module. Where a product is cheaper than the value, override `linear`, `linear_transposed`,
    `convolve`, `embedding` or `expert_linear`, which layers of these kinds call.

    >>> import phlox as px
    >>> class Positive(px.Reparameterization):
    ...     def __init__(self, param):
    ...         self.base = px.Param(param.val().abs().log())
    ...     def val(self):
    ...         return self.base.val().exp()
    >>> model = px.reparameterize(px.nn.Linear(2, 3).init(0), "weight", Positive)
    >>> [path for path, _ in model.named_params()], bool((model.weight.val() > 0).all())
    (['weight.base', 'bias'], True)
    """

    _phlox_holds_tensor: ClassVar = True

    base: Param | Reparameterization

    def val(self) -> Tensor:
        """The value."""
        raise NotImplementedError(f"{type(self).__name__} does not define val()")

    @classmethod
    def at(cls, site: Site, **options: Any) -> Reparameterization:
        """What stands at a site from now on: by default `cls(site.param, **options)`."""
        return cls(site.param, **options)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the value; that of `base` unless a subclass has another one."""
        return self.base.shape

    @property
    def device(self) -> Device:
        """The device of the value."""
        return self.base.device

    @property
    def backend(self) -> Backend:
        """The backend of the value."""
        return self.base.backend

    @property
    def kind(self) -> type[Kind]:
        """The kind of the value."""
        return Float

    @property
    def trained(self) -> bool:
        """Whether anything that the value is computed from is trained."""
        return any(param.trained for param in self.params())

    @property
    def is_deferred(self) -> bool:
        """Is a value that it is computed from still to be created by an initializer?"""
        return any(param.is_deferred for param in self.params())

    def set(self, value: Tensor) -> None:
        """Not possible: the value is computed."""
        raise ModuleError(
            f"this parameter is computed by {type(self).__name__}; set the parameters that it is computed from "
            f"({', '.join(path for path, _ in self.named_params())}), or make the model plain by phlox.merge(model)"
        )

    def merged(self) -> Param:
        """A plain parameter with the value, which continues the original one."""
        value, origin = self.val().detach(), self.origin()
        return origin.holding(value) if origin.kind is Float else Param(value, id=origin.id)

    def origin(self) -> Param:
        """The parameter that it continues: the innermost `base`."""
        return origin_of(self.base)

    # --- what layers compute with it

    def linear(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x @ value + bias, see `phlox.functional.linear`."""
        return functional.linear(x, self.val(), bias)

    def linear_transposed(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x @ value.T + bias: the head of a model whose embedding this is."""
        return functional.linear(x, self.val().T, bias)

    def convolve(
        self, function: Callable[..., Tensor], x: Tensor, bias: Tensor | None = None, **options: Any
    ) -> Tensor:
        """`function(x, value, bias, **options)`, where `function` is a convolution of `phlox.functional`."""
        return function(x, self.val(), bias, **options)

    def embedding(self, indices: Tensor[Any, Any, Any], *, padding_index: int | None = None) -> Tensor:
        """The rows of the value at `indices`, see `phlox.functional.embedding`."""
        return functional.embedding(self.val(), indices, padding_index=padding_index)

    def expert_linear(self, x: Tensor, experts: Tensor[Any, Any, Any], bias: Tensor | None = None) -> Tensor:
        """x @ value[e] + bias[e] for the expert e of each row, see `phlox.functional.expert_linear`."""
        return functional.expert_linear(x, self.val(), experts, bias)


def computed(param: Param) -> Reparameterization:
    """What stands in the place of a parameter whose type is not `Param`; for layers, whose fields say `Param`."""
    return cast("Reparameterization", cast("object", param))


def origin_of(param: Param | Reparameterization) -> Param:
    """The parameter that is computed: the innermost `base`; a plain one itself."""
    return param if isinstance(param, Param) else param.origin()


class Site(NamedTuple):
    """A parameter that is to be reparameterized, and where it is."""

    param: Param | Reparameterization
    path: str
    layer: type[Any]
    """The class of the module that holds it."""
    name: str
    """The name of the field there."""

    @property
    def output_axis(self) -> int:
        """The axis of a weight that has the outputs: the last one of a matrix, the first one of a convolution's.

        Layers whose weight has another layout say so: an `Embedding`, whose rows are its outputs for a head.
        """
        axis = getattr(self.layer, "_phlox_output_axis", None)
        ndim = len(self.param.shape)
        return axis % ndim if axis is not None else (1 if ndim == 2 else 0)

    @property
    def is_stack(self) -> bool:
        """Is it a stack of matrices [n, inputs, outputs], those of experts?"""
        return len(self.param.shape) == 3 and self.output_axis == 2


Rule: TypeAlias = Callable[[Any], Reparameterization]
"""A subclass of `Reparameterization`, `functools.partial` of one with options, or a function of a parameter."""


def reparameterize(model: M, which: Selector, rule: Rule) -> M:
    """A view of the model in which a rule computes the selected parameters; the model itself is unchanged.

    Args:
        model: any module. The view shares its arrays and ids.
        which: a pattern of paths, a predicate `(path, param) -> bool`, or a list of these, see `Module.freeze`. A
            parameter that is computed already is selected by its own path (`head.weight`), as if it were plain; the
            parameters inside it are not selected.
        rule: a subclass of `Reparameterization`, `functools.partial` of one with its options, or a function from a
            parameter to one.

    Raises `ModuleError` for a pattern that matches nothing and for a rule that returns something else, with the path.

    >>> import phlox as px
    >>> from phlox.nn.reparameterizations import WeightNorm
    >>> model = px.reparameterize(px.nn.Linear(2, 3).init(0), "weight", WeightNorm)
    >>> [path for path, _ in model.named_params()]
    ['weight.base', 'weight.magnitude', 'bias']
    """
    sites = Sites(model)
    return sites.replace({path: _apply(rule, site) for path, site in sites.select(which).items()})


def merge(model: M, *which: Selector) -> M:
    """The model with plain parameters, which have the values that reparameterizations compute; it gives the same.

    With `which`, only these parameters become plain. The model itself is unchanged and keeps what it was computed
    from, so nothing has to be subtracted again. Plain parameters are trained if their reparameterization's base was.

    Raises `ModuleError` for a pattern that matches no computed parameter.

    >>> import phlox as px
    >>> model = px.nn.Linear(4, 4).init(0)
    >>> [path for path, _ in px.merge(px.lora(model, "weight", rank=2)).named_params()]
    ['weight', 'bias']
    """
    sites = Sites(model, computed=True)
    if which and not sites.found:
        raise ModuleError("merge: the model has no computed parameter")
    merged: dict[str, Any] = {}
    for path, site in (sites.select(*which) if which else sites.found).items():
        try:
            merged[path] = cast("Reparameterization", site.param).merged()
        except Exception as error:
            error.add_note(f"merge: at the parameter `{path}`")
            raise
    return sites.replace(merged)


def _apply(rule: Rule, site: Site) -> Reparameterization:
    made: Any = rule
    cls: Any = made.func if isinstance(made, partial) else made
    options: dict[str, Any] = made.keywords if isinstance(made, partial) else {}
    is_class = isinstance(cls, type) and issubclass(cls, Reparameterization)
    try:
        view: Any = cast("Any", cls).at(site, **options) if is_class else rule(site.param)
    except Exception as error:
        error.add_note(f"reparameterize: at the parameter `{site.path}`")
        raise
    if not isinstance(view, Reparameterization):
        raise ModuleError(
            f"{site.path}: a rule must return a Reparameterization, got "
            f"{type(cast('object', view)).__name__}; see phlox.Reparameterization"
        )
    return view


class Sites:
    """The parameters of a model, where one that is computed counts as one; with `computed`, only these."""

    def __init__(self, model: Any, *, computed: bool = False) -> None:
        if not isinstance(model, Module):
            raise ModuleError(f"expected a module, got {type(model).__name__}")
        structure = model.structure()
        self._skeleton = structure.skeleton
        self._parts: list[Any] = [param.view() for param in structure.params]
        self._containers: dict[int, Any] = {}
        build(self._skeleton, self._parts, self._containers)
        self._paths: dict[Any, list[str]] = {}
        self._uses: dict[str, list[Site]] = {}
        self.found: dict[str, Site] = {}
        """By path; a parameter at several paths is there by the first one."""
        for path, part, layer, name in _walk(self._skeleton, ""):
            key = _key(part)
            is_new = key not in self._paths
            paths = self._paths.setdefault(key, [])
            paths.append(path)
            if not is_new and paths[0] in self.found:
                self._uses.setdefault(paths[0], []).append(
                    self.found[paths[0]]._replace(path=path, layer=layer, name=name)
                )
            if is_new and (isinstance(key, tuple) or not computed):
                param = self._containers[key[0]] if isinstance(key, tuple) else self._parts[key]
                self.found[path] = Site(param, path, layer, name)

    def select(self, *which: Selector) -> dict[str, Site]:
        """The selected ones; `ModuleError` for a pattern that matches nothing."""
        every: dict[str, list[str]] = {paths[0]: paths for paths in self._paths.values() if paths[0] in self.found}
        params: dict[str, Any] = {path: site.param for path, site in self.found.items()}
        selected = select_among(which, params, every)
        return {path: site for path, site in self.found.items() if path in selected}

    def freeze(self) -> None:
        """No parameter is trained, in what `replace` will build."""
        for param in self._parts:
            param.set_trained(False)

    def uses(self, path: str) -> list[Site]:
        """The further places of a parameter that is at several paths."""
        return self._uses.get(path, [])

    def replace(self, new: dict[str, Any]) -> Any:
        """A model with other parameters, or modules in their places, by the paths of sites."""
        parts = [*self._parts]
        numbers: dict[Any, int] = {}
        for key, paths in self._paths.items():
            if paths[0] in new:
                numbers[key] = len(parts)
                parts.append(new[paths[0]])
        return build(cast("Container", _with_leaves(self._skeleton, numbers)), parts)


def _key(part: Part) -> Any:
    """The number of a parameter, or that of a reparameterization in a tuple."""
    return part.number if isinstance(part, Leaf) else (cast("Any", part).number,)


def _walk(part: Container, prefix: str) -> Iterator[tuple[str, Part, type[Any], str]]:
    """Each parameter and reparameterization, with its path, the class of its module and its field there."""
    owners: dict[int, Container] = {}

    def walk(part: Part, path: str, layer: type[Any], name: str) -> Iterator[tuple[str, Part, type[Any], str]]:
        if isinstance(part, Shared):
            part = owners[part.number]
        if isinstance(part, Container):
            owners[part.number] = part
        if isinstance(part, Leaf) or (isinstance(part, Container) and issubclass(part.cls, Reparameterization)):
            yield path, part, layer, name
        elif isinstance(part, Container):
            of_module = issubclass(part.cls, Fields)
            for key, child in zip(part.keys, part.children, strict=True):
                inner = f"{path}.{key}" if path else f"{key}"
                yield from walk(child, inner, part.cls if of_module else layer, f"{key}" if of_module else name)

    yield from walk(part, prefix, part.cls, "")


def _with_leaves(part: Part, numbers: dict[Any, int]) -> Part:
    """The skeleton with leaves in the places of some parts."""
    if isinstance(part, (Leaf, Shared, Container)) and (number := numbers.get(_key(part))) is not None:
        return Leaf(number)
    if not isinstance(part, Container):
        return part
    return Container(part.cls, part.keys, tuple([_with_leaves(child, numbers) for child in part.children]), part.number)

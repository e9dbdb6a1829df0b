"""`reference`: a field that refers to another model without owning it."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, cast, final

from phlox.backend import Backend, load_backend
from phlox.backend.contract.backend import engine_of
from phlox.errors import ModuleError
from phlox.module.fields import Fields
from phlox.module.foreign_layer import foreign

M = TypeVar("M", covariant=True)


@final
class Reference(Generic[M]):
    """The result of `reference`: `model` is the model that it refers to; calling the reference calls the model."""

    __slots__ = ("_model",)

    def __init__(self, model: M) -> None:
        if not isinstance(model, Fields) and foreign(cast("type[Any]", type(model))) is None:
            raise ModuleError(
                "reference: expected a module, or a layer or an array of PyTorch or a JAX library, got "
                f"{type(model).__name__}"
            )
        self._model = model

    @property
    def model(self) -> M:
        """The model that it refers to.

        Raises `ModuleError` in a compiled function: its values would become constants of the program.
        """
        engine = self._engine()
        if engine is not None and engine.is_tracing():
            raise ModuleError(
                f"the parameters of a {type(self._model).__name__} that is only referred to would become constants of "
                "a compiled function; pass the model to the function as an argument, and use that"
            )
        return self._model

    def _engine(self) -> Backend | None:
        """The engine of the model's values; None if it has none."""
        model: Any = self._model
        if isinstance(model, Fields):
            params = cast("Any", model).params()
            return engine_of(params[0].backend) if params else None
        kind = foreign(cast("type[Any]", type(model)))
        return None if kind is None else load_backend(kind.engine)()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call: Any = self.model
        return call(*args, **kwargs)

    @property
    def target(self) -> M:
        """As `model`, also in a compiled function; only for comparisons."""
        return self._model

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reference) and cast("Reference[Any]", other).target is self._model

    def __hash__(self) -> int:
        return id(self._model)

    def __copy__(self) -> Reference[M]:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Reference[M]:
        return Reference(memo[id(self._model)]) if id(self._model) in memo else self

    def __reduce__(self) -> tuple[Any, ...]:
        return Reference, (self._model,)

    def __repr__(self) -> str:
        return f"reference({type(self._model).__name__})"


def reference(model: M) -> Reference[M]:
    """Refer to another model in a field of a module, without making it a part of the module.

    A plain field makes the model a child; a reference does not. So the model is not saved, trained, moved, counted or
    transformed with the module. Copies (`copy.deepcopy`, `valid`, `to_device`, a PyTree function) refer to the same
    model. Pickle includes it. `model` may also be a layer of Flax, Equinox or PyTorch, or an array of JAX or PyTorch.

    A reference cannot be used in a compiled function: pass the model as an argument of its own. Raises `ModuleError`
    in that case, if `model` is none of these, and if a module refers to a part of itself.

    >>> import phlox as px
    >>> from phlox import nn
    >>> class Student(px.Module):
    ...     def __init__(self, teacher):
    ...         self.layer = nn.Linear(3, 2)
    ...         self.teacher = px.reference(teacher)
    ...     def loss(self, x):
    ...         return nn.mse_loss(self.layer(x), self.teacher(x))
    >>> student = Student(nn.Linear(3, 2))
    >>> [path for path, _ in student.named_params()], student.loss(px.ones((4, 3))).shape
    (['layer.weight', 'layer.bias'], ())
    """
    return Reference(model)

"""`capture`: the outputs of a model's layers, selected by patterns of their paths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self

from phlox.backend.contract.backend import engine_of
from phlox.debug.running import checked_model
from phlox.errors import CompileError, ModuleError
from phlox.module import Module
from phlox.module.calls import Call, named_modules, observed
from phlox.record.patterns import matches_exactly, no_match, select_in_order
from phlox.tensor import Tensor
from phlox.transform.tree import AnyTensor, leaves_of, map_leaves


def capture(
    model: Module, *patterns: str, inputs: bool = False, keep: Callable[[AnyTensor], Any] | None = None
) -> Capture:
    """Keep the outputs of selected layers, in a scope: `with capture(model, "blocks.*.mlp") as seen:`.

    `seen["blocks.0.mlp"]` is the result of the last call of that layer. `seen.outputs` is a dict of the results of all
    calls: path -> list, in the order of the calls. They are the model's own tensors, so they can be differentiated if
    they track gradients. In a compiled function, open the scope inside, and return `seen.outputs` as a result.

    Args:
        model: the model, as it is when the scope begins; views of it (by `valid`, `freeze`) are captured too.
        patterns: paths, in which `*` matches any part of one segment and `**` any number of segments; a pattern with
            `!` in front excludes. A path selects only that layer, not the layers in it. Without patterns, all layers
            are selected.
        inputs: keep the positional arguments of the calls in place of the results.
        keep: a function of each tensor whose result is kept, such as `lambda x: x.abs().max()`; by default the tensor.

    Raises `ModuleError` for a pattern that no layer matches, and if no layer of the model was called in the scope;
    `CompileError` if a layer is called in a compiled function and the scope is outside of it.

    >>> import phlox as px
    >>> from phlox import nn
    >>> model = nn.Sequential([nn.Linear(2, 3), nn.Relu(), nn.Linear(3, 1)]).init(0)
    >>> with px.debug.capture(model, "layers.*", "!layers.1") as seen:
    ...     y = model(px.ones((4, 2)))
    >>> {path: outputs[0].shape for path, outputs in seen.outputs.items()}
    {'layers.0': (4, 3), 'layers.2': (4, 1)}
    >>> bool((seen["layers.2"] == y).all())
    True
    """
    return Capture(checked_model("capture", model), patterns, inputs=inputs, keep=keep)


class Capture:
    """A scope that keeps the outputs of layers; see `capture`."""

    def __init__(
        self, model: Module, patterns: Sequence[str], *, inputs: bool, keep: Callable[[AnyTensor], Any] | None
    ) -> None:
        self.model, self.inputs, self.keep = model, inputs, keep
        self.paths = _selected(patterns, [path for path, _ in named_modules(model)])
        """The paths of the selected layers."""
        self.outputs: dict[str, list[Any]] = {}
        """The results of each layer, call by call, in the order of their first calls."""
        self._called = False
        self._scope: AbstractContextManager[None] | None = None
        self._trace: object | None = None

    def __getitem__(self, path: str) -> Any:
        """The result of the last call of a layer."""
        if path in self.outputs:
            return self.outputs[path][-1]
        kept = ", ".join(self.outputs) or "none"
        raise ModuleError(f"capture: nothing was kept of `{path}`, only of these layers: {kept}")

    def __enter__(self) -> Self:
        if self._scope is not None:
            raise ModuleError("capture: this scope is open already; make another one with px.debug.capture(...)")
        self.outputs, self._called = {}, False
        self._trace = self._current_trace()
        self._scope = observed(self.model, self._on_call)
        self._scope.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        scope, self._scope = self._scope, None
        assert scope is not None
        scope.__exit__(kind, error, trace)
        if error is None and not self._called:
            raise ModuleError(
                "capture: no layer of the model was called in this scope; call the model that was given. A compiled "
                "function calls no layers when it runs: open the scope inside of it, and return its .outputs"
            )

    def _current_trace(self) -> object | None:
        param = next(iter(self.model.params()), None)
        return None if param is None else engine_of(param.backend).current_trace()

    def _on_call(self, call: Call) -> None:
        self._called = True
        if call.path not in self.paths:
            return
        value = call.args if self.inputs else call.outputs
        for _, x in leaves_of(value, Tensor):
            engine = engine_of(x.backend)
            if engine.is_traced(x.backend.strip(x.primitive)) and engine.current_trace() is not self._trace:
                raise CompileError(
                    f"capture: `{call.path or 'the model'}` is called in a function that is being traced, and this "
                    "scope is outside of it, so there are no values to keep; open the scope inside of that function, "
                    "and return its .outputs"
                )
        kept = value if self.keep is None else map_leaves(self.keep, value, Tensor)
        self.outputs.setdefault(call.path, []).append(kept)


def _selected(patterns: Sequence[str], paths: Sequence[str]) -> frozenset[str]:
    """The paths of the layers that are selected."""

    def matching(pattern: Any) -> set[str]:
        if not isinstance(pattern, str):
            raise ModuleError(f"capture: {pattern!r} is not a pattern; give paths of layers, such as 'blocks.*.mlp'")
        result = {path for path in paths if matches_exactly(pattern, path)}
        if not result:
            raise ModuleError(f"capture: {no_match(pattern, paths[1:], 'layer')}")
        return result

    return frozenset(select_in_order(patterns, paths, matching) if patterns else paths)

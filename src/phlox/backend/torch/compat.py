"""Every private name of PyTorch that Phlox uses, and its replacement for a PyTorch that lacks it.

Names with an underscore, the operators behind PyTorch's own autograd, its compiler and its fake tensors are not
documented, and may be gone in the next release. So each is named once, in this file, and looked up at its first use.
Importing the backend looks up none of them, and eager work needs none: without a kernel, the contract's own definition
is used. Compiling needs some of them; if one is missing, the error says so in one sentence.
"""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from importlib import import_module
from typing import Any, NamedTuple

import torch

from phlox.errors import CompileError

SUPPORTED = "2.11 to 2.15"
"""The versions of PyTorch that Phlox is known to compile on."""

PRIVATE: dict[str, Private] = {}
"""All private names in use, by name."""


class Private:
    """A private name of PyTorch, looked up when it is first used.

    Attributes:
        name: the full name, as in `torch.ops.aten._softmax_backward_data.default`.
        without: what Phlox does if it is missing.
        compiles: is it needed to compile anything?
    """

    def __init__(self, name: str, without: str, *, default: Any = None, compiles: bool = False) -> None:
        self.name, self.without, self.compiles = name, without, compiles
        self._default = default
        PRIVATE[name] = self

    def find(self) -> Any:
        """The object with this name; None if PyTorch lacks it."""
        module, *parts = self.name.split(".")
        value: Any = torch
        for part in parts:
            module += f".{part}"
            try:
                value = getattr(value, part)
            except AttributeError:
                try:
                    value = import_module(module)
                except ImportError:
                    return None
        return value

    @cached_property
    def exists(self) -> bool:
        """Does this PyTorch have this name?"""
        return self.find() is not None

    @cached_property
    def value(self) -> Any:
        """The object with this name, or the default; `CompileError` if there is neither."""
        target = self.find()
        if target is None:
            target = self._default
        if target is None:
            raise self.missing()
        return target

    def is_of(self, node: Any) -> bool:
        """Is it the operation of this node of a graph?"""
        return self.exists and node.target is self.value

    def missing(self) -> CompileError:
        """The error that says what is missing."""
        return CompileError(
            f"PyTorch {torch.__version__} lacks `{self.name.removesuffix('.default')}`, which compiling needs; Phlox "
            f"compiles on PyTorch {SUPPORTED} (without compiling, everything runs)"
        )


def reset() -> None:
    """Look up all names again."""
    for part in PRIVATE.values():
        vars(part).pop("exists", None)
        vars(part).pop("value", None)


def need_compiler() -> None:
    """Raise `CompileError`, with the missing names, on a PyTorch that cannot compile anything."""
    for part in PRIVATE.values():
        if part.compiles and not part.exists:
            raise part.missing()


_DERIVED = "the contract's definition"


def _operator(name: str, without: str = _DERIVED) -> Private:
    return Private(f"torch.ops.{name}.default", without)


# --- sizes that stay open

_FX_CONFIG = Private("torch.fx.experimental._config", "programs may refuse sizes of one, and where views meet")


def sizes_stay_open() -> AbstractContextManager[Any]:
    """A scope for exports in which the layout of tensors does not restrict open sizes."""
    return _FX_CONFIG.value.patch(backed_size_oblivious=True) if _FX_CONFIG.exists else nullcontext()


# --- tensors without values, and the graph that they leave behind

_CANNOT = "nothing is compiled"
FAKE_TENSOR = Private("torch._subclasses.fake_tensor.FakeTensor", _CANNOT, default=(), compiles=True)
FAKE_TENSOR_MODE = Private("torch._subclasses.fake_tensor.FakeTensorMode", _CANNOT, compiles=True)
_DATA_DEPENDENT = Private("torch._subclasses.fake_tensor.DataDependentOutputException", "the engine's own error")
_DYNAMIC_SHAPE = Private("torch._subclasses.fake_tensor.DynamicOutputShapeException", "the engine's own error")
_NO_DISPATCH = Private("torch.utils._mode_utils.no_dispatch", _CANNOT, compiles=True)
_MAKE_FX = Private("torch.fx.experimental.proxy_tensor.make_fx", _CANNOT, compiles=True)
_LAZY_GRAPHS = Private("torch.fx._lazy_graph_module._use_lazy_graph_module", "compiling takes longer")
FLATTEN = Private("torch._utils._flatten_dense_tensors", _CANNOT, compiles=True)
UNFLATTEN = Private("torch._utils._unflatten_dense_tensors", _CANNOT, compiles=True)
_SCHEMA = Private("torch.ops.aten.add.Tensor._schema", _CANNOT, compiles=True)


def needs_value_errors() -> tuple[type[Exception], ...]:
    """The exceptions of PyTorch for an operation on tracers that depends on their values."""
    return tuple([part.value for part in (_DATA_DEPENDENT, _DYNAMIC_SHAPE) if part.exists])


def without_tracing() -> Any:
    """A scope in which operations are not traced: a tensor made from values has these values."""
    return _NO_DISPATCH.value()


def trace_graph(
    fn: Callable[..., Any], example: Sequence[Any], decompositions: Mapping[Any, Callable[..., Any]] | None = None
) -> Any:
    """The FX graph of a function of tracers: the operations that it applies to them."""
    options = {} if decompositions is None else {"decomposition_table": decompositions}
    # The passes change the graph, so its code is written when it is needed, if it is.
    with _LAZY_GRAPHS.value(True) if _LAZY_GRAPHS.exists else nullcontext():
        return _make_fx()(fn, tracing_mode="real", _allow_non_fake_inputs=True, **options)(*example)


def run_of_graph(graph: Any) -> Callable[..., Any]:
    """The function that runs the operations of a graph one by one."""
    write_code = getattr(graph, "real_recompile", None)
    if write_code is not None:
        write_code()
    return graph.forward


_WITHOUT_PROXIES = Private("torch.fx.experimental.proxy_tensor.disable_proxy_modes_tracing", _CANNOT, compiles=True)


def without_proxies() -> Any:
    """A scope in which operations on tracers are not recorded in a graph."""
    return _WITHOUT_PROXIES.value()


_REPEATED = "equal updates are traced one by one"
_NODE_OF = Private("torch.fx.experimental.proxy_tensor.get_proxy_slot", _REPEATED)
_TRACK = Private("torch.fx.experimental.proxy_tensor.track_tensor_tree", _REPEATED)


def graph_tracer() -> Any:
    """What records the operations of the current trace in a graph; None if nothing does, or if nodes cannot be set."""
    mode = proxy_mode()
    return mode.tracer if mode is not None and _NODE_OF.exists and _TRACK.exists else None


def node_of(x: torch.Tensor, tracer: Any) -> Any:
    """The node of a tracer in the graph; None for another tensor."""
    slot = _NODE_OF.value(x, tracer, None)
    return None if slot is None or slot.constant is not None else slot.proxy.node


def set_node(x: torch.Tensor, node: Any, tracer: Any) -> None:
    """Let a node of the graph compute a tracer that was made without it."""
    _TRACK.value(x, torch.fx.Proxy(node, tracer), constant=None, tracer=tracer)


def trace_any_length(fn: Callable[..., Any], example: Sequence[torch.Tensor]) -> Any:
    """The FX graph of a function of tensors with open sizes."""
    return _make_fx()(fn, tracing_mode="symbolic")(*example)


def _make_fx() -> Any:
    make_fx = _MAKE_FX.find()
    if make_fx is None:
        raise _MAKE_FX.missing()
    return make_fx


def schema_of(target: Any) -> Any:
    """The schema of an operation (which arguments it writes to, which results are views); None for anything else."""
    return getattr(target, "_schema", None)


# --- which modes see operations


def _nothing(*_: object) -> None:
    return None


MODES = Private("torch._C._len_torch_dispatch_stack", "no mode is noticed", default=lambda: 0)
"""The number of active modes."""
FUNC_LEVEL = Private("torch._C._functorch.peek_interpreter_stack", "torch.func is not noticed", default=_nothing)
"""The innermost transformation of torch.func."""
_MODE_OF = Private("torch._C._get_dispatch_mode", "traces of others are not noticed", default=_nothing)
_MODE_KEYS = Private("torch._C._TorchDispatchModeKey", "traces of others are not noticed")
_DISABLE_MODES = Private(
    "torch.utils._python_dispatch._disable_current_modes", "an LSTM in a program is the contract's, step by step"
)


def tracing_modes() -> list[Any]:
    """The active modes of PyTorch's own traces."""
    if not MODES.value() or not _MODE_KEYS.exists:
        return []
    modes = [_MODE_OF.value(key) for key in _MODE_KEYS.value.__members__.values()]
    return [mode for mode in modes if mode is not None]


def fake_mode() -> Any:
    """The active mode in which operations return tensors without values, if there is one."""
    if not MODES.value() or not _MODE_KEYS.exists:
        return None
    return _MODE_OF.value(getattr(_MODE_KEYS.value, "FAKE", None))


def proxy_mode() -> Any:
    """The active mode that records operations in a graph, if there is one."""
    if not MODES.value() or not _MODE_KEYS.exists:
        return None
    return _MODE_OF.value(getattr(_MODE_KEYS.value, "PROXY", None))


def can_leave_modes() -> bool:
    """Does this PyTorch support `without_modes`?"""
    return _DISABLE_MODES.exists


def without_modes() -> Any:
    """A scope in which operations are hidden from all modes."""
    return _DISABLE_MODES.value()


# --- loops in exported programs

_HIGHER_ORDER = Private("torch._higher_order_ops", "no loop of an open length is exported")


def scan_operation() -> Any:
    """The operation that is a loop in an exported program."""
    _HIGHER_ORDER.value  # noqa: B018  (importing it registers `scan`)
    return torch.ops.higher_order.scan


# --- how often a tensor was written to

VERSION = Private("torch.Tensor._version", "values derived from weights are computed at every call")


def versions_of(tensors: Sequence[torch.Tensor]) -> list[int] | None:
    """How often each tensor was written to; None if PyTorch does not count, as for tensors of inference mode."""
    if not VERSION.exists or any([x.is_inference() for x in tensors]):  # noqa: C419
        return None
    return [x._version for x in tensors]


# --- the compiler

_ONE_BY_ONE = "a program runs its operations one by one, with a warning"
_COMPILE = Private("torch._inductor.compile", _ONE_BY_ONE)
_CONFIG = Private("torch._inductor.config", _ONE_BY_ONE)
_NOT_KEPT = "compiled programs are not kept on disk"
_CPP = Private("torch._inductor.codecache.CppCodeCache.load", "PyTorch's kernels in place of our own, with a warning")


_AS_IT_IS = "Inductor is as it is (see `compiler/fences.py`)"
CONCAT_KERNEL = Private("torch._inductor.ir.ConcatKernel", _AS_IT_IS)
CPP_KERNELS = Private("torch._inductor.codegen.cpp.CppKernelProxy", _AS_IT_IS)
REPLACEMENT = Private("torch._inductor.pattern_matcher.ReplacementPatternEntry", _AS_IT_IS)
_CLONE = Private("torch._inductor.lowering.clone", _AS_IT_IS)


def inductor_clone(source: Any) -> Any:
    """A copy of a value in Inductor's own terms."""
    return _CLONE.value(source) if _CLONE.exists else source


def compile_graph(graph: Any, example: Sequence[torch.Tensor], options: Mapping[str, Any]) -> Callable[..., Any]:
    """An FX graph compiled by Inductor for arguments like these."""
    # Not `torch.compile`, which would trace the graph again, and check at every call whether the trace still fits.
    compile, config = (_required(part) for part in (_COMPILE, _CONFIG))
    with config.patch(dict(options)):
        return compile(graph, list(example))


_COMPILE_FX = Private("torch._inductor.compile_fx.compile_fx", _NOT_KEPT)
_COMPILE_INNER = Private("torch._inductor.compile_fx.compile_fx_inner", _NOT_KEPT)
_CACHES = Private("torch._functorch.config", _NOT_KEPT)
_CONTEXT = Private("torch._guards.TracingContext", _NOT_KEPT)
_IN_CONTEXT = Private("torch._guards.tracing", _NOT_KEPT)
_DATA_POINTER = Private("torch._C._dynamo.guards._torchinductor_pyobject_tensor_data_ptr", _NOT_KEPT)


def can_load_compiled() -> bool:
    """Does this PyTorch have all that loading compiled graphs from disk needs? This imports nothing of its compiler."""
    return _DATA_POINTER.exists and _CONFIG.exists and hasattr(_CONFIG.value, "save_config_portable")


def can_keep_compiled() -> bool:
    """Does this PyTorch have all that keeping compiled graphs on disk needs?"""
    return all(part.exists for part in (_COMPILE_FX, _COMPILE_INNER, _CACHES, _CONTEXT, _IN_CONTEXT))


def inductor_config() -> Mapping[str, Any]:
    """All settings of Inductor that change what it compiles."""
    return _CONFIG.value.save_config_portable()


def data_pointer() -> int:
    """The address of the function that kernels of Inductor call for the elements of a tensor."""
    return _DATA_POINTER.value


def hint_of(size: Any) -> Any:
    """The example that an open size comes from; a number itself."""
    return size.node.hint if isinstance(size, (torch.SymInt, torch.SymFloat, torch.SymBool)) else size


class WithOutput(NamedTuple):
    """A compiled graph, and how Inductor made it."""

    run: Callable[..., Any]
    outputs: Sequence[Any]
    """What Inductor returned for each graph that it was given: one, unless the graph was divided."""
    inputs: Sequence[Any]
    """The arguments of the last of these graphs."""
    metadata: Any
    """What is done around a call of Inductor's code, in PyTorch's own terms."""


def compile_with_output(graph: Any, example: Sequence[torch.Tensor], options: Mapping[str, Any]) -> WithOutput:
    """As `compile_graph`, without the caches of PyTorch."""
    outputs: list[Any] = []
    inputs: list[Any] = []

    def inner_compile(inner: Any, inner_example: Sequence[Any], **named: Any) -> Any:
        inputs[:] = inner_example
        outputs.append(_COMPILE_INNER.value(inner, inner_example, **named))
        return outputs[-1]

    modes = [mode for x in example if (mode := getattr(x, "fake_mode", None)) is not None]
    # As without a context; it is needed for the metadata.
    context = _CONTEXT.value(modes[0] if modes else FAKE_TENSOR_MODE.value(shape_env=None))
    with (
        _CONFIG.value.patch({**options, "fx_graph_cache": False}),
        _CACHES.value.patch(enable_autograd_cache=False),
        _IN_CONTEXT.value(context),
    ):
        run = _COMPILE_FX.value(graph, list(example), inner_compile=inner_compile)
    return WithOutput(run, outputs, inputs, getattr(context, "fw_metadata", None))


def compile_cpp(source: str) -> Any:
    """The library from a C++ source, which Inductor compiles and caches on disk."""
    return _required(_CPP)(source)


def _required(part: Private) -> Any:
    value = part.find()
    if value is None:
        raise part.missing()
    return value


# --- kernels; those of derivatives exist for PyTorch's own autograd

NATIVE_LAYER_NORM = Private("torch.native_layer_norm", _DERIVED)
NATIVE_GROUP_NORM = Private("torch.native_group_norm", _DERIVED)
NATIVE_BATCH_NORM = Private("torch.native_batch_norm", _DERIVED)
LAYER_NORM_BACKWARD = _operator("aten.native_layer_norm_backward")
GROUP_NORM_BACKWARD = _operator("aten.native_group_norm_backward")
BATCH_NORM_BACKWARD = _operator("aten.native_batch_norm_backward")
BATCH_NORM_FUNCTIONAL = _operator("aten._native_batch_norm_legit_functional")
SOFTMAX_BACKWARD = _operator("aten._softmax_backward_data")
LOG_SOFTMAX_BACKWARD = _operator("aten._log_softmax_backward_data")
GELU_BACKWARD = _operator("aten.gelu_backward")
NLL_LOSS = _operator("aten.nll_loss_forward")
NLL_LOSS_BACKWARD = _operator("aten.nll_loss_backward")
CTC_LOSS = _operator("aten._ctc_loss")
CTC_LOSS_BACKWARD = _operator("aten._ctc_loss_backward")
FLASH_ATTENTION = _operator("aten._scaled_dot_product_flash_attention_for_cpu")
FLASH_ATTENTION_BACKWARD = _operator("aten._scaled_dot_product_flash_attention_for_cpu_backward")
CONVOLUTION_BACKWARD = _operator("aten.convolution_backward")
EMBEDDING_BACKWARD = _operator("aten.embedding_dense_backward", "rows are added by `index_add_`")
UNFOLD_BACKWARD = _operator("aten.unfold_backward")
MAX_POOL = {n: _operator(f"aten.max_pool{n}d_with_indices") for n in (2, 3)}
MAX_POOL_BACKWARD = {n: _operator(f"aten.max_pool{n}d_with_indices_backward") for n in (2, 3)}
AVG_POOL = {n: _operator(f"aten.avg_pool{n}d") for n in (2, 3)}
AVG_POOL_BACKWARD = {n: _operator(f"aten.avg_pool{n}d_backward") for n in (2, 3)}
THRESHOLD_BACKWARD = _operator("aten.threshold_backward")
LEAKY_RELU_BACKWARD = _operator("aten.leaky_relu_backward")
ELU = _operator("aten.elu")
ELU_BACKWARD = _operator("aten.elu_backward")
SOFTPLUS_BACKWARD = _operator("aten.softplus_backward")
SILU_BACKWARD = _operator("aten.silu_backward")
MISH_BACKWARD = _operator("aten.mish_backward")
HARDTANH_BACKWARD = _operator("aten.hardtanh_backward")
HARDSWISH_BACKWARD = _operator("aten.hardswish_backward")
SOFTSHRINK_BACKWARD = _operator("aten.softshrink_backward")
HARDSHRINK_BACKWARD = _operator("aten.hardshrink_backward")
TANH_BACKWARD = _operator("aten.tanh_backward")
SIGMOID_BACKWARD = _operator("aten.sigmoid_backward")

FUSED_UPDATES = {
    name: Private(f"torch._fused_{name}_", "updates in parts that fit the cache")
    for name in ("adam", "adamw", "sgd", "adagrad")
}
"""The fused optimizers, by name."""


class Preferred:
    """A class member that is PyTorch's kernel of an operation or, without it, the inherited definition."""

    def __init__(self, part: Private) -> None:
        self._part = part

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner, self._name = owner, name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if self._part.exists:
            return self._part.value
        return getattr(super(self._owner, owner if instance is None else instance), self._name)


def preferred(part: Private) -> Any:
    """PyTorch's kernel as an operation of a backend, if there is one."""
    return Preferred(part)


# --- oneDNN

LINEAR = _operator("mkldnn._linear_pointwise", "PyTorch's own matrix product")
_BFLOAT16 = Private("torch.ops.mkldnn._is_mkldnn_bf16_supported", "convolutions of bf16 are computed in f32")
LSTM = _operator("aten.mkldnn_rnn_layer", "the contract's LSTM, step by step")
LSTM_BACKWARD = _operator("aten.mkldnn_rnn_layer_backward", "the contract's LSTM, step by step")
REORDER_LSTM_WEIGHT = Private(
    "torch.ops.mkldnn._reorder_mkldnn_rnn_layer_weight", "oneDNN brings LSTM weights into its order at every call"
)
_NOT_FOLDED = "constants are not folded into convolutions"
CONVOLUTION = _operator("mkldnn._convolution_pointwise", _NOT_FOLDED)
CONVOLUTION_PLUS = Private("torch.ops.mkldnn._convolution_pointwise.binary", _NOT_FOLDED)
REORDER_CONVOLUTION_WEIGHT = _operator("mkldnn._reorder_convolution_weight", _NOT_FOLDED)


def has_bfloat16() -> bool:
    """Does oneDNN compute with bfloat16 on this processor?"""
    return _BFLOAT16.exists and bool(_BFLOAT16.value())

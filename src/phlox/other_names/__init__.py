"""Names of other libraries and their equivalents in Phlox, for hints in error messages.

The tables of functions, classes, methods and devices are imported only after a failed lookup; that of options is here.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import update_wrapper
from opcode import opmap
from types import FunctionType
from typing import Any, TypeVar, cast

from phlox.errors import KindError

OPTIONS: dict[str, str] = {
    "a_max": "high", "a_min": "low", "accumulate_grad_batches": "accumulate",
    "activation": "nothing: it is a layer of its own, such as phlox.nn.Relu()", "alpha": "slope",
    "axis_names": "nothing: the axes of a mesh have names, Mesh(data=2, model=4)",
    "axis_shapes": "nothing: the axes of a mesh have names, Mesh(data=2, model=4)", "b1": "beta_1", "b2": "beta_2",
    "base_lr": "initial_lr", "batch_first": "nothing: the batch is always first", "batch_sampler": "order",
    "batch_size": "nothing: phlox.data.Loader(rows, batch_size) makes the batches",
    "beta1": "beta_1", "beta2": "beta_2", "betas": "beta_1 and beta_2", "bias_init": "bias_initializer",
    "capturable": "nothing: leave it out", "clipnorm": "nothing: init(grad_clipping=GradientClipping.norm(1.0))",
    "collate_fn": "collate", "data_format": "nothing: channels are on axis 1", "ddof": "correction",
    "decay_steps": "num_iters",
    "deterministic": "nothing: model.train() and model.valid() are views for training and for inference", "dim": "axis",
    "dims": "axis|axes", "dirpath": "folder", "donate_argnames": "donate", "donate_argnums": "donate",
    "dropout_rate": "rate", "dtype": "kind|the backend chooses the dtype: device=Torch(float='bf16')",
    "elementwise_affine": "affine", "embed_dim": "d_model", "embedding_dim": "d_model", "end_dim": "end",
    "end_value": "final_lr|min_lr", "eps": "epsilon", "eta_min": "min_lr", "f": "fn", "feature_group_count": "groups",
    "features": "channels|d_model|d_output|out_channels", "filepath": "folder", "filters": "out_channels",
    "foreach": "nothing: leave it out", "fullgraph": "nothing: leave it out", "fused": "nothing: leave it out",
    "generator": "nothing: draws take the ambient stream, see phlox.random.stream", "gradient_clip_val": "clip",
    "has_aux": "nothing: the function may return (loss, anything)", "hidden_size": "d_hidden", "in_dim": "d_input",
    "in_dims": "in_axes", "in_features": "d_input",
    "inference": "nothing: model.train() and model.valid() are views for training and for inference", "init": "carry",
    "init_value": "initial_lr", "initial_learning_rate": "initial_lr",
    "inplace": "nothing: tensors never change in place", "input": "x", "input_dim": "n_entries|d_input",
    "input_size": "d_input", "keepdim": "keepdims", "kernel": "window", "kernel_dilation": "dilation",
    "kernel_init": "initializer", "kernel_initializer": "initializer", "kernel_size": "kernel|window",
    "key": "nothing: draws take the ambient stream, see phlox.random.stream", "key_dim": "d_head",
    "learning_rate": "lr|nothing: the learning rate is given to each step, optimizer.step(lr, model, grads)",
    "loc": "mean", "loss_fn": "loss",
    "lr": "lr|nothing: the learning rate is given to each step, optimizer.step(lr, model, grads)", "max": "high",
    "max_epochs": "epochs", "max_iter": "num_iters", "max_lr": "initial_lr",
    "max_norm": "nothing: OptimizerAdaptor and configs take grad_clipping", "max_steps": "steps", "max_to_keep": "keep",
    "maxval": "high", "min": "low", "minval": "low", "monitor": "best", "negative_slope": "slope",
    "non_blocking": "nothing: leave it out", "normalized_shape": "d_model", "num_channels": "channels",
    "num_embeddings": "n_entries", "num_epochs": "epochs", "num_features": "channels|d_model|d_output|out_channels",
    "num_groups": "groups", "num_heads": "n_heads", "num_layers": "n_layers", "num_workers": "workers",
    "out_dim": "d_output", "out_dims": "out_axes", "out_features": "d_output", "output_dim": "d_model|d_output",
    "p": "rate", "padding_idx": "padding_index", "padding_mode": "nothing: x.pad(..., mode=...) before the layer",
    "param_dtype": "kind|the backend chooses the dtype: device=Torch(float='bf16')",
    "params": "nothing: the model is given to each step", "persistent_workers": "nothing: leave it out",
    "pin_memory": "nothing: leave it out", "pool_size": "window", "qkv_features": "d_model",
    "requires_grad": "nothing: x.require_grad() afterwards", "restore_best_weights": "restore_best",
    "return_sequences": "nothing: the outputs of all steps and the last state are returned",
    "return_state": "nothing: the outputs of all steps and the last state are returned", "rhs_dilation": "dilation",
    "rngs": "nothing: draws take the ambient stream, see phlox.random.stream", "sampler": "order",
    "save_best_only": "best", "save_top_k": "keep", "scale": "std", "shape": "d_model", "size": "shape",
    "size_average": "reduction", "start_dim": "start",
    "static_argnames": "nothing: what is neither a number nor an array is a constant",
    "static_argnums": "nothing: what is neither a number nor an array is a constant", "strides": "stride",
    "T_max": "num_iters", "total_iters": "num_iters", "total_steps": "num_iters",
    "training": "nothing: model.train() and model.valid() are views for training and for inference",
    "transition_steps": "num_iters", "unbiased": "correction", "units": "d_output|d_hidden", "use_bias": "bias",
    "use_running_average": "nothing: model.train() and model.valid() are views for training and for inference",
    "validation_data": "validation", "validation_split": "nothing: phlox.data.split_rows(rows, 0.9, 0.1)",
    "verbose": "progress", "window_size": "window|kernel",
}  # fmt: skip
"""Options of other libraries -> the option (or options, with |) in Phlox, or a hint, which has a space in it."""


def remark(name: str, table: Mapping[str, str], known: Iterable[str] = ()) -> str:
    """`"; in Phlox: ..."` for a name of another library, the closest known name for a misspelling, or an empty text."""
    found = table.get(name)
    if found is not None:
        return f"; in Phlox: {found}"
    close = get_close_matches(name, [one for one in known if not one.startswith("_")], 1, 0.75)
    return f"; did you mean {close[0]!r}?" if close else ""


def missing(package: str, name: str, known: Iterable[str]) -> AttributeError | ImportError:
    """The error for a missing name of a package, for its `__getattr__` to raise at once.

    `from package import name` tells nothing of an `AttributeError`, so it gets an `ImportError` of the same message.
    """
    text = in_module(package, name, known)
    asks = (frame := inspect.currentframe()) and frame.f_back and frame.f_back.f_back
    imports = asks is not None and asks.f_code.co_code[asks.f_lasti] == opmap.get("IMPORT_FROM")
    if imports and f"{package}.{name}" not in sys.modules:  # which Python takes where imports go in a circle
        return ImportError(text, name=package)
    return AttributeError(text)


def in_module(package: str, name: str, known: Iterable[str]) -> str:
    """The error message for a missing name of a package."""
    from phlox.other_names.modules import FUNCTIONS, METHODS, MODULES

    package = package.replace("phlox.tensor.", "phlox.")
    if package == "phlox" and name in METHODS:
        return f"module 'phlox' has no attribute {name!r}; in Phlox: a method of tensors, x.{name}(...)"
    if package in ("phlox", "phlox.nn") and name in FUNCTIONS:
        return f"module {package!r} has no attribute {name!r}; in Phlox: phlox.functional.{name}"
    return f"module {package!r} has no attribute {name!r}{remark(name, MODULES.get(package, {}), known)}"


def of_object(owner: object, name: str, table: Mapping[str, str], fields: Iterable[str] = ()) -> str:
    """The error message for a missing attribute of an object with these fields, besides the names of its class."""
    text = f"{type(owner).__name__!r} object has no attribute {name!r}"
    return text if name.startswith("_") else text + remark(name, table, [*fields, *dir(type(owner))])


def refuse_options(cls: type[Any], given: Iterable[str]) -> None:
    """Raise `KindError` for an option that is not in the constructor of this class."""
    parameters = inspect.signature(cls.__init__).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    for name in given:
        if name not in parameters:
            raise KindError(_no_option(cls.__name__, name, parameters))


_UNEXPECTED = re.compile(r"got an unexpected keyword argument '(\w+)'")


def of_call(function: Callable[..., Any], arguments: tuple[Any, ...], error: TypeError) -> str | None:
    """A better message than Python's for arguments that a function does not accept; None if Python's is clear.

    It covers options of other libraries, misspelled options, and a shape given as several arguments.
    """
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None
    name, text = function.__qualname__.removesuffix(".__init__").rpartition(".")[2], str(error)
    unexpected = _UNEXPECTED.search(text)
    if unexpected is not None:
        return _no_option(name, unexpected.group(1), parameters)
    shape = next(iter(parameters), "") == "shape" and all(isinstance(x, int) for x in arguments)
    if shape and len(arguments) > 1 and "positional argument" in text:
        return f"{name}: the shape is one argument: {name}({arguments})"
    return None


F = TypeVar("F", bound=Callable[..., Any])


def answering(function: F) -> F:
    """Decorate a function so that an option of another library is answered by Phlox's; for what is called seldom."""
    answer = _answer  # the wrapper must find everything in its closure

    def call(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except TypeError as error:
            better = answer(function, arguments, error)
            if better is None:
                raise
            raise better from None

    # The wrapper has the globals of the wrapped function; otherwise doctest would skip it as imported.
    wrapper = FunctionType(call.__code__, function.__globals__, function.__name__, None, call.__closure__)
    return cast("F", update_wrapper(wrapper, function))


def _answer(function: Callable[..., Any], arguments: tuple[Any, ...], error: TypeError) -> KindError | None:
    """What to raise for an error of the call itself; None for one that was raised inside of the function."""
    trace = error.__traceback__
    text = of_call(function, arguments, error) if trace is not None and trace.tb_next is None else None
    return None if text is None else KindError(text)


def option_remark(name: str, known: Mapping[str, object]) -> str:
    """The hint for an option of another library: a text, or one of the known options."""
    instead = next((one for one in OPTIONS.get(name, "").split("|") if " " in one or one in known), "")
    return f"; in Phlox: {instead}" if instead else ""


def _no_option(called: str, name: str, parameters: Mapping[str, object]) -> str:
    hint = option_remark(name, parameters) or remark(name, {}, parameters)
    taken = ", ".join(one for one in parameters if one != "self")
    return f"{called} has no option {name!r}{hint or f' (it has {taken})'}"

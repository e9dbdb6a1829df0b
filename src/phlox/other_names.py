"""Names of other libraries and their equivalents in Phlox, for hints in error messages.

There are tables for functions, classes, methods, options and devices. They are read only after a failed lookup.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from opcode import opmap
from typing import Any

from phlox.errors import KindError

_RECORD = "phlox.record.save(model.into_record(), path), or model.save(path)"
_MODE = "model.train() and model.valid() return views for training and for inference; nothing is switched in place"
_TAPE = "there is no global tape: compute on model.valid() or x.inner(), or cut with x.detach()"
_DTYPE = "the backend chooses the dtype: device=Torch(float='bf16'), and kind=phlox.Float, Int or Bool"
_RATE = "nothing: the learning rate is given to each step, optimizer.step(lr, model, grads)"
_PARAMETERS = "model.params() or model.named_params(); an optimizer takes the model: optimizer.step(lr, model, grads)"

MODULES: dict[str, dict[str, str]] = {
    "phlox": {
        "PRNGKey": "phlox.random.seed",
        "Parameter": "phlox.Param",
        "Sequential": "phlox.nn.Sequential",
        "Variable": "phlox.Param",
        "array": "phlox.tensor",
        "as_tensor": "phlox.tensor",
        "asarray": "phlox.tensor",
        "autograd": "phlox.grad, phlox.value_and_grad, phlox.vjp, ...",
        "bfloat16": _DTYPE,
        "bmm": "phlox.matmul, or a @ b",
        "bool": "phlox.Bool",
        "cat": "phlox.concat",
        "chunk": "x.chunk(...)",
        "concatenate": "phlox.concat",
        "cuda": "device='torch:gpu:0'",
        "device": "phlox.default_device, or a name: device='torch:gpu:0'",
        "empty": "phlox.zeros",
        "enable_grad": _TAPE,
        "expand_dims": "x.expand_dims(axis)",
        "fit": "phlox.train.Learner(...).fit",
        "float": "phlox.Float",
        "float16": _DTYPE,
        "float32": _DTYPE,
        "float64": _DTYPE,
        "from_numpy": "phlox.tensor",
        "hstack": "phlox.concat(..., axis=-1)",
        "inf": "math.inf",
        "inference_mode": _TAPE,
        "int": "phlox.Int",
        "int32": _DTYPE,
        "int64": _DTYPE,
        "is_tensor": "isinstance(x, phlox.Tensor)",
        "jit": "phlox.compile",
        "load": "phlox.record.load(path), or model.load(path)",
        "long": _DTYPE,
        "manual_seed": "phlox.random.seed",
        "mm": "phlox.matmul, or a @ b",
        "nan": "math.nan",
        "no_grad": _TAPE,
        "norm": "x.norm() or phlox.linalg.norm",
        "pi": "math.pi",
        "rand": "phlox.random.uniform(shape)",
        "randint": "phlox.random.integers",
        "randn": "phlox.random.normal(shape)",
        "randperm": "phlox.random.permutation",
        "relu": "x.relu() or phlox.functional.relu(x)",
        "reshape": "x.reshape(shape)",
        "save": _RECORD,
        "set_grad_enabled": _TAPE,
        "set_random_seed": "phlox.random.seed",
        "softmax": "x.softmax(axis=-1) or phlox.functional.softmax",
        "split": "x.split(...)",
        "stop_gradient": "x.detach()",
        "transpose": "x.permute_dims(...), x.mT or x.swapaxes(...)",
        "tree_map": "module.map, or jax.tree.map",
        "vstack": "phlox.concat(tensors, axis=0)",
    },
    "phlox.nn": {
        "AveragePooling2D": "phlox.nn.AvgPool2d",
        "BCELoss": "phlox.nn.BinaryCrossEntropyLoss",
        "BCEWithLogitsLoss": "phlox.nn.BinaryCrossEntropyWithLogitsLoss",
        "BatchNorm1d": "phlox.nn.BatchNorm, for any number of axes",
        "BatchNorm2d": "phlox.nn.BatchNorm, for any number of axes",
        "BatchNorm3d": "phlox.nn.BatchNorm, for any number of axes",
        "BatchNormalization": "phlox.nn.BatchNorm",
        "CELU": "phlox.nn.Celu",
        "CTCLoss": "phlox.nn.CtcLoss",
        "Conv1D": "phlox.nn.Conv1d",
        "Conv2D": "phlox.nn.Conv2d",
        "DataParallel": "nothing: a model is trained on one device",
        "Dense": "phlox.nn.Linear",
        "Dropout2d": "phlox.nn.Dropout",
        "ELU": "phlox.nn.Elu",
        "GELU": "phlox.nn.Gelu",
        "GRU": "phlox.nn.Gru",
        "KLDivLoss": "phlox.nn.KlDivLoss",
        "LSTM": "phlox.nn.Lstm",
        "Layer": "phlox.Module",
        "LayerNormalization": "phlox.nn.LayerNorm",
        "LeakyReLU": "phlox.nn.LeakyRelu",
        "MSELoss": "phlox.nn.MseLoss",
        "MaxPooling2D": "phlox.nn.MaxPool2d",
        "Module": "phlox.Module",
        "ModuleDict": "a dict: self.parts = {...}",
        "ModuleList": "a list: self.layers = [...]",
        "MultiheadAttention": "phlox.nn.MultiHeadAttention",
        "NLLLoss": "phlox.nn.NllLoss",
        "Parameter": "phlox.Param",
        "ParameterDict": "a dict of phlox.Param",
        "ParameterList": "a list of phlox.Param",
        "RMSNorm": "phlox.nn.RmsNorm",
        "RNN": "phlox.nn.Rnn",
        "ReLU": "phlox.nn.Relu",
        "SELU": "phlox.nn.Selu",
        "SiLU": "phlox.nn.Silu",
        "Swish": "phlox.nn.Silu",
        "init": "the initializers are classes of phlox.nn: KaimingUniform(), XavierNormal(), Zeros(), ...",
        "utils": "gradients are clipped by the optimizer: optim.GradientClipping.norm(1.0)",
    },
    "phlox.optim": {
        "LBFGS": "phlox.optim.LbfgsConfig(...).init()", "RMSprop": "phlox.optim.RmsPropConfig(...).init()",
        "SGD": "phlox.optim.SgdConfig(...).init()", "adam": "phlox.optim.AdamConfig(...).init()",
        "adamw": "phlox.optim.AdamWConfig(...).init()",
        "apply_updates": "optimizer.step(lr, model, grads) returns the new model",
        "chain": "phlox.optim.OptaxAdaptor(optax.chain(...)) takes Optax's transformations",
        "lr_scheduler": "the schedules are classes of phlox.optim: CosineAnnealingLr, StepLr, ...",
        "sgd": "phlox.optim.SgdConfig(...).init()",
    },
    "phlox.random": {
        "PRNGKey": "phlox.random.seed, or phlox.random.stream", "key": "phlox.random.seed, or phlox.random.stream",
        "manual_seed": "phlox.random.seed", "rand": "phlox.random.uniform", "randint": "phlox.random.integers",
        "randn": "phlox.random.normal", "randperm": "phlox.random.permutation",
        "split": "streams need no splitting: with phlox.random.stream(seed): ...",
    },
    "phlox.functional": {
        "cross_entropy_loss": "phlox.functional.cross_entropy", "dense": "phlox.functional.linear",
        "dropout": "phlox.nn.dropout(x, rate)", "one_hot": "phlox.one_hot", "pad": "x.pad(...)",
        "scaled_dot_product_attention": "phlox.functional.attention",
    },
    "phlox.data": {
        "DataLoader": "phlox.data.Loader", "Dataset": "any object with len(source) and source[rows], see docs/data.md",
        "WeightedRandomSampler": "phlox.data.Weighted", "random_split": "phlox.data.split_rows",
        "train_test_split": "phlox.data.split_rows",
    },
    "phlox.train": {
        "BackupAndRestore": "fit(..., folder=..., resume=True)", "CSVLogger": "phlox.train.CsvLogger",
        "DataLoader": "phlox.data.Loader", "ExponentialMovingAverage": "Learner(..., ema=0.999)",
        "GradientAccumulationScheduler": "Learner(..., accumulate=4)", "History": "learner.history",
        "LearningRateFinder": "learner.lr_find(data)",
        "LearningRateMonitor": "nothing: loggers write the rate in each row",
        "LearningRateScheduler": "Learner(..., lr=schedule), with the schedules of phlox.optim",
        "LightningModule": "phlox.Module, and Learner(model, ..., step=...)", "Mean": "phlox.metrics.Mean",
        "Measure": "phlox.metrics.Metric, or a function of outputs and targets",
        "MetricsFile": "phlox.train.JsonlLogger", "ModelCheckpoint": "phlox.train.Checkpoints",
        "ProgbarLogger": "phlox.train.progress()", "ProgressBar": "phlox.train.progress()",
        "ReduceLROnPlateau": "phlox.train.ReduceOnPlateau, with lr=phlox.optim.ReduceOnPlateauLr(...)",
        "RichProgressBar": "phlox.train.progress()", "StepReport": "the learner itself: learner.step, learner.loss",
        "StochasticWeightAveraging": "Learner(..., ema=0.999)", "TQDMProgressBar": "phlox.train.progress()",
        "TensorBoard": "phlox.train.TensorBoardLogger", "TerminateOnNaN": "phlox.train.NanGuard",
        "Timer": "phlox.train.StopAfter(seconds=...), or fit(..., time=...)", "Trainer": "phlox.train.Learner",
        "WandbCallback": "phlox.train.WandbLogger", "accuracy": "phlox.metrics.Accuracy()",
    },
}  # fmt: skip
"""By package: a name of another library -> the equivalent in Phlox."""

TENSOR: dict[str, str] = {
    "H": "x.mT",
    "add": "x + y",
    "add_": "x + y: tensors never change in place",
    "addmm": "x @ y + b",
    "astype": "x.float(), x.int(), x.bool()",
    "block_until_ready": "x.numpy() or x.item(), which wait",
    "bmm": "x @ y",
    "clone": "tensors are immutable: use x itself",
    "contiguous": "not needed: leave it out",
    "copy": "tensors are immutable: use x itself",
    "copy_": "tensors never change in place: use the new tensor",
    "cpu": "x.numpy() reads the values; x.to_device('torch:cpu') moves it",
    "cuda": "x.to_device('torch:gpu:0')",
    "data": "x.detach()",
    "detach_": "x.detach(), which returns a new tensor",
    "dim": "x.ndim",
    "div": "x / y",
    "double": "the backend chooses the precision: x.to_device(NumPy(float='f64'))",
    "dtype": "x.kind, and x.backend for its precision",
    "eq": "x == y",
    "fill_": "phlox.full_like(x, value): tensors never change in place",
    "ge": "x >= y",
    "grad_fn": "x.is_require_grad()",
    "gt": "x > y",
    "half": "the backend chooses the precision: x.to_device(Torch(float='f16'))",
    "index_add_": "x.at[index].add(values)",
    "index_select": "x.take(indices, axis)",
    "is_cuda": "x.device",
    "le": "x <= y",
    "long": "x.int()",
    "lt": "x < y",
    "mm": "x @ y",
    "mul": "x * y",
    "mul_": "x * y: tensors never change in place",
    "ndimension": "x.ndim",
    "ne": "x != y",
    "nelement": "x.size",
    "numel": "x.size",
    "permute": "x.permute_dims(*axes)",
    "register_hook": "phlox.custom_gradient can change a gradient",
    "repeat_interleave": "x.repeat(...)",
    "requires_grad": "x.is_require_grad()",
    "requires_grad_": "x.require_grad(), which returns the leaf",
    "scatter_": "x.at[index].set(values)",
    "scatter_add_": "x.at[index].add(values)",
    "sub": "x - y",
    "t": "x.T",
    "to": "x.to_device(device) for another device; x.float(), x.int(), x.bool() for another kind",
    "transpose": "x.swapaxes(a, b), x.mT or x.permute_dims(*axes)",
    "type": "x.float(), x.int(), x.bool()",
    "unsqueeze": "x.expand_dims(axis)",
    "view": "x.reshape(shape)",
    "zero_": "phlox.zeros_like(x): tensors never change in place",
    "zero_grad": "gradients are returned by backward(), and not stored: there is nothing to zero",
}
"""Array methods of other libraries -> the equivalent in Phlox."""

MODULE: dict[str, str] = {
    "apply": "model.map(lambda path, param: ...)",
    "children": "children are its fields",
    "compile": "phlox.compile(step)",
    "cpu": "model.to_device('torch:cpu')",
    "cuda": "model.to_device('torch:gpu:0')",
    "eval": _MODE,
    "evaluate": "phlox.train.Learner(model, ...).evaluate(...)",
    "fit": "phlox.train.Learner(model, ...).fit(...)",
    "get_weights": "model.into_record()",
    "half": "model.to_device(Torch(float='f16'))",
    "load_state_dict": "model.load_record(record), model.load(path); for PyTorch's files phlox.interop.pytorch.load",
    "load_weights": "model.load(path)",
    "modules": "model.named_params() walks parameters; children are its fields",
    "named_modules": "model.named_params() walks parameters",
    "named_parameters": "model.named_params()",
    "parameters": _PARAMETERS,
    "predict": "model.valid()(x)",
    "register_buffer": "self.name = phlox.Param(value, trained=False)",
    "register_forward_hook": "subclass the layer, or write a module that calls it",
    "register_parameter": "self.name = phlox.Param(value)",
    "requires_grad_": "model.freeze() and model.unfreeze()",
    "save_weights": "model.save(path)",
    "set_weights": "model.load_record(record)",
    "state_dict": "model.into_record(), model.save(path)",
    "to": "model.to_device(device)",
    "trainable": "model.freeze() and model.unfreeze()",
    "trainable_variables": _PARAMETERS,
    "variables": "model.params()",
    "weights": "model.params()",
    "zero_grad": "gradients are returned by backward(), and not stored: there is nothing to zero",
}
"""Module methods of other libraries -> the equivalent in Phlox."""

OPTIMIZER: dict[str, str] = {
    "learning_rate": "the learning rate is given to each step: optimizer.step(lr, model, grads)",
    "load_state_dict": "optimizer.load_record(record), or phlox.record.restore",
    "lr": "the learning rate is given to each step: optimizer.step(lr, model, grads)",
    "minimize": "optimizer.step(lr, model, grads); only Lbfgs has minimize",
    "param_groups": "groups of the config, OptimizerAdaptor(..., groups=[...])",
    "state_dict": "optimizer.into_record(), or phlox.record.gather(model=model, optimizer=optimizer)",
    "update": "optimizer.step(lr, model, grads), which returns the new model",
    "zero_grad": "gradients are returned by backward(), and not stored: there is nothing to zero",
}
"""Optimizer methods and fields of other libraries -> the equivalent in Phlox."""

EVENTS: dict[str, str] = {
    "on_batch_begin": "on_step_end, of the step before", "on_batch_end": "on_step_end",
    "on_epoch_begin": "on_epoch_start", "on_evaluate": "on_validation_end",
    "on_load_checkpoint": "restore(state), or load_record(record)", "on_log": "a phlox.train.Logger, with write(row)",
    "on_save": "on_checkpoint", "on_save_checkpoint": "state(), or into_record()",
    "on_step_begin": "on_step_end, of the step before", "on_step_start": "on_step_end, of the step before",
    "on_test_begin": "on_validation_start", "on_test_end": "on_validation_end",
    "on_train_batch_begin": "on_step_end, of the step before", "on_train_batch_end": "on_step_end",
    "on_train_batch_start": "on_step_end, of the step before", "on_train_begin": "on_fit_start",
    "on_train_end": "on_fit_end", "on_train_epoch_end": "on_epoch_end", "on_train_epoch_start": "on_epoch_start",
    "on_train_start": "on_fit_start", "on_validation_begin": "on_validation_start",
    "on_validation_epoch_end": "on_validation_end", "on_validation_epoch_start": "on_validation_start",
}  # fmt: skip
"""Methods of callbacks of other libraries -> those of `phlox.train.Callback`."""

OPTIONS: dict[str, str] = {
    "alpha": "slope",
    "b1": "beta_1",
    "b2": "beta_2",
    "batch_first": "nothing: the batch is always first",
    "betas": "beta_1 and beta_2",
    "bias_init": "bias_initializer",
    "clipnorm": "nothing: init(grad_clipping=GradientClipping.norm(1.0))",
    "dim": "axis",
    "dims": "axis|axes",
    "dropout_rate": "rate",
    "dtype": "kind",
    "elementwise_affine": "affine",
    "embed_dim": "d_model",
    "embedding_dim": "d_model",
    "eps": "epsilon",
    "filters": "out_channels",
    "hidden_size": "d_hidden",
    "in_dim": "d_input",
    "in_features": "d_input",
    "inplace": "nothing: tensors never change in place",
    "input": "x",
    "input_size": "d_input",
    "keepdim": "keepdims",
    "kernel": "window",
    "kernel_init": "initializer",
    "kernel_initializer": "initializer",
    "kernel_size": "kernel|window",
    "key": "nothing: draws take the ambient stream, see phlox.random.stream",
    "learning_rate": _RATE,
    "lr": _RATE,
    "max_norm": "nothing: OptimizerAdaptor and configs take grad_clipping",
    "negative_slope": "slope",
    "normalized_shape": "d_model",
    "num_channels": "channels",
    "num_embeddings": "n_entries",
    "num_features": "channels",
    "num_groups": "groups",
    "num_heads": "n_heads",
    "num_layers": "n_layers",
    "out_dim": "d_output",
    "out_features": "d_output",
    "p": "rate",
    "padding_idx": "padding_index",
    "params": "nothing: the model is given to each step",
    "pool_size": "window",
    "requires_grad": "nothing: x.require_grad() afterwards",
    "rngs": "nothing: draws take the ambient stream, see phlox.random.stream",
    "size": "shape",
    "strides": "stride",
    "units": "d_output|d_hidden",
    "use_bias": "bias",
    "window_size": "window|kernel",
}
"""Options of other libraries -> the option (or options, with |) in Phlox, or a hint."""

_METHODS = frozenset([
    "abs", "acos", "all", "any", "argmax", "argmin", "argsort", "asin", "atan", "bincount", "ceil", "clip", "cos",
    "cosh", "cumprod", "cumsum", "erf", "exp", "expm1", "flatten", "flip", "floor", "isfinite", "isinf", "isnan",
    "log", "log10", "log1p", "log2", "log_softmax", "logsumexp", "max", "mean", "median", "min", "nan_to_num",
    "nonzero", "pad", "permute_dims", "prod", "quantile", "reshape", "roll", "round", "rsqrt", "sigmoid", "sign",
    "sin", "sinh", "sort", "sqrt", "square", "squeeze", "std", "sum", "swapaxes", "take", "tan", "tanh", "tile",
    "topk", "tril", "triu", "unique", "var",
])  # fmt: skip
_FUNCTIONS = frozenset([
    "avg_pool2d", "binary_cross_entropy", "celu", "conv1d", "conv2d", "cosine_similarity", "elu", "gelu", "glu",
    "interpolate", "layer_norm", "leaky_relu", "log_sigmoid", "log_softmax", "max_pool2d", "normalize", "relu",
    "relu6", "selu", "sigmoid", "silu", "softmax", "softplus", "tanh",
])  # fmt: skip

DEVICES: Mapping[str, str] = {
    "cpu": "'numpy', 'jax:cpu' or 'torch:cpu'", "cuda": "'torch:gpu:0' or 'jax:gpu:0'",
    "gpu": "'torch:gpu:0' or 'jax:gpu:0'", "mps": "'torch:mps'", "np": "'numpy'", "pytorch": "'torch'",
    "rocm": "'torch:gpu:0'", "tensorflow": "'jax'", "tpu": "'jax:tpu:0'", "xla": "'jax'",
}  # fmt: skip
"""Device names of other libraries -> those of Phlox."""


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
    package = package.replace("phlox.tensor.", "phlox.")
    if package == "phlox" and name in _METHODS:
        return f"module 'phlox' has no attribute {name!r}; in Phlox: a method of tensors, x.{name}(...)"
    if package in ("phlox", "phlox.nn") and name in _FUNCTIONS:
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
    name, text = function.__name__, str(error)
    unexpected = _UNEXPECTED.search(text)
    if unexpected is not None:
        return _no_option(name, unexpected.group(1), parameters)
    shape = next(iter(parameters), "") == "shape" and all(isinstance(x, int) for x in arguments)
    if shape and len(arguments) > 1 and "positional argument" in text:
        return f"{name}: the shape is one argument: {name}({arguments})"
    return None


def option_remark(name: str, known: Mapping[str, object]) -> str:
    """The hint for an option of another library: a text, or one of the known options."""
    instead = OPTIONS.get(name, "")
    if " " not in instead:  # a name, which must be a known option
        instead = next((one for one in instead.split("|") if one in known), "")
    return f"; in Phlox: {instead}" if instead else ""


def _no_option(called: str, name: str, parameters: Mapping[str, object]) -> str:
    hint = option_remark(name, parameters) or remark(name, {}, parameters)
    taken = ", ".join(one for one in parameters if one != "self")
    return f"{called} has no option {name!r}{hint or f' (it has {taken})'}"

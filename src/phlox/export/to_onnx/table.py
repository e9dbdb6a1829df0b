"""The table from operations of the contract to ONNX operators, one line for each operation.

An operation without a line is exported by its definition in the contract. Rules with more than one operator are in the
modules beside this one, by family.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

from phlox.export.to_onnx import elementwise, loops, moving, pooling, products, reductions

Rule: TypeAlias = Callable[..., Any]
"""`(A, *arguments)`: the result on the engine A."""

OPERATORS: dict[str, str] = {
    # arithmetic
    "float_add": "Add", "float_sub": "Sub", "float_mul": "Mul", "float_div": "Div", "float_pow": "Pow",
    "float_maximum": "Max", "float_minimum": "Min", "float_neg": "Neg", "float_abs": "Abs", "float_sign": "Sign",
    "float_floor": "Floor", "float_ceil": "Ceil", "float_round": "Round", "float_exp": "Exp", "float_log": "Log",
    "float_sqrt": "Sqrt", "float_reciprocal": "Reciprocal", "float_isnan": "IsNaN", "float_isinf": "IsInf",
    "int_add": "Add", "int_sub": "Sub", "int_mul": "Mul", "int_pow": "Pow", "int_maximum": "Max",
    "int_minimum": "Min", "int_neg": "Neg", "int_abs": "Abs", "int_sign": "Sign", "int_mod": "Mod",
    # functions
    "float_sin": "Sin", "float_cos": "Cos", "float_tan": "Tan", "float_asin": "Asin", "float_acos": "Acos",
    "float_atan": "Atan", "float_sinh": "Sinh", "float_cosh": "Cosh", "float_asinh": "Asinh", "float_acosh": "Acosh",
    "float_atanh": "Atanh", "float_tanh": "Tanh", "float_erf": "Erf",
    # activations
    "float_sigmoid": "Sigmoid", "float_relu": "Relu", "float_softplus": "Softplus", "float_softsign": "Softsign",
    "float_hardswish": "HardSwish", "float_mish": "Mish",
    # comparisons
    "float_equal": "Equal", "float_less": "Less", "float_less_equal": "LessOrEqual", "float_greater": "Greater",
    "float_greater_equal": "GreaterOrEqual", "int_equal": "Equal", "int_less": "Less", "int_less_equal": "LessOrEqual",
    "int_greater": "Greater", "int_greater_equal": "GreaterOrEqual",
    # logic and bits
    "bool_and": "And", "bool_or": "Or", "bool_xor": "Xor", "bool_not": "Not", "bool_equal": "Equal",
    "int_and": "BitwiseAnd", "int_or": "BitwiseOr", "int_xor": "BitwiseXor", "int_not": "BitwiseNot",
    # kinds
    "float_into_int": "Cast", "float_into_bool": "Cast", "int_into_float": "Cast", "int_into_bool": "Cast",
    "bool_into_int": "Cast", "bool_into_float": "Cast",
}  # fmt: skip
"""Elementwise operations that are one operator."""


def _both(name: str, rule: Rule) -> dict[str, Rule]:
    """One rule for the operations on floats and on integers."""
    return {f"{kind}_{name}": rule for kind in ("float", "int")}


RULES: dict[str, Rule] = {
    # elementwise
    **{name: elementwise.operator(name, op) for name, op in OPERATORS.items()},
    "float_expm1": elementwise.expm1,  # Exp - 1, where that loses no digits; otherwise by Tanh
    "float_log1p": elementwise.log1p,  # Log, corrected for the rounding of 1 + x
    "float_fmod": elementwise.fmod,  # Mod with fmod=1
    "float_clip": elementwise.clip("float"),  # Clip
    "int_clip": elementwise.clip("int"),  # Clip
    "int_floordiv": elementwise.floordiv,  # Div, corrected by Mod
    "where": elementwise.where,  # Where
    "float_leaky_relu": elementwise.leaky_relu,  # LeakyRelu
    "float_prelu": elementwise.prelu,  # PRelu
    "float_elu": elementwise.elu,  # Elu, Selu, Celu
    "float_hardsigmoid": elementwise.hardsigmoid,  # HardSigmoid
    "float_softshrink": elementwise.shrink(soft=True),  # Shrink
    "float_hardshrink": elementwise.shrink(soft=False),  # Shrink
    "gelu": elementwise.gelu,  # Gelu
    "detach": elementwise.same,
    "barrier": elementwise.same,
    "rounded": elementwise.same,
    # moving elements
    "reshape": moving.reshape,  # Reshape
    "expand_dims": moving.expand_dims,  # Unsqueeze
    "squeeze": moving.squeeze,  # Squeeze
    "permute_dims": moving.permute_dims,  # Transpose
    "broadcast_to": moving.broadcast_to,  # Expand
    "tile": moving.tile,  # Tile
    "flip": moving.flip,  # Slice, backwards
    "concat": moving.concat,  # Concat
    "pad": moving.pad,  # Pad
    "extend": moving.extend,  # Pad
    "index": moving.index,  # Slice, Gather
    "take": moving.take,  # Gather
    "take_along_axis": moving.take_along_axis,  # GatherElements
    "float_scatter": moving.scatter("float"),  # ScatterND
    "int_scatter": moving.scatter("int"),  # ScatterND
    # reductions
    **_both("sum", reductions.reduction("ReduceSum")),
    "float_mean": reductions.mean,
    **_both("prod", reductions.reduction("ReduceProd")),
    **_both("max", reductions.reduction("ReduceMax")),
    **_both("min", reductions.reduction("ReduceMin")),
    "bool_any": reductions.any_of,  # ReduceSum
    "bool_all": reductions.all_of,  # ReduceSum
    **_both("argmax", reductions.arg_reduction("ArgMax")),
    **_both("argmin", reductions.arg_reduction("ArgMin")),
    **_both("cumsum", reductions.cumsum),  # CumSum
    "float_cumprod": loops.cumulative("float_cumprod", "float_mul", 1.0),  # Scan
    "int_cumprod": loops.cumulative("int_cumprod", "int_mul", 1),  # Scan
    "float_cummax": loops.cumulative("float_cummax", "float_maximum", -math.inf),  # Scan
    "int_cummax": loops.cumulative("int_cummax", "int_maximum", -math.inf),  # Scan
    "float_cummin": loops.cumulative("float_cummin", "float_minimum", math.inf),  # Scan
    "int_cummin": loops.cumulative("int_cummin", "int_minimum", math.inf),  # Scan
    "float_logcumsumexp": loops.cumulative("float_logcumsumexp", "_log_add", -math.inf),  # Scan
    "softmax": reductions.along("Softmax"),
    "log_softmax": reductions.along("LogSoftmax"),
    **_both("argsort", reductions.argsort),  # TopK
    **_both("argtopk", reductions.argtopk),  # TopK
    # products
    **_both("matmul", products.matmul),  # MatMul
    "linear": products.linear,  # Gemm, or MatMul and Add
    "conv": products.conv,  # Conv
    "conv_dx": products.conv_dx,  # ConvTranspose
    "det": products.det,  # Det
    "attention": products.attention,  # Attention, or MatMul, Softmax and MatMul
    # norms
    "layer_norm": products.layer_norm,  # LayerNormalization
    "rms_norm": products.rms_norm,  # RMSNormalization
    "group_norm": products.group_norm,  # InstanceNormalization
    # pooling and resampling
    "max_pool": pooling.max_pool,  # MaxPool
    "avg_pool": pooling.avg_pool,  # AveragePool
    "adaptive_max_pool": pooling.adaptive_max_pool,  # GlobalMaxPool
    "adaptive_avg_pool": pooling.adaptive_avg_pool,  # GlobalAveragePool
    "interpolate": pooling.interpolate,  # Resize
    "grid_sample": pooling.grid_sample,  # GridSample
    # recurrent layers
    "lstm": loops.lstm,  # LSTM
    "gru": loops.gru,  # GRU
    "rnn": loops.rnn,  # RNN
    "frame": moving.frame,
}

FROM_NOTHING: dict[str, Rule] = {
    "float_full": elementwise.full("float"),  # Expand
    "int_full": elementwise.full("int"),  # Expand
    "bool_full": elementwise.full("bool"),  # Expand
    "int_arange": elementwise.arange,  # Range
    "random_uniform": elementwise.refuse_random,
    "random_normal": elementwise.refuse_random,
    "random_bernoulli": elementwise.refuse_random,
    "random_integers": elementwise.refuse_random,
    "random_permutation": elementwise.refuse_random,
}  # fmt: skip
"""Operations that take no array; with known sizes, they are a constant."""

SOUND_AT_HALF = frozenset({
    "softmax", "log_softmax", "layer_norm", "rms_norm", "group_norm", "max_pool", "avg_pool", "adaptive_max_pool",
    "adaptive_avg_pool", "float_max", "float_min",
})  # fmt: skip
"""Operators that runtimes accumulate at full precision by themselves."""

FULL_AT_BF16 = frozenset({
    "conv", "conv_dx", "group_norm", "max_pool", "avg_pool", "adaptive_max_pool", "adaptive_avg_pool", "float_softplus",
    "float_softsign", "float_mish", "float_hardswish", "float_hardsigmoid", "float_elu", "float_hardshrink",
    "float_softshrink", "float_tan", "float_asin", "float_acos", "float_atan", "float_sinh", "float_cosh",
    "float_asinh", "float_acosh", "float_atanh", "float_sin", "float_cos", "det", "float_round", "float_isinf",
    "float_argtopk", "float_argsort", "float_leaky_relu", "float_prelu", "interpolate", "grid_sample", "gelu",
})  # fmt: skip
"""Operators that are not defined for bf16, in all or in older operator sets: they run in f32, between casts."""

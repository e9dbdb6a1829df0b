# pyright: strict, reportUnnecessaryTypeIgnoreComment=true
"""What a type checker must infer and must refuse; `test_typing.py` runs one on this file. Nothing here is called."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, assert_type

import numpy as np

import phlox as px
from phlox.backend import Autodiff, Device, Jax, NumPy, Torch
from phlox.tensor import Gradients

FloatTensor = px.Tensor[Any, Any, px.Float]
IntTensor = px.Tensor[Any, Any, px.Int]
BoolTensor = px.Tensor[Any, Any, px.Bool]


def kinds(x: px.Tensor, i: px.Tensor[Any, Any, px.Int], b: px.Tensor[Any, Any, px.Bool]) -> None:
    assert_type(x, FloatTensor)  # Float, unless said
    assert_type(x + 1, FloatTensor)
    assert_type(2.0 * x - x / 3, FloatTensor)
    assert_type(x**2, FloatTensor)
    assert_type(i // 2 + i, IntTensor)
    assert_type(x > 0, BoolTensor)
    assert_type(x == x, BoolTensor)
    assert_type(i <= 3, BoolTensor)
    assert_type(~b & b | b, BoolTensor)
    assert_type(x.argmax(), IntTensor)
    assert_type(x.argmin(-1), IntTensor)
    assert_type(x.isnan(), BoolTensor)
    assert_type(x.sum((0, 1), keepdims=True), FloatTensor)
    assert_type(i.max(), IntTensor)
    assert_type(b.any(-1), BoolTensor)
    assert_type(x.relu().softmax(-1).log(), FloatTensor)
    assert_type(x.int(), IntTensor)
    assert_type(i.float(), FloatTensor)
    assert_type(x.bool(), BoolTensor)
    assert_type(x[0, ..., None, ::2], FloatTensor)
    assert_type(i[i], IntTensor)
    assert_type(x.take(i, 1), FloatTensor)
    assert_type(x @ x.T, FloatTensor)
    assert_type(iter(x), Iterator[FloatTensor])
    assert_type(x.split(2), list[FloatTensor])
    assert_type(x.shape, tuple[int, ...])
    assert_type(x.ndim, int)
    assert_type(bool(x.sum() > 0.0), bool)
    assert_type(x.is_require_grad(), bool)


def functions(x: px.Tensor, i: px.Tensor[Any, Any, px.Int], b: px.Tensor[Any, Any, px.Bool]) -> None:
    assert_type(px.zeros((2, 3)), FloatTensor)
    assert_type(px.arange(3), IntTensor)
    assert_type(px.full((2,), 1.0), FloatTensor)
    assert_type(px.full((2,), 1), IntTensor)
    assert_type(px.full((2,), True), BoolTensor)
    assert_type(px.zeros_like(i), IntTensor)
    assert_type(px.one_hot(i, 3), FloatTensor)
    assert_type(px.where(b, x, 0.0), FloatTensor)
    assert_type(px.where(b, 0, i), IntTensor)
    assert_type(px.concat([x, x]), FloatTensor)
    assert_type(px.stack([i, i], -1), IntTensor)
    assert_type(px.maximum(x, 0.0), FloatTensor)
    assert_type(px.functional.linear(x, x, None), FloatTensor)
    assert_type(px.functional.cross_entropy(x, i).mean(), FloatTensor)
    assert_type(px.random.bernoulli((2,), 0.5), BoolTensor)
    assert_type(px.random.permutation(4), IntTensor)


def gradients(x: px.Tensor) -> None:
    assert_type((x * x).sum().backward(), Gradients)
    assert_type(x.grad(x.backward()), FloatTensor | None)
    assert_type(px.tensor(1.0).to_device(Autodiff(NumPy()).device()), px.Tensor[Any, Any, Any])


def precision(x: px.Tensor[NumPy], i: px.Tensor[Any, Any, px.Int]) -> None:
    assert_type(x.to_full_precision(), FloatTensor)
    assert_type(x.to_full_precision().from_full_precision(x), FloatTensor)
    assert_type(i.from_full_precision(Torch(float="bf16")), IntTensor)
    assert_type(i.to_device("jax"), IntTensor)


def interop(values: Any, x: px.Tensor) -> None:
    assert_type(px.from_dlpack(values, device="torch", copy=False), px.Tensor[Any, Any, Any])
    assert_type(px.tensor(values, kind=px.Int), px.Tensor[Any, Any, Any])
    assert_type(x.numpy(), np.ndarray[Any, Any])


def families(x: px.Tensor, i: px.Tensor[Any, Any, px.Int], b: px.Tensor[Any, Any, px.Bool]) -> None:
    assert_type(x.sort(-1), FloatTensor)
    assert_type(i.sort(), IntTensor)
    assert_type(x.argsort(0), IntTensor)
    assert_type(x.topk(2), tuple[FloatTensor, IntTensor])
    assert_type(x.cumprod(0), FloatTensor)
    assert_type(x.quantile(0.5), FloatTensor)
    assert_type(x.norm(), FloatTensor)
    assert_type(b.count_nonzero(), IntTensor)
    assert_type(i & 1, IntTensor)
    assert_type(i << 2, IntTensor)
    assert_type(i @ i, IntTensor)
    assert_type(x.flip(0).roll(1, 0), FloatTensor)
    assert_type(x.tile((2, 1)), FloatTensor)
    assert_type(x[b], FloatTensor)
    assert_type(x[i, i], FloatTensor)
    assert_type(x.masked_fill(b, 0.0), FloatTensor)
    assert_type(px.arange(0.0, 1.0, 0.1), FloatTensor)
    assert_type(px.zeros((2,), kind=px.Int), IntTensor)
    assert_type(px.linspace(0.0, 1.0, 5), FloatTensor)
    assert_type(px.einsum("ij,jk->ik", x, x), FloatTensor)
    assert_type(px.linalg.solve(x, x), FloatTensor)
    assert_type(px.functional.conv2d(x, x), FloatTensor)
    assert_type(px.functional.attention(x, x, x), FloatTensor)


def devices() -> None:
    assert_type(NumPy(float="f64").device(), Device)
    assert_type(Jax(float="bf16").device("gpu:0"), Device)
    assert_type(Torch(int="i64").name, str)


def known(x: px.Tensor[NumPy], y: px.Tensor) -> px.Tensor:
    assert_type(x * 2.0, px.Tensor[NumPy, Any, px.Float])
    return x + y  # a backend that is known goes with one that is not


def refused(x: px.Tensor, i: px.Tensor[Any, Any, px.Int], b: px.Tensor[Any, Any, px.Bool]) -> None:
    x + i  # pyright: ignore[reportOperatorIssue, reportUnusedExpression]
    x @ i  # pyright: ignore[reportOperatorIssue, reportUnusedExpression]
    x.maximum(i)  # pyright: ignore[reportArgumentType]
    x < "a"  # pyright: ignore[reportOperatorIssue, reportUnusedExpression]  # noqa: B015
    x.sum("a")  # pyright: ignore[reportArgumentType]
    x.take(x)  # pyright: ignore[reportArgumentType]
    x[0.5]  # pyright: ignore[reportArgumentType]
    px.where(x, x, x)  # pyright: ignore[reportCallIssue, reportArgumentType]
    px.concat([x], "a")  # pyright: ignore[reportArgumentType]
    px.functional.linear(i, x)  # pyright: ignore[reportArgumentType]
    px.functional.cross_entropy(x, 3)  # pyright: ignore[reportArgumentType]
    x.from_full_precision("f32")  # pyright: ignore[reportArgumentType]
    x.to_device(3)  # pyright: ignore[reportArgumentType]
    px.from_dlpack(x, copy="no")  # pyright: ignore[reportArgumentType]
    x.sort(axis="a")  # pyright: ignore[reportArgumentType]
    px.linspace("a", 1.0, 3)  # pyright: ignore[reportArgumentType]
    px.einsum(x, x)  # pyright: ignore[reportArgumentType]
    NumPy(float="f16x")  # pyright: ignore[reportArgumentType]
    px.zeros(3)
    px.full((2,), "a")  # pyright: ignore[reportCallIssue, reportArgumentType]
    b.require_grad().shape = (2,)  # pyright: ignore[reportAttributeAccessIssue]

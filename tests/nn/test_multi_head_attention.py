"""Attention with several heads against PyTorch's, its cache against itself without one, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import phlox as px
from phlox import nn
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch
from phlox.errors import ConfigError, KindError, PhloxError, RangeError, ShapeError
from phlox.record import JsonRecorder

BACKENDS: list[Backend] = [NumPy(float="f64"), Torch(float="f64"), NumPy(), Jax(), Torch()]

PLAIN: list[Backend] = [NumPy(), Jax(), Torch()]

RNG = np.random.default_rng(0)

D, HEADS, BATCH, N, M = 8, 2, 3, 5, 7


def tolerances(backend: Backend) -> dict[str, Any]:
    return {"rtol": 1e-8, "atol": 1e-10} if "f64" in repr(backend) else {"rtol": 1e-4, "atol": 1e-5}


def floats(values: Any, device: Any) -> px.Tensor:
    return px.tensor(np.asarray(values), device=device, kind=px.Float)


def values_of(param: px.Param) -> torch.Tensor:
    return torch.tensor(param.val().numpy().astype(np.float64))


def twin(layer: nn.MultiHeadAttention) -> torch.nn.MultiheadAttention:
    """PyTorch's with the same weights, biases that are not zero included."""
    for param in layer.params():
        if param.shape == (D,):
            param.set(floats(RNG.normal(size=D), param.device))
    made = torch.nn.MultiheadAttention(D, HEADS, batch_first=True, dtype=torch.float64, bias=layer.out.bias is not None)
    parts = (layer.query, layer.key, layer.value)
    made.in_proj_weight.data = torch.cat([values_of(part.weight).T for part in parts])
    made.out_proj.weight.data = values_of(layer.out.weight).T
    if layer.out.bias is not None:
        made.in_proj_bias.data = torch.cat([values_of(part.bias) for part in parts if part.bias is not None])
        made.out_proj.bias.data = values_of(layer.out.bias)
    return made


SEEN = RNG.random((BATCH, 1, N, M)) < 0.7

SEEN[..., 0] = True  # PyTorch gives NaN where nothing is seen

ADDED = RNG.normal(size=(BATCH, HEADS, N, M))

CASES: dict[str, tuple[dict[str, Any], bool, Any]] = {
    "to itself": ({}, False, None),
    "causal": ({"causal": True}, False, None),
    "to another": ({}, True, None),
    "no bias": ({"bias": False}, True, None),
    "hidden": ({}, True, SEEN),
    "added": ({}, True, ADDED),
}


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
@pytest.mark.parametrize("case", CASES)
def test_against_pytorch(case: str, backend: Backend) -> None:
    options, other, mask = CASES[case]
    device = Autodiff(backend).device()
    layer = nn.MultiHeadAttention(D, HEADS, device=device, **options).init(1)
    theirs = twin(layer)
    query, memory = RNG.normal(size=(BATCH, N, D)), RNG.normal(size=(BATCH, M, D))
    x, m = floats(query, device).require_grad(), floats(memory, device).require_grad()
    tx, tm = torch.tensor(query, requires_grad=True), torch.tensor(memory, requires_grad=True)
    ours = None if mask is None else px.tensor(mask, device=device)
    expected_mask = None
    if mask is not None:
        expected_mask = torch.tensor(np.broadcast_to(mask, (BATCH, HEADS, N, M)).reshape(-1, N, M))
        expected_mask = ~expected_mask if mask.dtype == bool else expected_mask
    elif layer.causal:
        expected_mask = torch.ones(N, N).tril() == 0
    y = layer(x, m, mask=ours) if other else layer(x, mask=ours)
    source = tm if other else tx
    expected = theirs(tx, source, source, need_weights=False, attn_mask=expected_mask)[0]
    close = tolerances(backend)
    np.testing.assert_allclose(y.numpy(), expected.detach().numpy(), **close)
    cotangent = RNG.normal(size=y.shape)
    grads = y.backward(floats(cotangent, backend))
    expected.backward(torch.tensor(cotangent))
    close["atol"] *= 10
    for leaf, reference in ((x, tx), (m, tm)) if other else ((x, tx),):
        gradient = leaf.grad(grads)
        assert gradient is not None and reference.grad is not None
        np.testing.assert_allclose(gradient.numpy(), reference.grad.numpy(), **close)
    assert theirs.in_proj_weight.grad is not None and theirs.out_proj.weight.grad is not None
    wanted = [part.T for part in theirs.in_proj_weight.grad.numpy().reshape(3, D, D)]
    for part, want in zip(
        (layer.query, layer.key, layer.value, layer.out), [*wanted, theirs.out_proj.weight.grad.numpy().T], strict=True
    ):
        found = part.weight.val().grad(grads)
        assert found is not None
        np.testing.assert_allclose(found.numpy(), want, **close)


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
def test_groups_share_keys(backend: Backend) -> None:
    layer = nn.MultiHeadAttention(D, 4, n_kv_heads=2, d_head=6, causal=True, device=backend).init(2)
    assert layer.key.weight.shape == (D, 12) and layer.query.weight.shape == (D, 24)
    x = RNG.normal(size=(BATCH, N, D))

    def heads(part: nn.Linear, count: int) -> torch.Tensor:
        assert part.bias is not None
        y = torch.tensor(x) @ values_of(part.weight) + values_of(part.bias)
        return y.reshape(BATCH, N, count, 6).transpose(1, 2)

    attend = torch.nn.functional.scaled_dot_product_attention
    y = attend(heads(layer.query, 4), heads(layer.key, 2), heads(layer.value, 2), is_causal=True, enable_gqa=True)
    expected = y.transpose(1, 2).reshape(BATCH, N, 24) @ values_of(layer.out.weight)
    np.testing.assert_allclose(layer(floats(x, backend)).numpy(), expected.numpy(), **tolerances(backend))


def test_other_ranks() -> None:
    layer = nn.MultiHeadAttention(D, HEADS, causal=True, device="numpy").init(0)
    x = floats(RNG.normal(size=(2, 3, N, D)), "numpy")
    whole = layer(x).numpy()
    assert whole.shape == x.shape
    np.testing.assert_allclose(layer(x[1, 2]).numpy(), whole[1, 2], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(layer(x[0]).numpy(), whole[0], rtol=1e-5, atol=1e-6)


ROTARY = nn.RotaryEncodingConfig(4)


def attend(layer: Any, x: px.Tensor, cache: nn.KeyValueCache, mask: Any) -> Any:
    return layer(x, cache=cache, mask=mask)


attend_compiled = px.compile(attend)


def in_pieces(layer: Any, x: px.Tensor, sizes: list[int], capacity: int, mask: Any = None) -> np.ndarray[Any, Any]:
    cache, found, start = layer.init_cache(x.shape[0], capacity), [], 0
    for size in sizes:
        part = None if mask is None else mask[..., start : start + size, :]
        y, cache = (attend_compiled if isinstance(x.backend, Jax) else attend)(
            layer, x[:, start : start + size], cache, part
        )
        found.append(y.numpy())
        start += size
    assert cache.position.item() == start and cache.capacity == capacity
    return np.concatenate(found, 1)


@pytest.mark.parametrize("backend", PLAIN, ids=repr)
@pytest.mark.parametrize("options", [{}, {"n_kv_heads": 1, "rotary": ROTARY}], ids=["plain", "rotary"])
def test_with_a_cache_as_without(options: Any, backend: Backend) -> None:
    layer = nn.MultiHeadAttention(D, HEADS, causal=True, device=backend, **options).init(3)
    x = floats(RNG.normal(size=(BATCH, N, D)), backend)
    whole = layer(x).numpy()
    for sizes in ([1, 4],) if isinstance(backend, Jax) else ([1] * N, [2, 3], [N]):  # each shape is a program
        for capacity in (N, N + 3):
            np.testing.assert_allclose(in_pieces(layer, x, sizes, capacity), whole, rtol=1e-4, atol=1e-5)


def test_masks_with_a_cache() -> None:
    layer = nn.MultiHeadAttention(D, HEADS, causal=True, device="numpy").init(3)
    x = floats(RNG.normal(size=(BATCH, N, D)), "numpy")
    first = px.tensor(np.arange(N) > 0, device="numpy")[None, None, None]  # nobody sees the first token
    added = floats(RNG.normal(size=(1, HEADS, N, N)), "numpy")
    for mask in (first.broadcast_to((1, 1, N, N)), added):
        np.testing.assert_allclose(
            in_pieces(layer, x, [1, 3, 1], N, mask), layer(x, mask=mask).numpy(), rtol=1e-4, atol=1e-5
        )


def test_a_cache_has_gradients() -> None:
    layer = nn.MultiHeadAttention(D, HEADS, causal=True, device=Autodiff(NumPy(float="f64"))).init(3)
    x = floats(RNG.normal(size=(BATCH, N, D)), layer.out.weight.device)

    def pieces(layer: Any, x: px.Tensor) -> px.Tensor:
        first, cache = layer(x[:, :2], cache=layer.init_cache(BATCH, N))
        return px.concat([first, layer(x[:, 2:], cache=cache)[0]], 1).square().sum()

    for (_, found), (_, wanted) in zip(
        px.grad(pieces)(layer, x).items(),
        px.grad(lambda layer, x: layer(x).square().sum())(layer, x).items(),
        strict=True,
    ):
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("backend", [Jax(), Torch()], ids=repr)
def test_one_program_serves_every_position(backend: Backend) -> None:
    layer = nn.MultiHeadAttention(D, HEADS, causal=True, rotary=ROTARY, device=backend).init(3)
    x = floats(RNG.normal(size=(BATCH, N, D)), backend)
    step = px.compile(lambda layer, x, cache: layer(x, cache=cache), donate=("cache",))
    cache, found = layer.init_cache(BATCH, N), []
    for i in range(N):
        y, cache = step(layer, x[:, i : i + 1], cache)
        assert isinstance(cache, nn.KeyValueCache)
        found.append(y.numpy())
    np.testing.assert_allclose(np.concatenate(found, 1), layer(x).numpy(), rtol=1e-4, atol=1e-5)
    assert step.programs == (1 if backend.compiles else 0)  # of structure; and of shape, as none has changed


def test_config_beginning_and_record() -> None:
    config = nn.MultiHeadAttentionConfig(
        D, HEADS, n_kv_heads=1, causal=True, dropout=0.1, rotary=nn.RotaryEncodingConfig(4, base=100.0)
    )
    assert nn.MultiHeadAttentionConfig.from_json(config.to_json()) == config
    layer = config.init("numpy").init(5)
    paths = [f"{part}.{what}" for part in ("query", "key", "value", "out") for what in ("weight", "bias")]
    assert [path for path, _ in layer.named_params()] == paths
    assert all((param.val().numpy() == 0).all() for path, param in layer.named_params() if path.endswith("bias"))
    bound = np.sqrt(6 / (D + 4))
    assert 0.8 * bound < np.abs(layer.key.weight.val().numpy()).max() <= bound
    recorder = JsonRecorder()
    other = config.init("torch").load_record(recorder.from_bytes(recorder.to_bytes(layer.into_record())))
    x = RNG.normal(size=(1, N, D))
    np.testing.assert_allclose(
        other(floats(x, "torch")).numpy(), layer(floats(x, "numpy")).numpy(), rtol=1e-4, atol=1e-5
    )


WRONG: dict[str, tuple[Any, type[Exception], str]] = {
    "heads": (lambda: nn.MultiHeadAttention(8, 3), ConfigError, "d_model=8 is not divisible by 3 heads"),
    "groups": (lambda: nn.MultiHeadAttention(8, 4, n_kv_heads=3), ConfigError, "4 heads are not divisible by n_kv"),
    "zero": (lambda: nn.MultiHeadAttention(8, 0), ConfigError, "at least 1"),
    "rate": (lambda: nn.MultiHeadAttention(8, 2, dropout=1.5), ConfigError, "between 0 and 1"),
    "rotary width": (
        lambda: nn.MultiHeadAttention(8, 2, rotary=nn.RotaryEncodingConfig(8)), ConfigError, r"RotaryEncodingConfig\(4",
    ),
    "rotary layer": (
        lambda: nn.MultiHeadAttention(8, 2, rotary=nn.RotaryEncoding(4)),  # type: ignore[arg-type]
        ConfigError, r"RotaryEncodingConfig\(4",
    ),
    "width": (lambda: nn.MultiHeadAttention(8, 2)(px.ones((2, 3, 4))), ShapeError, r"\(2, 3, 4\)"),
    "batch": (lambda: nn.MultiHeadAttention(8, 2)(px.ones((2, 3, 8)), px.ones((3, 3, 8))), ShapeError, "attention"),
    "capacity": (lambda: nn.MultiHeadAttention(8, 2).init_cache(1, 0), RangeError, "at least 1"),
    "cache, not causal": (lambda: cached(nn.MultiHeadAttention(8, 2), 1, (1, 1, 8)), ConfigError, r"no key\); this"),
    "cache, rank": (lambda: cached(causal(), 1, (1, 8)), ShapeError, r"\(1, 8\)"),
    "cache, key": (
        lambda: causal()(px.ones((1, 1, 8)), px.ones((1, 1, 8)), cache=causal().init_cache(1, 1)),  # type: ignore[call-overload]
        ConfigError, "a key was given",
    ),
    "no tensor": (lambda: causal()([[1.0]]), KindError, "must be a (Float|Int) tensor, got list"),  # type: ignore[arg-type]
    "cache, batch": (lambda: cached(causal(), 2, (1, 1, 8)), ShapeError, r"batch size"),
    "cache, mask": (
        lambda: causal()(
            px.ones((1, 2, 8), device="numpy"),
            mask=px.ones((2, 7), device="numpy") > 0.0,
            cache=causal().init_cache(1, 4),
        ),
        ShapeError, r"\(2, 4\) and \(2, 7\) do not broadcast",
    ),
    "cache, full": (lambda: cached(causal(), 1, (1, 5, 8)), RangeError, "5 more tokens after 0 exceed .* 4"),
}  # fmt: skip


def causal() -> nn.MultiHeadAttention:
    return nn.MultiHeadAttention(8, 2, causal=True, device="numpy")


def cached(layer: nn.MultiHeadAttention, batch: int, shape: tuple[int, ...]) -> Any:
    return layer(px.ones(shape, device="numpy"), cache=layer.init_cache(batch, 4))


@pytest.mark.parametrize("case", WRONG)
def test_bad_input(case: str) -> None:
    call, error, message = WRONG[case]
    with pytest.raises(error, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_a_full_cache_in_a_program_is_found_by_checks() -> None:
    layer = nn.MultiHeadAttention(D, HEADS, causal=True, device=Jax()).init(0)
    step = px.compile(lambda layer, x, cache: layer(x, cache=cache))
    x, empty = px.ones((1, 1, D), device=Jax()), layer.init_cache(1, 1)
    full = empty._replace(position=px.tensor(1, device=Jax()))
    with px.debug.checks(), pytest.raises(PhloxError, match="out of range"):
        step(layer, x, full)


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
def test_padding_at_the_start_of_rows(backend: Backend) -> None:
    layer = nn.MultiHeadAttention(D, HEADS, causal=True, rotary=nn.RotaryEncodingConfig(4), device=backend).init(2)
    x = RNG.normal(size=(2, N, D))
    cache = layer.init_cache(2, N)._replace(start=px.tensor([0, 2], device=backend))
    y, cache = layer(floats(x[:, :3], backend), cache=cache)
    rest, _ = layer(floats(x[:, 3:], backend), cache=cache)
    found = np.concatenate([y.numpy(), rest.numpy()], 1)
    close = tolerances(backend)
    np.testing.assert_allclose(found[:1], layer(floats(x[:1], backend)).numpy(), **close)
    np.testing.assert_allclose(found[1:, 2:], layer(floats(x[1:, 2:], backend)).numpy(), **close)

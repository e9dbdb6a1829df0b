# What stands in the place of a parameter is not of its type, and PyTorch's annotations leave much unsaid.
# pyright: reportOptionalMemberAccess=false, reportAttributeAccessIssue=false, reportArgumentType=false
"""A model whose parameters are computed from others is a model as any other: in every engine, transformation and file.

Serves: phlox/module/reparameterization.py, phlox/nn/reparameterizations/
"""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnxruntime
import pytest

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch
from phlox.errors import ModuleError, PhloxError
from phlox.module.architecture import architecture, build_module
from phlox.nn.reparameterizations import LowRank, Mask, Orthogonal, SpectralNorm, WeightNorm

BACKENDS: list[Backend] = [NumPy(), Jax(), Torch()]
TOKENS = np.random.default_rng(0).integers(0, 7, (4, 6)).astype(np.int32)


class Net(px.Module):
    """Each kind of layer, and a head that has the weight of the embedding."""

    def __init__(self, device: Any = None) -> None:
        self.table = nn.Embedding(7, 6, device=device)
        self.conv = nn.Conv1d(6, 5, 3, padding=1, device=device)
        self.blocks = [nn.Linear(5, 8, device=device), nn.Linear(8, 6, device=device)]

    def __call__(self, tokens: Any) -> Any:
        x = self.conv(self.table(tokens).permute_dims((0, 2, 1))).permute_dims((0, 2, 1))
        return self.table.logits(self.blocks[1](self.blocks[0](x).tanh()))


WEIGHTS = ["table.weight", "conv.weight", "blocks.*.weight"]


def every(rule: Any) -> Callable[[Any], Any]:
    return lambda model: px.reparameterize(model, WEIGHTS, rule)


VIEWS: dict[str, Callable[[Any], Any]] = {
    "lora": lambda model: px.lora(model, WEIGHTS, rank=2, alpha=3),
    "dora": lambda model: px.dora(model, WEIGHTS, rank=2, rank_stabilized=True),
    "ia3": lambda model: px.ia3(model, ["conv.weight", "blocks.0.weight"], "blocks.1.weight"),
    "several": lambda model: px.lora(
        px.ia3(px.lora(model, WEIGHTS, rank=1, name="a"), "blocks.0.weight", "blocks.0.weight", name="b"),
        "blocks.*.weight", rank=2, name="c", train="conv.bias",
    ),
    "weight norm": every(WeightNorm),
    "spectral norm": every(SpectralNorm),
    "low rank": lambda model: px.reparameterize(model, ["table.weight", "blocks.*.weight"], partial(LowRank, rank=3)),
    "mask": every(partial(Mask, sparsity=0.5)),
    "orthogonal": every(Orthogonal),
    "nested": lambda model: px.reparameterize(every(WeightNorm)(model), "blocks.0.weight", partial(Mask, keep=(1, 5))),
}  # fmt: skip


def made(view: str, backend: Backend = NumPy()) -> Any:  # noqa: B008
    """A model with these parameters, none of which is where it begins."""
    with px.random.stream(7):
        model = VIEWS[view](Net("numpy").init(0))
        for param in model.params():
            if param.trained:
                param.set(param.val() + px.random.normal(param.shape, device="numpy") * 0.1)
    return model if isinstance(backend, NumPy) else model.to_device(backend)


def tokens_on(model: Any) -> Any:
    return px.tensor(TOKENS, device=next(iter(model.params())).device)


def loss(model: Any, tokens: Any) -> Any:
    return nn.cross_entropy_loss(model(tokens).reshape(-1, 7), tokens.reshape(-1))


def values(model: Any) -> dict[str, np.ndarray]:
    return {path: param.val().numpy() for path, param in model.named_params()}


def assert_same(first: dict[str, np.ndarray], second: dict[str, np.ndarray], rough: float = 0.0) -> None:
    assert list(first) == list(second)
    for path, value in first.items():
        np.testing.assert_allclose(value, second[path], rtol=rough, atol=rough, err_msg=path)


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
@pytest.mark.parametrize("view", VIEWS)
def test_merging_changes_nothing(view: str, backend: Backend) -> None:
    """The layers compute with the parts, and in the merged model with the value."""
    model = made(view, backend).valid()
    tokens = tokens_on(model)
    expected = model(tokens).numpy()
    merged = px.merge(model)
    assert [path for path, _ in merged.named_params()] == [path for path, _ in Net().named_params()]
    np.testing.assert_allclose(merged(tokens).numpy(), expected, rtol=1e-4, atol=2e-5)
    np.testing.assert_allclose(expected, made(view).valid()(px.tensor(TOKENS)).numpy(), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
@pytest.mark.parametrize("view", VIEWS)
def test_training_compiled_and_eager(view: str, backend: Backend) -> None:
    """Three steps give the same parameters; only what is trained moves, and statistics of spectral norm."""

    before = made(view)

    def trained(compiles: bool) -> tuple[Any, Any]:
        model = before.to_device(Autodiff(backend))
        optimizer = optim.AdamConfig().init()

        def step(optimizer: Any, model: Any, tokens: Any) -> Any:
            grads = px.GradientsParams.from_grads(loss(model, tokens).backward(), model)
            return optimizer, optimizer.step(0.01, model, grads)

        run = px.compile(step) if compiles else step
        for _ in range(3):
            optimizer, model = run(optimizer, model, tokens_on(model))
        return optimizer, model

    optimizer, model = trained(compiles=True)
    assert_same(values(model), values(trained(compiles=False)[1]), 2e-5)
    ids = [param.id for param in model.params() if param.trained]
    assert ids == [param.id for param in before.params() if param.trained]
    assert {path.split(".")[1] for path in optimizer.into_record().tensors} == set(ids)  # a state for each, by id
    for (path, param), (_, old) in zip(model.named_params(), before.named_params(), strict=True):
        moves = param.trained or path.endswith((".u", ".v"))
        assert np.array_equal(param.val().numpy(), old.val().numpy()) != moves, path


@pytest.mark.parametrize("view", VIEWS)
def test_copies_files_and_descriptions(view: str, tmp_path: Path) -> None:
    model = made(view)
    expected, out = values(model), model(tokens_on(model)).numpy()
    model.save(tmp_path / "model.safetensors")
    empty = build_module(json.loads(json.dumps(architecture(model))), "numpy")
    others = {
        "a copy": copy.deepcopy(model),
        "pickled": pickle.loads(pickle.dumps(model)),  # noqa: S301
        "a file": VIEWS[view](Net().init(5)).load_record(px.record.load(tmp_path / "model.safetensors")),
        "described": empty.load_record(model.into_record()),
        "moved": model.to_device(Jax()).to_device(Torch()).to_device("numpy"),
    }
    for name, other in others.items():
        assert_same(values(other), expected)
        np.testing.assert_allclose(other(tokens_on(other)).numpy(), out, rtol=1e-6, atol=1e-6, err_msg=name)
        assert [param.trained for param in other.params()] == [param.trained for param in model.params()], name
    assert "weight" in f"{model}" and "Net" in f"{model.summary(px.TensorSpec((4, 6), px.Int))}"


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_is_a_tree(view: str) -> None:
    model = made(view, Jax()).valid()
    tokens = tokens_on(model)
    expected = model(tokens).numpy()
    out = jax.jit(lambda model, tokens: model(px.Tensor.from_primitive(tokens, tokens_backend, px.Int)).primitive)
    tokens_backend = tokens.backend
    np.testing.assert_allclose(np.asarray(out(model, tokens.primitive)), expected, rtol=1e-4, atol=1e-5)
    same = jax.tree.map(lambda leaf: leaf, model)
    assert jax.tree.structure(same) == jax.tree.structure(model)
    assert_same(values(same), values(model))


@pytest.mark.parametrize("view", [view for view in VIEWS if view != "orthogonal"])
def test_grad_and_an_ensemble_by_vmap(view: str) -> None:
    models = [made(view).valid().map(lambda path, param, n=n: param if not param.trained else param.map(
        lambda x: x * (1.0 + n))) for n in range(2)]  # fmt: skip
    tokens = px.tensor(TOKENS)
    stacked = px.stack_modules(models)
    together = px.vmap(lambda model: model(tokens))(stacked).numpy()
    for number, model in enumerate(models):
        np.testing.assert_allclose(together[number], model(tokens).numpy(), rtol=1e-5, atol=1e-5)
    assert_same(values(px.unstack_modules(stacked)[1]), values(models[1]))
    model = models[0].to_device(Autodiff(NumPy())).valid(tape=True)
    gradient = px.grad(lambda model: loss(model, tokens_on(model)))(model)
    grads = px.GradientsParams.from_grads(loss(model, tokens_on(model)).backward(), model)
    for path, param in model.named_params():
        if param.trained:
            np.testing.assert_allclose(
                gradient.get(param.id).numpy(), grads.get(param.id).numpy(), atol=1e-6, err_msg=path
            )


def test_the_tape_finds_the_gradients_of_the_whole() -> None:
    """Gradients of parts by finite differences, for views whose parts torch does not have."""
    for view in ("lora", "ia3", "several", "low rank"):
        device = Autodiff(NumPy(float="f64"))
        model = made(view).to_device(device).valid(tape=True)
        tokens = tokens_on(model)
        grads = px.GradientsParams.from_grads(loss(model, tokens).backward(), model)
        for path, param in model.named_params():
            if not param.trained:
                continue
            old, at = param.val(), (0,) * len(param.shape)
            step = np.zeros(param.shape)
            step[at] = 1e-5
            results = [old + px.tensor(sign * step, device=device) for sign in (1, -1)]
            losses: list[float] = []
            for value in results:
                param.set(value)
                losses.append(loss(model, tokens).item())
            param.set(old)
            slope = (losses[0] - losses[1]) / 2e-5
            np.testing.assert_allclose(grads.get(param.id).numpy()[at], slope, rtol=1e-5, atol=1e-8, err_msg=path)


def test_freezing_modes_and_selection() -> None:
    model = Net().init(0)
    view = px.lora(model, "blocks.*.weight", rank=2, dropout=0.5, train="**.bias")
    trained = [path for path, param in view.named_params() if param.trained]
    assert trained == [
        "conv.bias",
        *[f"blocks.{n}.{end}" for n in (0, 1) for end in ("weight.lora.default.A", "weight.lora.default.B", "bias")],
    ]
    assert all(param.trained for param in model.params())  # the model itself is as it was
    assert [param.id for path, param in view.named_params() if "lora" not in path] == [p.id for p in model.params()]
    assert not any(param.trained for param in view.freeze("blocks", "**.bias").params())
    assert [p for p, x in view.freeze().unfreeze("blocks.0.weight.lora").named_params() if x.trained] == trained[1:3]
    drop = view.blocks[0].weight.lora["default"].dropout
    assert (drop.training, view.train().blocks[0].weight.lora["default"].dropout.training) == (None, True)
    again = px.reparameterize(view, "blocks.0.weight", WeightNorm)
    assert [path for path, _ in again.named_params() if path.startswith("blocks.0")] == [
        "blocks.0.weight.base.base", "blocks.0.weight.base.lora.default.A", "blocks.0.weight.base.lora.default.B",
        "blocks.0.weight.magnitude", "blocks.0.bias",
    ]  # fmt: skip
    tokens = px.tensor(TOKENS)
    np.testing.assert_allclose(again(tokens).numpy(), view(tokens).numpy(), atol=1e-5)
    part = px.merge(again, "blocks.0.weight")
    assert isinstance(part.blocks[0].weight, px.Param) and not isinstance(part.blocks[1].weight, px.Param)


class Tied(px.Module):
    """One parameter at two paths, as it is and transposed."""

    def __init__(self) -> None:
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def __call__(self, x: Any) -> Any:
        return self.second(self.first(x))


@pytest.mark.parametrize("path", ["first.weight", "second.weight"])
def test_a_parameter_at_two_paths(path: str) -> None:
    model = Tied().init(0)
    view = px.lora(model, path, rank=2)
    assert view.first.weight is view.second.weight
    view.first.weight.lora["default"].B.set(px.ones((2, 4)))
    assert [p for p, _ in view.named_params()] == [
        "first.weight.base", "first.weight.lora.default.A", "first.weight.lora.default.B", "first.bias", "second.bias",
    ]  # fmt: skip
    merged = px.merge(view)
    assert merged.first.weight is merged.second.weight
    x = px.random.normal((3, 4))
    np.testing.assert_allclose(merged(x).numpy(), view(x).numpy(), atol=1e-5)
    other = px.lora(Tied().init(3), path, rank=2).load_record(view.into_record())
    assert other.first.weight is other.second.weight
    np.testing.assert_array_equal(other(x).numpy(), view(x).numpy())


@pytest.mark.parametrize("view", ["lora", "dora", "ia3", "weight norm", "spectral norm", "low rank", "mask"])
def test_exported(view: str, tmp_path: Path) -> None:
    model = made(view).valid()
    path = tmp_path / "model.onnx"
    px.export.onnx(model, [px.TensorSpec(("batch", 6), px.Int)], path)
    session: Any = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    kind = np.int64 if "int64" in session.get_inputs()[0].type else np.int32
    (found,) = session.run(None, {name: TOKENS.astype(kind)})
    np.testing.assert_allclose(found, model(px.tensor(TOKENS)).numpy(), rtol=1e-4, atol=1e-5)


# --- refusals


class NoBase(px.Reparameterization):
    def __init__(self, param: Any) -> None:
        self.base = param


def _failing(param: Any) -> Any:
    raise ValueError("no")


REFUSED: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "no such path": (lambda m: px.reparameterize(m, "block.*", WeightNorm), ModuleError,
                     "no parameter matches `block.*`; did you mean `blocks"),
    "another result": (lambda m: px.reparameterize(m, "conv.weight", lambda param: param), ModuleError,
                       "conv.weight: a rule must return a Reparameterization, got Param"),
    "no module": (lambda m: px.reparameterize(3, "a", WeightNorm), ModuleError, "expected a module, got int"),
    "merging what is plain": (lambda m: px.merge(m, "conv.weight"), ModuleError,
                              "merge: the model has no computed parameter"),
    "rank": (lambda m: px.lora(m, "conv.weight", rank=6), ModuleError,
             r"conv.weight: rank must be between 1 and 5 for a parameter of shape \(5, 6, 3\), got 6"),
    "no rank": (lambda m: px.lora(m, "conv.weight", rank=True), ModuleError, "conv.weight: rank must be between"),
    "vector": (lambda m: px.dora(m, "conv.bias"), ModuleError, r"conv.bias: LoRA is for weights with at least two"),
    "name": (lambda m: px.lora(m, "conv.weight", name="a.b"), PhloxError, "must not be empty, 'base' or contain a dot"),
    "name of none": (lambda m: px.ia3(m, "conv.weight", name="base"), PhloxError, "must not be empty, 'base'"),
    "same name": (lambda m: px.lora(px.lora(m, WEIGHTS, rank=1), "conv.weight", rank=1), ModuleError,
                  "conv.weight: there is an adapter 'default' already; give this one another name"),
    "same name of ia3": (lambda m: px.ia3(px.ia3(m, "conv.weight"), "conv.weight"), ModuleError,
                         "conv.weight: there is an adapter 'default' already"),
    "ia3 of nothing": (lambda m: px.ia3(m), ModuleError, "choose weights whose outputs or whose inputs"),
    "inputs of a bias": (lambda m: px.ia3(m, inputs="conv.bias"), ModuleError, "conv.bias: inputs can be scaled for"),
    "no such adapter": (lambda m: px.use_adapters(px.lora(m, WEIGHTS, rank=1), "b"), ModuleError,
                        "the model has no adapter 'b'; it has default"),
    "no adapter at all": (lambda m: px.without_adapters(m, "b"), ModuleError, "no adapter 'b'; it has none"),
    "setting": (lambda m: px.lora(m, WEIGHTS, rank=1).conv.weight.set(px.ones((5, 6, 3))), ModuleError,
                r"computed by Lora; set the parameters that it is computed from \(base, lora.default.A"),
    "other rows": (lambda m: px.use_adapters(px.lora(m, WEIGHTS, rank=1), ["default"])(px.tensor(TOKENS)), PhloxError,
                   r"there are adapters for 1 rows, and this batch has the shape \(4, 6\)"),
    "merging rows": (lambda m: px.merge(px.use_adapters(px.lora(m, WEIGHTS, rank=1), ["default"])), ModuleError,
                     "the rows of a batch have adapters of their own"),
    "no value": (lambda m: px.merge(px.reparameterize(m, "conv.weight", NoBase)), NotImplementedError,
                 r"NoBase does not define val\(\)"),
    "low rank": (lambda m: px.reparameterize(m, "blocks.0.weight", partial(LowRank, rank=6)), ModuleError,
                 r"rank must be between 1 and 5 for a parameter of shape \(5, 8\), got 6"),
    "low rank of a kernel": (lambda m: px.reparameterize(m, "conv.weight", partial(LowRank, rank=1)), ModuleError,
                             r"factors are for matrices, and this parameter has the shape \(5, 6, 3\)"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str) -> None:
    call, error, message = REFUSED[what]
    with pytest.raises(error, match=message):
        call(Net().init(0))


@pytest.mark.parametrize(
    ("call", "note"),
    [
        (lambda model: px.reparameterize(model, "blocks.1.weight", _failing), "reparameterize: at the parameter"),
        (lambda model: px.merge(px.reparameterize(model, "blocks.1.weight", NoBase)), "merge: at the parameter"),
    ],
)
def test_errors_of_rules_name_the_path(call: Callable[[Any], Any], note: str) -> None:
    with pytest.raises((ValueError, NotImplementedError)) as caught:
        call(Net().init(0))
    assert f"{note} `blocks.1.weight`" in "".join(caught.value.__notes__)

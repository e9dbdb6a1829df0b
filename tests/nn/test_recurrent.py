"""Recurrent layers against PyTorch's, their states, lengths and modes, and what is refused.

Serves: phlox/backend/torch/cpu/onednn_lstm.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import phlox as px
from phlox import nn
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch
from phlox.errors import ConfigError, KindError, RangeError, ShapeError
from phlox.nn.recurrent import Cell

BACKENDS: list[Backend] = [NumPy(float="f64"), Jax(float="f64"), Torch(float="f64"), NumPy(), Jax(), Torch()]
PLAIN: list[Backend] = [NumPy(), Jax(), Torch()]
BATCH, TIME, FEATURES, WIDTH = 3, 5, 4, 6
LENGTHS = [5, 2, 3]

LAYERS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "lstm": (nn.Lstm, torch.nn.LSTM),
    "gru": (nn.Gru, torch.nn.GRU),
    "rnn": (nn.Rnn, torch.nn.RNN),
}
SHAPES: dict[str, dict[str, Any]] = {
    "one layer": {},
    "two layers": {"n_layers": 2},
    "both ways": {"n_layers": 2, "bidirectional": True},
    "no bias": {"bias": False},
}


def tolerances(backend: Backend) -> dict[str, Any]:
    return {"rtol": 1e-8, "atol": 1e-10} if "f64" in repr(backend) else {"rtol": 1e-4, "atol": 1e-5}


def floats(values: Any, device: Any) -> px.Tensor:
    return px.tensor(np.asarray(values), device=device, kind=px.Float)


def parts(layer: Any) -> list[tuple[str, Cell[Any]]]:
    """The cells, with the end that PyTorch gives to the names of their parameters."""
    forward = [(f"l{number}", cell) for number, cell in enumerate(layer.layers)]
    return forward + [(f"l{number}_reverse", cell) for number, cell in enumerate(layer.reverse_layers)]


def twin(layer: Any, make: Callable[..., Any], **options: Any) -> Any:
    """PyTorch's with the same weights in float64."""
    theirs = make(
        FEATURES, WIDTH, layer.n_layers, bias=layer.layers[0].bias is not None, batch_first=True,
        bidirectional=layer.bidirectional, dtype=torch.float64, **options,
    )  # fmt: skip
    for end, cell in parts(layer):
        values = {name: torch.tensor(param.val().numpy().astype(np.float64)) for name, param in cell.named_params()}
        getattr(theirs, f"weight_ih_{end}").data = values["weight"].T.contiguous()
        getattr(theirs, f"weight_hh_{end}").data = values["recurrent"].T.contiguous()
        if cell.bias is not None:
            getattr(theirs, f"bias_ih_{end}").data = values["bias"]
            again = torch.zeros_like(values["bias"])
            if "recurrent_bias" in values:
                again[2 * WIDTH :] = values["recurrent_bias"]
            getattr(theirs, f"bias_hh_{end}").data = again
    return theirs


def examples(count: int, states: int) -> tuple[Any, list[Any], Any]:
    rng = np.random.default_rng(3)
    return (
        rng.normal(size=(BATCH, TIME, FEATURES)),
        [rng.normal(size=(count, BATCH, WIDTH)) for _ in range(states)],
        rng.normal(size=(BATCH, TIME, WIDTH * 2)),
    )


def called(layer: Any, x: Any, start: list[Any] | None, **options: Any) -> tuple[Any, list[Any]]:
    """With states as lists."""
    if isinstance(layer, nn.Lstm):
        y, last = layer(x, None if start is None else nn.LstmState(*start), **options)
        return y, list(last)
    y, last = layer(x, None if start is None else start[0], **options)
    return y, [last]


def called_theirs(layer: Any, x: Any, start: list[Any], lengths: list[int] | None) -> tuple[Any, list[Any]]:
    given: Any = x
    if lengths is not None:
        given = torch.nn.utils.rnn.pack_padded_sequence(
            x, torch.tensor(lengths), batch_first=True, enforce_sorted=False
        )
    y, last = layer(given, tuple(start) if len(start) == 2 else start[0])
    if lengths is not None:
        y, _ = torch.nn.utils.rnn.pad_packed_sequence(y, batch_first=True, total_length=TIME)
    return y, list(last) if len(start) == 2 else [last]


def compare(layer: Any, theirs: Any, backend: Backend, lengths: list[int] | None, compiled: bool) -> None:
    """Results, last states, and all gradients."""
    count = layer.n_layers * (1 + layer.bidirectional)
    x, start, weights = examples(count, 2 if isinstance(layer, nn.Lstm) else 1)
    weights = weights[..., : WIDTH * (1 + layer.bidirectional)]
    device = Autodiff(backend).device()

    def step(layer: Any, x: Any, start: list[Any]) -> Any:
        x, start = x.require_grad(), [one.require_grad() for one in start]
        y, last = called(layer, x, start, **({} if lengths is None else {"lengths": lengths}))
        loss = (y * floats(weights, backend)).sum()
        for number, one in enumerate(last):
            loss = loss + (one * one).sum() * (number + 1.0)
        grads = loss.backward()
        towards = [grads_of(param.val(), grads) for param in layer.params()]
        return y.detach(), [one.detach() for one in last], [grads_of(one, grads) for one in (x, *start)], towards

    def grads_of(one: Any, grads: Any) -> Any:
        found = one.grad(grads)
        assert found is not None
        return found

    run = px.compile(step) if compiled else step
    y, last, inputs, towards = run(layer, floats(x, device), [floats(one, device) for one in start])

    tx = torch.tensor(x, requires_grad=True)
    ts = [torch.tensor(one, requires_grad=True) for one in start]
    ty, tlast = called_theirs(theirs, tx, ts, lengths)
    loss = (ty * torch.tensor(weights)).sum()
    for number, one in enumerate(tlast):
        loss = loss + (one * one).sum() * (number + 1.0)
    loss.backward()
    close = tolerances(backend)
    np.testing.assert_allclose(y.numpy(), ty.detach().numpy(), **close)
    for one, want in zip(last, tlast, strict=True):
        np.testing.assert_allclose(one.numpy(), want.detach().numpy(), **close)
    close = {"rtol": close["rtol"], "atol": close["atol"] * 10}
    for one, leaf in zip(inputs, [tx, *ts], strict=True):
        assert leaf.grad is not None
        np.testing.assert_allclose(one.numpy(), leaf.grad.numpy(), **close)
    found = dict(zip([path for path, _ in layer.named_params()], towards, strict=True))
    for end, _ in parts(layer):
        number, _, reverse = end[1:].partition("_")
        place = f"{'reverse_layers' if reverse else 'layers'}.{number}"
        wanted = {"weight": getattr(theirs, f"weight_ih_{end}").grad.T}
        wanted["recurrent"] = getattr(theirs, f"weight_hh_{end}").grad.T
        if theirs.bias:
            wanted["bias"] = getattr(theirs, f"bias_ih_{end}").grad
            if isinstance(layer, nn.Gru):
                wanted["recurrent_bias"] = getattr(theirs, f"bias_hh_{end}").grad[2 * WIDTH :]
        for name, want in wanted.items():
            np.testing.assert_allclose(found[f"{place}.{name}"].numpy(), want.numpy(), **close)


@pytest.mark.covering(2)
@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["whole", "lengths"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
def test_against_pytorch(backend: Backend, kind: str, shape: str, lengths: list[int] | None) -> None:
    ours, theirs = LAYERS[kind]
    layer = ours(FEATURES, WIDTH, device=Autodiff(backend), **SHAPES[shape]).init(1)
    compare(layer, twin(layer, theirs), backend, lengths, compiled=False)


@pytest.mark.every(4)
@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["whole", "lengths"])
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("backend", [Jax(), Torch()], ids=repr)
def test_compiled(backend: Backend, kind: str, lengths: list[int] | None) -> None:
    ours, theirs = LAYERS[kind]
    layer = ours(FEATURES, WIDTH, device=Autodiff(backend), n_layers=2).init(1)
    compare(layer, twin(layer, theirs), backend, lengths, compiled=True)


@pytest.mark.parametrize("compiled", [False, True], ids=["called", "compiled"])
def test_weights_that_were_written_to_are_read_again(compiled: bool) -> None:
    """PyTorch's kernel wants weights in an order of its own, in which they are kept from call to call."""
    backend = Torch()
    rng = np.random.default_rng(5)
    x, *weights = (
        torch.tensor(rng.normal(size=shape).astype(np.float32))
        for shape in ((2, 3, FEATURES), (FEATURES, 4 * WIDTH), (WIDTH, 4 * WIDTH))
    )
    zeros = px.zeros((2, WIDTH), device=backend)

    def call(x: Any, weight: Any, recurrent: Any) -> Any:
        return px.functional.lstm(x, zeros, zeros, weight, recurrent).y

    run = px.compile(call) if compiled else call

    def found() -> Any:
        return run(*[px.Tensor.from_primitive(one, backend) for one in (x, *weights)]).numpy()

    def wanted() -> Any:
        theirs = torch.nn.LSTM(FEATURES, WIDTH, bias=False, batch_first=True)
        theirs.weight_ih_l0.data, theirs.weight_hh_l0.data = (one.t().contiguous() for one in weights)
        with torch.no_grad():
            return theirs(x)[0].numpy()

    first = found()
    np.testing.assert_allclose(first, wanted(), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found(), first)
    for weight in weights:
        weight.mul_(0.5)
        np.testing.assert_allclose(found(), wanted(), rtol=1e-5, atol=1e-6)
    weights[0] = weights[0] * 2.0
    np.testing.assert_allclose(found(), wanted(), rtol=1e-5, atol=1e-6)
    with torch.inference_mode():
        weights[1] = weights[1] * 2.0
        for _ in range(2):
            np.testing.assert_allclose(found(), wanted(), rtol=1e-5, atol=1e-6)
            weights[1].mul_(0.5)


@pytest.mark.parametrize("backend", PLAIN, ids=repr)
def test_no_features(backend: Backend) -> None:
    """A dense layer of no features gives its bias, whatever the rank, and so does what is built on it."""
    weight, bias = px.zeros((0, 4), device=backend), floats([1.0, 2.0, 3.0, 4.0], backend)
    for shape in ((3, 0), (2, 3, 0), (2, 0, 3, 0)):
        y = px.functional.linear(px.zeros(shape, device=backend), weight, bias)
        np.testing.assert_array_equal(y.numpy(), np.broadcast_to(np.arange(1.0, 5.0), (*shape[:-1], 4)))
    y, _ = px.functional.rnn(
        px.zeros((2, 1, 0), device=backend), px.zeros((2, 4), device=backend), weight,
        px.zeros((4, 4), device=backend), bias,
    )  # fmt: skip
    np.testing.assert_allclose(y.numpy(), np.broadcast_to(np.tanh(np.arange(1.0, 5.0)), (2, 1, 4)), rtol=1e-6)


@pytest.mark.parametrize("backend", PLAIN, ids=repr)
def test_relu(backend: Backend) -> None:
    layer = nn.Rnn(FEATURES, WIDTH, activation="relu", device=Autodiff(backend)).init(1)
    compare(layer, twin(layer, torch.nn.RNN, nonlinearity="relu"), backend, None, compiled=False)


@pytest.mark.every(3)
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("backend", PLAIN, ids=repr)
def test_token_by_token(backend: Backend, kind: str) -> None:
    """Piece by piece, in a loop of a program, and by the cell it is the same as at once."""
    layer = LAYERS[kind][0](FEATURES, WIDTH, n_layers=2, device=backend).init(1)
    x = floats(examples(1, 1)[0], backend)
    whole, last = layer(x)
    first, state = layer(x[:, :2])
    second, state = layer(x[:, 2:], state)
    close = tolerances(backend)
    np.testing.assert_allclose(px.concat([first, second], 1).numpy(), whole.numpy(), **close)
    for one, want in zip(state, last, strict=True):
        np.testing.assert_allclose(one.numpy(), want.numpy(), **close)

    def along(layer: Any, x: Any) -> Any:
        def step(state: Any, x: Any) -> Any:
            y, state = layer(x.expand_dims(1), state)
            return state, y[:, 0]

        return px.scan(step, layer.init_state(BATCH), x.swapaxes(0, 1))[1].swapaxes(0, 1)

    run = px.compile(along) if isinstance(backend, Jax) else along
    np.testing.assert_allclose(run(layer, x).numpy(), whole.numpy(), **close)
    cells = LAYERS[kind][0](FEATURES, WIDTH, device=backend).init(1)
    state, cell = None, cells.layers[0]
    for time in range(TIME):
        state = cell(x[:, time], state)
    wanted = cells(x)[0][:, -1].numpy()
    assert state is not None
    hidden = state.hidden if isinstance(state, nn.LstmState) else state
    np.testing.assert_allclose(hidden.numpy(), wanted, **close)
    begun = cell(x[:, 0], cell.init_state(BATCH))
    alone = cell(x[0, 0])
    one, other = (s.hidden if isinstance(s, nn.LstmState) else s for s in (begun, alone))
    np.testing.assert_allclose(one.numpy()[0], other.numpy(), **close)


@pytest.mark.parametrize("kind", LAYERS)
def test_other_ranks(kind: str) -> None:
    layer = LAYERS[kind][0](FEATURES, WIDTH, bidirectional=True, device=NumPy()).init(1)
    x = floats(np.random.default_rng(0).normal(size=(2, 3, TIME, FEATURES)), NumPy())
    y, last = layer(x, lengths=px.tensor([[5, 1, 2], [0, 3, 4]]))
    assert y.shape == (2, 3, TIME, 2 * WIDTH)
    assert (last.hidden if isinstance(last, nn.LstmState) else last).shape == (2, 2, 3, WIDTH)
    flat, _ = layer(x.reshape((6, TIME, FEATURES)), lengths=[5, 1, 2, 0, 3, 4])
    np.testing.assert_array_equal(y.numpy().reshape(flat.shape), flat.numpy())
    np.testing.assert_allclose(layer(x[0, 2])[0].numpy(), layer(x[:1, 2])[0].numpy()[0], rtol=1e-6)
    assert not y.numpy()[1, 0].any() and not y.numpy()[0, 1, 1:].any()


@pytest.mark.every(3)
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("backend", PLAIN, ids=repr)
def test_padding_does_not_count(backend: Backend, kind: str) -> None:
    """Each sequence gives what it gives alone, whatever lies beyond its length."""
    layer = LAYERS[kind][0](FEATURES, WIDTH, n_layers=2, bidirectional=True, device=backend).init(1)
    x = np.random.default_rng(0).normal(size=(BATCH, TIME, FEATURES))
    y, _ = layer(floats(x, backend), lengths=LENGTHS)
    for number, length in enumerate(LENGTHS):
        alone, _ = layer(floats(x[number : number + 1, :length], backend))
        np.testing.assert_allclose(y.numpy()[number, :length], alone.numpy()[0], rtol=1e-4, atol=1e-6)
        assert not y.numpy()[number, length:].any()


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("backend", PLAIN, ids=repr)
def test_under_vmap(backend: Backend, kind: str) -> None:
    layer = LAYERS[kind][0](FEATURES, WIDTH, device=backend).init(1)
    x = floats(np.random.default_rng(0).normal(size=(4, BATCH, TIME, FEATURES)), backend)
    wanted = np.stack([layer(x[number])[0].numpy() for number in range(4)])
    np.testing.assert_allclose(px.vmap(lambda x: layer(x)[0])(x).numpy(), wanted, rtol=1e-4, atol=1e-6)
    single = px.vmap(lambda x: layer(x)[0])(x[0])
    np.testing.assert_allclose(single.numpy(), wanted[0], rtol=1e-4, atol=1e-6)
    masked = px.vmap(lambda x, n: layer(x, lengths=n)[0])(x[0], px.tensor(LENGTHS, device=backend))
    np.testing.assert_allclose(masked.numpy(), layer(x[0], lengths=LENGTHS)[0].numpy(), rtol=1e-4, atol=1e-6)
    scaled = px.vmap(lambda s: functional_of(layer, x[0], s))(floats([1.0, 2.0], backend))
    for number, scale in enumerate((1.0, 2.0)):
        alone = functional_of(layer, x[0], floats(scale, backend))
        np.testing.assert_allclose(scaled.numpy()[number], alone.numpy(), rtol=1e-4, atol=1e-6)


def functional_of(layer: Any, x: Any, scale: Any) -> Any:
    """The first cell with scaled weights, which differ from example to example."""
    cell = layer.layers[0]
    zeros = px.zeros((x.shape[0], WIDTH), device=x.device)
    weight, recurrent, bias = cell.weight.val() * scale, cell.recurrent.val() * scale, cell.bias.val()
    if isinstance(layer, nn.Lstm):
        return px.functional.lstm(x, zeros, zeros, weight, recurrent, bias).y
    if isinstance(layer, nn.Gru):
        return px.functional.gru(x, zeros, weight, recurrent, bias, cell.recurrent_bias.val()).y
    return px.functional.rnn(x, zeros, weight, recurrent, bias).y


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("backend", PLAIN, ids=repr)
def test_checkpoint_gives_the_same_gradients(backend: Backend, kind: str) -> None:
    layer = LAYERS[kind][0](FEATURES, WIDTH, n_layers=2, device=Autodiff(backend)).init(1)
    x = floats(examples(1, 1)[0], Autodiff(backend))
    plain = layer(x)[0].sum().backward()
    again = px.checkpoint(lambda layer, x: layer(x)[0])(layer, x).sum().backward()
    for param in layer.params():
        one, other = param.val().grad(plain), param.val().grad(again)
        assert one is not None and other is not None
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("element", ["f16", "bf16"])
@pytest.mark.parametrize("engine", [NumPy, Jax, Torch])
def test_half_precision(engine: Any, element: Any, kind: str) -> None:
    backend = engine(float=element)
    layer = LAYERS[kind][0](FEATURES, WIDTH, device=NumPy(float="f64")).init(1)
    x = examples(1, 1)[0]
    y, _ = layer.to_device(backend)(floats(x, backend))
    assert y.backend is backend
    np.testing.assert_allclose(y.numpy().astype(np.float64), layer(floats(x, NumPy(float="f64")))[0].numpy(), atol=0.02)


def test_dropout_lies_between_layers_and_in_training_only() -> None:
    layer = nn.Lstm(FEATURES, WIDTH, n_layers=2, dropout=1.0, device=NumPy()).init(1)
    x = floats(examples(1, 1)[0], NumPy())
    dropped = layer.train(tape=False)(x)[0].numpy()
    second = nn.Lstm(WIDTH, WIDTH, device=NumPy())
    second.layers = [layer.layers[1]]
    np.testing.assert_allclose(dropped, second(px.zeros((BATCH, TIME, WIDTH)))[0].numpy(), rtol=1e-6)
    assert not np.allclose(layer.valid()(x)[0].numpy(), dropped)
    single = nn.Lstm(FEATURES, WIDTH, dropout=1.0, device=NumPy()).init(1)
    np.testing.assert_array_equal(single.train(tape=False)(x)[0].numpy(), single(x)[0].numpy())


@pytest.mark.parametrize("kind", LAYERS)
def test_initial_weights_and_records(kind: str) -> None:
    make = LAYERS[kind][0]
    layer = make(FEATURES, 100, n_layers=2, bidirectional=True).init(0)
    for path, param in layer.named_params():
        values = param.val().numpy()
        assert np.abs(values).max() <= 0.1 and values.std() == pytest.approx(0.1 / np.sqrt(3), rel=0.15), path
    again = make(FEATURES, 100, n_layers=2, bidirectional=True).load_record(layer.into_record())
    x = px.ones((2, 3, FEATURES))
    np.testing.assert_array_equal(again(x)[0].numpy(), layer(x)[0].numpy())
    chosen = make(2, 3, initializer=nn.Ones(), recurrent_initializer=nn.Orthogonal(), bias_initializer=nn.Zeros())
    cell = chosen.layers[0]
    assert (cell.weight.val().numpy() == 1).all() and (cell.bias.val().numpy() == 0).all()
    recurrent = cell.recurrent.val().numpy()
    np.testing.assert_allclose(recurrent @ recurrent.T, np.eye(3), atol=1e-5)


@pytest.mark.parametrize("name", ["Lstm", "Gru", "Rnn", "LstmCell", "GruCell", "RnnCell"])
def test_configs(name: str) -> None:
    config = getattr(nn, f"{name}Config")(3, 2, bias=False)
    layer = config.init()
    assert type(layer) is getattr(nn, name) and layer.d_hidden == 2
    assert type(config).from_json(config.to_json()) == config


CASES: dict[str, tuple[Callable[[Any], Any], type[Exception], tuple[str, ...]]] = {
    "features": (lambda m: m["rnn"](px.ones((2, 5, 7))), ShapeError, ("layers.rnn", "(2, 5, 7)", "4 features")),
    "rank": (lambda m: m["rnn"](px.ones((4,))), ShapeError, ("layers.rnn", "[..., time, 4]", "(4,)")),
    "no steps": (lambda m: m["rnn"](px.ones((2, 0, 4))), ShapeError, ("layers.rnn", "time >= 1", "(2, 0, 4)")),
    "state": (
        lambda m: m["rnn"](px.ones((2, 5, 4)), nn.LstmState(px.ones((2, 2, 6)), px.ones((2, 3, 6)))),
        ShapeError,
        ("layers.rnn", "cell", "(2, 2, 6)", "(2, 3, 6)"),
    ),
    "state of another kind": (
        lambda m: m["rnn"](px.ones((2, 5, 4)), (1, 2)),
        KindError,
        ("layers.rnn", "hidden", "int"),
    ),
    "state of one part": (
        lambda m: m["rnn"](px.ones((2, 5, 4)), px.ones((2, 2, 6))),
        KindError,
        ("layers.rnn", "LstmState(hidden, cell)", "Tensor"),
    ),
    "lengths too long": (
        lambda m: m["rnn"](px.ones((2, 5, 4)), lengths=[3, 6]),
        RangeError,
        ("layers.rnn", "between 0 and 5", "6"),
    ),
    "negative lengths": (
        lambda m: m["rnn"](px.ones((2, 5, 4)), lengths=[-1, 5]),
        RangeError,
        ("layers.rnn", "between 0 and 5", "-1"),
    ),
    "number of lengths": (
        lambda m: m["rnn"](px.ones((2, 5, 4)), lengths=[1, 2, 3]),
        ShapeError,
        ("layers.rnn", "(2,)", "(3,)"),
    ),
    "kind of lengths": (
        lambda m: m["rnn"](px.ones((2, 5, 4)), lengths=px.ones((2,))),
        KindError,
        ("layers.rnn", "Int", "Float"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_refused(case: str) -> None:
    call, kind, words = CASES[case]
    model = nn.Sequential(rnn=nn.Lstm(4, 6, n_layers=2))
    with pytest.raises(kind) as error:
        _Through(model)(call)
    for word in words:
        assert word in str(error.value), error.value


class _Through(px.Module):
    """Whose error names the path of the layer in it."""

    def __init__(self, model: nn.Sequential) -> None:
        self.layers = model.layers

    def __call__(self, call: Callable[[Any], Any]) -> Any:
        return call(self.layers)


CONFIGS: dict[str, tuple[Callable[[], Any], str]] = {
    "layers": (lambda: nn.Lstm(3, 4, n_layers=0), "n_layers"),
    "width": (lambda: nn.Gru(3, 0), "d_hidden=0"),
    "dropout": (lambda: nn.Rnn(3, 4, dropout=1.5), "1.5"),
    "activation": (lambda: nn.Rnn(3, 4, activation="gelu"), "'gelu'"),  # pyright: ignore[reportArgumentType]
}


@pytest.mark.parametrize("case", CONFIGS)
def test_numbers_that_make_no_sense(case: str) -> None:
    make, word = CONFIGS[case]
    with pytest.raises(ConfigError, match=word):
        make()


def zeros(*shape: int) -> px.Tensor:
    return px.zeros(shape)


WRONG: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "rank": (lambda: px.functional.rnn(zeros(2, 3), zeros(2, 4), zeros(3, 4), zeros(4, 4)), ShapeError, "time"),
    "weight": (lambda: px.functional.gru(zeros(2, 1, 3), zeros(2, 4), zeros(3, 4), zeros(4, 12)), ShapeError, "weight"),
    "recurrent": (
        lambda: px.functional.gru(zeros(2, 1, 3), zeros(2, 4), zeros(3, 12), zeros(4, 4)),
        ShapeError,
        "recurrent",
    ),
    "features": (
        lambda: px.functional.rnn(zeros(2, 1, 5), zeros(2, 4), zeros(3, 4), zeros(4, 4)),
        ShapeError,
        "3 features",
    ),
    "bias": (
        lambda: px.functional.rnn(zeros(2, 1, 3), zeros(2, 4), zeros(3, 4), zeros(4, 4), zeros(3)),
        ShapeError,
        "bias",
    ),
    "recurrent bias": (
        lambda: px.functional.gru(
            zeros(2, 1, 3), zeros(2, 4), zeros(3, 12), zeros(4, 12), zeros(12), recurrent_bias=zeros(12)
        ),
        ShapeError,
        "recurrent_bias",
    ),
    "hidden": (lambda: px.functional.rnn(zeros(2, 1, 3), zeros(1, 4), zeros(3, 4), zeros(4, 4)), ShapeError, "hidden"),
    "cell": (
        lambda: px.functional.lstm(zeros(2, 1, 3), zeros(2, 4), zeros(2, 5), zeros(3, 16), zeros(4, 16)),
        ShapeError,
        "cell",
    ),
    "mask": (
        lambda: px.functional.rnn(
            zeros(2, 1, 3), zeros(2, 4), zeros(3, 4), zeros(4, 4), mask=px.zeros((1, 2), kind=px.Bool)
        ),
        ShapeError,
        "mask",
    ),
    "kind of mask": (
        lambda: px.functional.rnn(zeros(2, 1, 3), zeros(2, 4), zeros(3, 4), zeros(4, 4), mask=zeros(2, 1)),  # pyright: ignore[reportArgumentType]
        KindError,
        "Bool",
    ),
    "activation": (
        lambda: px.functional.rnn(zeros(2, 1, 3), zeros(2, 4), zeros(3, 4), zeros(4, 4), activation="gelu"),  # pyright: ignore[reportArgumentType]
        RangeError,
        "gelu",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_functions_refuse(case: str) -> None:
    call, kind, word = WRONG[case]
    with pytest.raises(kind, match=word):
        call()


def test_a_cell_refuses_what_does_not_fit() -> None:
    cell = nn.LstmCell(3, 2)
    with pytest.raises(ShapeError, match="3 features"):
        cell(px.ones((4, 5)))
    with pytest.raises(ShapeError, match="hidden"):
        cell(px.ones((4, 3)), cell.init_state(5))

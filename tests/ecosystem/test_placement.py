"""Where arrays lie under JAX's own tools: what nobody placed is free, and every layer works on an explicit mesh.

The programs run on one device and on four.

Serves: phlox/backend/jax/explicit.py
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest

import phlox as px
from phlox import functional, nn
from phlox.backend import Autodiff, Jax, NumPy
from tests.simulated_devices import check_on_devices

BATCH = 4
RNG = np.random.default_rng(0)


class Row(NamedTuple):
    """A layer or a function, and what it is called with; `axes` are those of the batch, None for none."""

    name: str
    make: Callable[[Any], Any]
    """Given a device."""
    inputs: tuple[np.ndarray[Any, Any], ...]
    axes: tuple[int | None, ...]
    keeps_batch: bool = True
    """Is the result cut as the batch is?"""


def floats(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.normal(size=shape).astype(np.float32)


def integers(high: int, *shape: int) -> np.ndarray[Any, Any]:
    return RNG.integers(0, high, size=shape).astype(np.int32)


def layer(name: str, of: str, *inputs: np.ndarray[Any, Any], **options: Any) -> Row:
    def make(device: Any) -> Any:
        made = getattr(nn, of)
        return made(**options, **({"device": device} if "device" in inspect.signature(made).parameters else {}))

    return Row(name, make, inputs, (0,) * len(inputs))


def function(name: str, fn: Callable[..., Any], *inputs: np.ndarray[Any, Any], axes: Any = None) -> Row:
    return Row(name, lambda device: fn, inputs, axes or (0,) * len(inputs))


class Padded(px.Module):
    """A recurrent layer of sequences of several lengths."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __call__(self, x: Any, lengths: Any) -> Any:
        return self.inner(x, lengths=lengths)


STEPS = floats(BATCH, 3, 4)
SEQUENCES, IMAGES, WIDE = floats(BATCH, 5, 4), floats(BATCH, 4, 6, 8), floats(BATCH, 5, 8)
ROTARY = nn.RotaryEncodingConfig(2)
QUERIES, KEYS = floats(BATCH, 2, 5, 4), floats(BATCH, 2, 6, 4)

OWN = [
    layer("dropout", "Dropout", IMAGES, rate=0.5),
    layer("embedding", "Embedding", integers(7, BATCH, 5), n_entries=7, d_model=6, padding_index=2),
    layer("attention layer", "MultiHeadAttention", WIDE, d_model=8, n_heads=2, dropout=0.2),
    layer(
        "attention layer, grouped",
        "MultiHeadAttention",
        WIDE,
        d_model=8,
        n_heads=4,
        n_kv_heads=2,
        causal=True,
        rotary=ROTARY,
    ),
    layer("attention layer, chunks", "MultiHeadAttention", floats(BATCH, 140, 8), d_model=8, n_heads=2, causal=True),
    layer("attention layer, across", "MultiHeadAttention", WIDE, floats(BATCH, 6, 8), d_model=8, n_heads=2),
    layer("rotary", "RotaryEncoding", floats(BATCH, 2, 5, 6), d_head=6, interleaved=True, d_rotary=4),
    layer("Rnn", "Rnn", STEPS, d_input=4, d_hidden=6, bidirectional=True),
    *(
        row
        for of in ("Lstm", "Gru", "Rnn")
        for row in (
            layer(f"{of}, both ways", of, STEPS, d_input=4, d_hidden=6, n_layers=2, bidirectional=True),
            layer(f"{of}, one way", of, STEPS, d_input=4, d_hidden=6),
            layer(f"{of} cell", f"{of}Cell", STEPS[:, 0], d_input=4, d_hidden=6),
            Row(
                f"{of} of lengths",
                lambda device, of=of: Padded(getattr(nn, of)(4, 6, device=device)),
                (STEPS, np.array([3, 1, 2, 3], np.int32)),
                (0, 0),
            ),
        )
    ),
    layer("conv, long window", "Conv1d", floats(BATCH, 4, 40), in_channels=4, out_channels=3, kernel=17),
    layer("conv, patches", "Conv2d", IMAGES, in_channels=4, out_channels=3, kernel=2, stride=2),
    layer("max pool, tiles", "MaxPool2d", IMAGES, window=2),
    function(
        "attention, masked",
        lambda q, k, m: nn.attention(q, k, k, mask=m > 0),
        QUERIES,
        KEYS,
        integers(3, BATCH, 1, 5, 6) + np.eye(5, 6, dtype=np.int32),
    ),
    function("attention of one head", lambda q, k: nn.attention(q, k, k), QUERIES[:, 0], KEYS[:, 0]),
    function("adaptive max pool", lambda x: functional.adaptive_max_pool2d(x, (3, 2)), IMAGES),
    function("interpolate", lambda x: functional.interpolate(x, scale_factor=2, mode="linear"), IMAGES),
    function("interpolate, cubic", lambda x: functional.interpolate(x, size=(5, 13), mode="cubic"), IMAGES),
    function("grid sample", lambda x, g: functional.grid_sample(x, g.tanh()), IMAGES, floats(BATCH, 3, 4, 2)),
    function("affine grid", lambda t: functional.affine_grid(t, (BATCH, 1, 3, 4)), floats(BATCH, 2, 3)),
    function("unfold", lambda x: functional.unfold(x, (3, 2)), IMAGES),
    function("fold", lambda x: functional.fold(x, (6, 5), (3, 2)), floats(BATCH, 12, 16)),
    function("pixel shuffle", lambda x: functional.pixel_shuffle(x, 2), IMAGES),
    function("response norm", lambda x: functional.local_response_norm(x, 3), IMAGES),
    function("cumulative sum", lambda x: x.cumsum(1), SEQUENCES),
    function("cumulative product", lambda x: x.cumprod(1), SEQUENCES),
    function("cumulative logsumexp", lambda x: x.logcumsumexp(1), SEQUENCES),
    layer("cosine similarity", "CosineSimilarity", SEQUENCES, floats(BATCH, 5, 4)),
    function("sort", lambda x: x.sort(1, descending=True), SEQUENCES),
    function("top k", lambda x: x.topk(2, 1)[0], SEQUENCES),
    function("gather", lambda x, at: x.take_along_axis(at, 1), floats(BATCH, 5), integers(5, BATCH, 3)),
    function("take of rows", lambda x, at: x.take(at, axis=0), floats(7, 3), integers(7, BATCH), axes=(None, 0)),
    function("one-hot", lambda x, at: x * px.one_hot(at, 6), floats(BATCH, 6), integers(6, BATCH)),
    function("concatenate", lambda x: px.concat([x, px.ones_like(x)], 1), SEQUENCES),
    function("write", lambda x: x.at[:, 1].set(0.0), SEQUENCES),
    function("reshape", lambda x: x.reshape((BATCH * 20, 1)).reshape((BATCH, 2, 10)) * 2.0, SEQUENCES),
    function("matrix products", lambda x, y: px.einsum("bij,bkj->bik", x, y), SEQUENCES, floats(BATCH, 3, 4)),
]


def of_logits(loss: Any, x: Any, *rest: Any) -> Any:
    """A loss of the logarithms of probabilities."""
    return loss(x.log_softmax(-1), *rest)


def table() -> list[Row]:
    """All of it: with the layers and the losses of the tables that compare them with PyTorch's."""
    from tests.nn.loss.test_losses import ROWS
    from tests.nn.test_layers import CASES

    batches = [case for case in CASES if len(case.shape) > 1]
    rows = [*OWN, *[Row(case.name, case.make, (floats(BATCH, *case.shape[1:]),), (0,)) for case in batches]]
    for number, (name, options, _, inputs) in enumerate(ROWS):
        of_sequences = name == "CtcLoss"
        axes = tuple(1 if of_sequences and not place else 0 for place in range(len(inputs)))
        fitted = [
            np.take(np.asarray(x), np.arange(BATCH) % np.shape(x)[axis], axis)
            for x, axis in zip(inputs, axes, strict=True)
        ]
        if "Contrastive" in name:  # of pairs of the batch
            fitted = [x[:, :BATCH] for x in fitted]
        arrays = tuple(x.astype(np.int32 if x.dtype.kind == "i" else np.float32) for x in fitted)
        loss = getattr(nn, f"{name}Config")(**options, reduction="none" if number % 2 else "mean").init()
        start = partial(of_logits, loss) if of_sequences else loss
        rows.append(Row(f"{name} {number}", lambda device, start=start: start, arrays, axes, bool(number % 2)))
    return rows


SPLIT = ("linear", "attention layer, grouped", "Lstm, one way", "Gru cell", "Rnn of lengths", "embedding")
"""Those whose matrices are also cut along their columns, over another axis of the mesh."""

PLAIN = frozenset(
    "relu relu6 elu selu celu gelu silu mish sigmoid softplus softsign tanh tanhshrink threshold identity".split()  # noqa: SIM905
)
"""Functions element by element, of which there need be no program to see that they are right."""

TRACED = PLAIN | {
    "conv 1d", "conv 3d", "transposed conv 1d", "transposed conv 3d", "max pool 1d", "max pool 3d", "mean pool 1d",
    "mean pool 3d", "adaptive mean pool 1d", "adaptive mean pool 3d", "batch norm", "batch norm of sequences",
    "batch norm of volumes", "layer norm", "instance norm", "softmin", "softmax", "sort", "cumulative product",
    "Lstm of lengths", "Gru of lengths", "Lstm cell", "Rnn cell", "CrossEntropyLoss 0", "CrossEntropyLoss 1",
    "CrossEntropyLoss 2", "CrossEntropyLoss 3", "cumulative logsumexp", "BinaryCrossEntropyWithLogitsLoss 8",
    "KlDivLoss 14", "PoissonNllLoss 17", "HuberLoss 12", "NllLoss 6", "L1Loss 11", "hard swish", "hard sigmoid",
    "hard tanh", "hard shrink", "soft shrink", "leaky relu", "prelu", "log sigmoid", "glu", "geglu", "swiglu",
    "SmoothL1Loss 13", "KlDivLoss 15", "PoissonNllLoss 16", "GaussianNllLoss 18", "HingeEmbeddingLoss 19",
    "MarginRankingLoss 20", "BinaryCrossEntropyLoss 7", "BinaryCrossEntropyWithLogitsLoss 9",
}  # fmt: skip
"""Those, and what is cut as another row is, of another number of axes or another option."""


def outcomes(y: Any) -> Iterator[Any]:
    """The tensors of a result."""
    if isinstance(y, px.Tensor):
        yield y
    else:
        for part in y if isinstance(y, (tuple, list)) else vars(y).values():
            yield from outcomes(part)


def weighted(y: Any, backend: Any) -> Any:
    """A number that depends on every float of a result, each with a weight of its own."""
    tensors = [one for one in outcomes(y) if one.kind is px.Float]
    weights = [np.cos(np.arange(one.size, dtype=np.float32)).reshape(one.shape) for one in tensors]
    return sum((x * px.tensor(w, device=backend)).sum() for x, w in zip(tensors, weights, strict=True))


def by_tape(model: Any, arrays: Any, backend: Any) -> Any:
    """The results, and the gradients of the floats among the inputs and of the trained parameters, of the tape."""
    import jax

    inputs = [px.Tensor.from_primitive(x, Autodiff(backend)) for x in arrays]
    inputs = [x.require_grad() if x.kind is px.Float else x for x in inputs]
    model = model.train() if isinstance(model, px.Module) else model
    with px.random.stream(jax.random.key(3)):
        y = model(*inputs)
    grads = weighted(y, backend).backward()
    given = [x for x in inputs if x.kind is px.Float]
    found = [px.zeros(x.shape, device=backend) if (one := x.grad(grads)) is None else one for x in given]
    if isinstance(model, px.Module):
        own = px.GradientsParams.from_grads(grads, model)
        found += [own.get(param.id) for param in model.params() if param.trained]
    return [x.inner().primitive for x in outcomes(y)], [x.primitive for x in found if x is not None]


def by_jax(model: Any, arrays: Any, backend: Any) -> Any:
    """The same of `jax.grad`."""
    import jax

    def loss(model: Any, given: dict[int, Any]) -> Any:
        inputs = [px.Tensor.from_primitive(given.get(place, x), backend) for place, x in enumerate(arrays)]
        model = model.train(tape=False) if isinstance(model, px.Module) else model
        with px.random.stream(jax.random.key(3)):
            y = model(*inputs)
        return weighted(y, backend).primitive, [one.primitive for one in outcomes(y)]

    given = {place: x for place, x in enumerate(arrays) if x.dtype.kind == "f"}
    if not isinstance(model, px.Module):
        grads, y = jax.grad(lambda given: loss(model, given), has_aux=True)(given)
        return y, list(grads.values())
    (of_model, grads), y = jax.grad(loss, argnums=(0, 1), has_aux=True)(model, given)
    trained = [param.trained for param in model.params()]
    params = [param.val() for param, one in zip(of_model.params(), trained, strict=True) if one]
    return y, [*grads.values(), *[one.primitive for one in params]]


class Stage(NamedTuple):
    """Rows on an explicit mesh, by the derivatives of JAX and of the tape."""

    rows: list[Row]
    data: int
    """Devices that the batch is cut over."""
    columns: int
    """Devices that the columns of matrices are cut over."""
    valued: frozenset[str]
    """The rows that are compared with NumPy, by `jax.grad`; the others are traced, which needs no program."""
    valued_by_tape: frozenset[str] = frozenset()
    backend: str = "cpu"


def stages() -> Iterator[Stage]:
    rows = table()
    split = [row for row in rows if row.name in SPLIT]
    alone = {row.name for row in rows if "," not in row.name}
    yield Stage(rows, 4, 1, frozenset(alone - TRACED - set(SPLIT)))
    yield Stage(split, 2, 2, frozenset(SPLIT), frozenset({"linear", "embedding", "attention layer, grouped"}))
    yield Stage(split, 1, 1, frozenset({"linear", "embedding", "attention layer, grouped"}))
    yield Stage(rows, 4, 1, frozenset(), backend="gpu")


def run() -> None:
    """All stages, on four devices."""
    import jax

    every = list(stages())
    models = {row.name: row.make(NumPy().device()) for row in every[0].rows}
    assert len(models) == len(every[0].rows)
    models = {name: one.init(0) if isinstance(one, px.Module) else one for name, one in models.items()}
    wanted = {
        row.name: by_tape(models[row.name], row.inputs, NumPy())
        for row in every[0].rows
        if any(row.name in stage.valued for stage in every)
    }
    models = {
        name: one.to_device(Jax().device()) if isinstance(one, px.Module) else one for name, one in models.items()
    }
    for stage in every:
        if jax.default_backend() != stage.backend:
            jax.clear_caches()
            jax.default_backend = lambda stage=stage: stage.backend
        for (name, way), found in found_in(stage, models).items():
            where = f"{name}, {way}, {stage.data} x {stage.columns}"
            for mine, its in zip(found, wanted[name], strict=True):
                assert len(mine) == len(its), where
                for x, y in zip(mine, its, strict=True):
                    np.testing.assert_allclose(np.asarray(x), y, rtol=2e-4, atol=5e-5, err_msg=where)


def found_in(stage: Stage, models: dict[str, Any]) -> dict[tuple[str, str], Any]:
    """The results and gradients of the rows that are valued, by row and derivative."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    rows, data, cut_over = stage.rows, stage.data, stage.columns
    names, sizes = (("data", "model"), (data, cut_over)) if cut_over > 1 else (("data",), (data,))
    mesh = jax.make_mesh(sizes, names, devices=jax.devices()[: data * cut_over])
    ways = (by_tape,) if stage.backend == "gpu" else (by_jax, by_tape)

    def placed(x: Any, spec: PartitionSpec) -> Any:
        return jax.device_put(x, NamedSharding(mesh, spec))

    def columns(x: Any) -> PartitionSpec:
        cut = cut_over > 1 and x.ndim == 2 and x.shape[1] % cut_over == 0
        return PartitionSpec(None, "model") if cut else PartitionSpec()

    with jax.set_mesh(mesh):
        arrays = {
            row.name: [
                placed(x, PartitionSpec() if axis is None else PartitionSpec(*(None,) * axis, "data"))
                for x, axis in zip(row.inputs, row.axes, strict=True)
            ]
            for row in rows
        }
        there = {row.name: one for row in rows if isinstance(one := models[row.name], px.Module)}
        there = jax.tree.map(lambda x: placed(x, columns(x)), there)

        def everything(there: Any, arrays: Any) -> Any:
            found: dict[tuple[str, str], Any] = {}
            for row in rows:
                for way in ways:
                    where = f"{row.name}, {way.__name__}, {data} x {cut_over} on {stage.backend}"
                    try:
                        y, grads = way(there.get(row.name, models[row.name]), arrays[row.name], Jax())
                    except Exception as error:
                        raise AssertionError(f"{where}: {error}") from error
                    spec = jax.typeof(y[0]).sharding.spec
                    assert not row.keeps_batch or "data" in spec, f"{where}: the batch is gathered, {spec}"
                    if row.name in (stage.valued if way is by_jax else stage.valued_by_tape):
                        found[row.name, way.__name__] = y, grads
            return found

        if not stage.valued:
            jax.jit(everything).trace(there, arrays)
            return {}
        return jax.jit(everything)(there, arrays)


def test_every_layer_is_in_the_table() -> None:
    rows = table()
    assert {*TRACED, *SPLIT} <= {row.name for row in rows}
    made = [row.make(NumPy().device()) for row in rows]
    tested = {type(one) for one in made} | {nn.CtcLoss, nn.Sequential, nn.Activation}
    # tests/nn/test_mixture_of_experts.py trains them on several devices.
    tested |= {nn.MixtureOfExperts, nn.Router, nn.ExpertLinear, nn.LatentAttention}
    everything = {value for name in nn.__all__ if isinstance(value := getattr(nn, name), type)}
    assert {one for one in everything if issubclass(one, px.Module)} <= tested


PLACED = """
import io
import jax, jax.numpy as jnp, numpy as np, pytest, torch
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Jax

count = jax.device_count()
large = np.ones((512, 1024), np.float32)
x = px.tensor(np.random.default_rng(0).normal(size=(8, 4)).astype("float32"), device="jax")


def made(device):
    return nn.Sequential([nn.Linear(4, 8, device=device), nn.Tanh(), nn.Linear(8, 8, device=device)]).init(0)


def held(tensor):
    return tensor.primitive.committed


# What nobody placed is free, whatever made it; what is asked for by its number is not.
def every(device, host):
    model = made(device)
    loss = model.train()(px.ones((2, 4), device=device)).square().mean()
    stepped = optim.AdamWConfig().init().step(
        0.1, model.train(), optim.GradientsParams.from_grads(loss.backward(), model.train())
    )
    tensors = [
        px.ones((2,), device=device), px.arange(3, device=device), px.tensor([True], device=device),
        px.tensor(large, device=device), px.from_dlpack(np.ones(3, np.float32), device=device),
        px.from_dlpack(torch.ones(3), device=device), px.from_dlpack(jnp.ones(3), device=device),
        px.ones((2,), device=host).to_device(device), px.ones((2,), device="torch").to_device(device),
        px.eye(2, device=device), px.random.permutation(3, device=device), *jax.tree.leaves(model),
        *jax.tree.leaves(stepped.valid()), px.zeros_like(px.ones((2,), device=device)),
        made("numpy").to_device(device).params()[0].val(), px.ones((2,), device=device).exp(),
    ]
    with px.default_device(device):
        tensors += [px.ones((2,)), px.random.normal((2,)), made(None).params()[0].val()]
    return [one if isinstance(one, jax.Array) else one.primitive for one in tensors]


last = f"jax:cpu:{count - 1}" if count > 1 else "jax"
assert not any(one.committed for one in every("jax", last))
if count > 1:
    for name in ("jax:cpu:0", last):
        found = every(name, "jax")
        assert all(one.committed for one in found) and {f"jax:cpu:{one.device.id}" for one in found} == {name}
    back = px.ones((2,), device=last).to_device("jax")
    assert back.device.name == "cpu:0" and not held(back)
    with jax.default_device(jax.devices()[1]):  # JAX's own way to say where
        assert px.ones((2,), device="jax").device.name == "cpu:1" and not held(px.ones((2,), device="jax"))

# JAX's tools take it to where they work.
wanted = made("numpy")(x.to_device("numpy")).numpy()
auto, explicit = (jax.make_mesh((count,), ("data",), axis_types=(kind,)) for kind in (AxisType.Auto, AxisType.Explicit))
for mesh in (auto, explicit):
    model = made("jax").valid()
    mapped = jax.jit(jax.shard_map(lambda m, x: m(x), mesh=mesh, in_specs=(P(), P("data")), out_specs=P("data")))
    cut, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
    placed = jax.jit(lambda m, x: m(x), in_shardings=(jax.tree.map(lambda leaf: whole, model), cut))
    given = x if mesh is auto else jax.device_put(x, cut)  # shard_map takes no other type in the explicit mode
    for run in (mapped, placed):
        np.testing.assert_allclose(run(model, given).numpy(), wanted, rtol=1e-5, atol=1e-6)
    with jax.set_mesh(mesh):
        for new in (model, made("jax").valid()):  # made before, and here
            there = jax.device_put(x, cut)
            for found in (new(there), jax.jit(lambda m, x: m(x))(new, there), jax.jit(lambda m, x: m(x))(new, x)):
                np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5, atol=1e-6)
            grads = jax.jit(jax.grad(lambda m: m(there).square().mean().primitive))(new)
            assert all(np.isfinite(one).all() for one in map(np.asarray, jax.tree.leaves(grads)))
parts = jax.tree.map(lambda a: a.reshape(count, -1, 4), x.primitive)
found = jax.pmap(lambda m, x: m(px.Tensor.from_primitive(x, Jax())).primitive, in_axes=(None, 0))(model, parts)
np.testing.assert_allclose(np.asarray(found).reshape(8, 8), wanted, rtol=1e-5, atol=1e-6)

# A compiled step that donates is made once, of what is free, of what is placed, and of both; the model stays there.
for of_model, of_batch in ([("jax", "jax"), ("jax", last), (last, last)] if count > 1 else [("jax", "jax")]):
    model, optimizer = made(of_model), optim.AdamWConfig().init()
    traced = []

    def step(model, optimizer, x):
        traced.append(1)
        loss = model.train()(x).square().mean()
        grads = optim.GradientsParams.from_grads(loss.backward(), model.train())
        return optimizer.step(0.1, model, grads)

    step = px.compile(step, donate=("model", "optimizer"))
    batch = px.ones((8, 4), device=of_batch)
    for number in range(4):  # the first makes the optimizer's state
        model = step(model, optimizer, batch)
        made_by_then = len(traced) if number < 2 else made_by_then
    places = {param.val().device.name for param in model.params()}
    stays = {px.ones((1,), device=of_model).device.name}
    assert len(traced) == made_by_then and places == stays, (of_model, of_batch, places)
"""


def test_what_nobody_placed_is_free_here() -> None:
    exec(compile(PLACED, "PLACED", "exec"), {"__name__": "placed"})


@pytest.mark.full
def test_four_devices() -> None:
    """What nobody placed is free, and every layer works on an explicit mesh."""
    program = (
        "from tests.ecosystem import test_placement as it; exec(compile(it.PLACED, 'PLACED', 'exec'), {}); it.run()"
    )
    check_on_devices(4, program, flags="--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true")

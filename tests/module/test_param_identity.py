"""No two parameters of one module have one id: copies that are put together are told apart, tied ones stay tied."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
import pytest

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch
from phlox.errors import ModuleError
from phlox.module import ParamId
from phlox.module.structure import Structure
from phlox.record import gather, load, restore, save

BACKENDS: list[Backend] = [NumPy(), Jax(), Torch()]

ON = pytest.mark.parametrize("backend", BACKENDS, ids=repr)


def made(backend: Backend) -> nn.Linear:
    return nn.Linear(3, 3, device=Autodiff(backend).device()).init(0)


def of_file(base: nn.Linear, backend: Backend) -> nn.Linear:
    return made(backend).load_record(base.into_record())


COPIES: dict[str, Callable[[nn.Linear, Backend], nn.Linear]] = {
    "deepcopy": lambda base, backend: copy.deepcopy(base),
    "pickle": lambda base, backend: pickle.loads(pickle.dumps(base)),  # noqa: S301
    "map": lambda base, backend: base.map(lambda path, param: param),
    "map of values": lambda base, backend: base.map(lambda path, param: param.map(lambda x: x)),
    "copies of parameters": lambda base, backend: base.map(lambda path, param: copy.copy(param)),
    "one checkpoint": of_file,
    "valid and train": lambda base, backend: base.valid().train(),
    "to_device": lambda base, backend: base.to_device(Autodiff(backend)),
    "tree.map": lambda base, backend: jax.tree.map(lambda x: x + 0, base),
    "flattened": lambda base, backend: jax.tree.unflatten(*reversed(jax.tree.flatten(base))),
}


class Net(px.Module):
    def __init__(self, layers: Any) -> None:
        self.layers = layers

    def __call__(self, x: px.Tensor) -> px.Tensor:
        for layer in self.layers.values() if isinstance(self.layers, dict) else self.layers:
            x = layer(x)
        return x


def by_setattr(layers: list[Any]) -> Any:
    net = Net([])
    for number, layer in enumerate(layers):
        setattr(net, f"layer{number}", layer)
        net.params()  # it is known before the next one comes
        net.layers = [*net.layers, layer]
    return net


def by_append(layers: list[Any]) -> Any:
    net = Net([layers[0]])
    for layer in layers[1:]:
        net.params()
        net.layers.append(layer)
    return net


TOGETHER: dict[str, Callable[[list[Any]], Any]] = {
    "a list": Net,
    "a tuple": lambda layers: Net(tuple(layers)),
    "a dict": lambda layers: Net({f"l{number}": layer for number, layer in enumerate(layers)}),
    "sequential": nn.Sequential,
    "setattr": by_setattr,
    "append": by_append,
    "nested": lambda layers: Net([Net(layers[:2]), Net(layers[2:])]),
}


def gradients(net: Any, x: px.Tensor) -> tuple[list[Any], list[str]]:
    """By id, and by finite differences in float64 with NumPy alone."""
    grads = px.GradientsParams.from_grads(net(x).square().sum().backward(), net)
    return [grads.get(param.id) for param in net.params()], [param.id for param in net.params()]


def expected(net: Any, x: px.Tensor) -> list[np.ndarray[Any, Any]]:
    arrays = [param.val().numpy().astype(np.float64) for param in net.params()]
    inputs = x.numpy().astype(np.float64)

    def loss() -> float:
        h = inputs
        for weight, bias in zip(arrays[::2], arrays[1::2], strict=True):
            h = h @ weight + bias
        return float(np.square(h).sum())

    found: list[np.ndarray[Any, Any]] = []
    for array in arrays:
        slope = np.zeros_like(array)
        for at in np.ndindex(array.shape):
            before = array[at]
            array[at] = before + 1e-5
            up = loss()
            array[at] = before - 1e-5
            slope[at] = (up - loss()) / 2e-5
            array[at] = before
        found.append(slope)
    return found


@ON
@pytest.mark.parametrize("how", COPIES)
def test_copies_that_are_put_together_get_gradients_of_their_own(how: str, backend: Backend) -> None:
    base = made(backend)
    net = nn.Sequential([COPIES[how](base, backend) for _ in range(3)])
    x = px.ones((2, 3), device=base.weight.device)
    found, ids = gradients(net, x)  # the first call comes before anybody has looked at the parameters
    assert len(set(ids)) == 6 and ids[:2] == [param.id for param in base.params()]
    for gradient, wanted in zip(found, expected(net, x), strict=True):
        np.testing.assert_allclose(gradient.numpy(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("place", TOGETHER)
def test_wherever_they_are_put(place: str) -> None:
    base = made(NumPy())
    net = TOGETHER[place]([base, *[copy.deepcopy(base) for _ in range(2)]])
    x = px.ones((2, 3), device=base.weight.device)
    for one in (net, net.map(lambda path, param: param), net.valid().train(), pickle.loads(pickle.dumps(net))):  # noqa: S301
        found, ids = gradients(one, x)
        assert ids == [param.id for param in net.params()] and len(set(ids)) == 6
        assert base.weight.id in ids
        for gradient, wanted in zip(found, expected(net, x), strict=True):
            np.testing.assert_allclose(gradient.numpy(), wanted, rtol=1e-4, atol=1e-4)
    aux = Structure(net)
    assert aux.owners == dict(zip(aux.owners, aux.params, strict=True)) and list(aux.owners) == [
        p.id for p in aux.params
    ]


def test_a_whole_copy_keeps_the_ids_and_tied_parameters_stay_tied() -> None:
    model = nn.Sequential([made(NumPy()), made(NumPy())])
    model.layers[1].weight = model.layers[0].weight
    ids = [param.id for param in model.params()]
    assert len(ids) == 3
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), model.valid(), jax.tree.map(abs, model)):  # noqa: S301
        assert [param.id for param in twin.params()] == ids
        assert twin.layers[0].weight is twin.layers[1].weight
    both = nn.Sequential([model, copy.deepcopy(model)])
    assert len({param.id for param in both.params()}) == 6 == len(both.params())
    second: Any = both.layers[1]
    assert second.layers[0].weight is second.layers[1].weight


def test_the_one_that_was_there_keeps_its_id_and_its_state() -> None:
    model = nn.Sequential([made(NumPy()), made(NumPy())])
    optimizer = optim.AdamConfig().init()
    x = px.ones((2, 3), device=Autodiff(NumPy()))

    def step(model: Any) -> Any:
        grads = px.GradientsParams.from_grads(model(x).square().mean().backward(), model)
        return optimizer.step(0.1, model, grads)

    model = step(model)
    old: list[Any] = list(model.layers)
    ids = [param.id for param in model.params()]
    before = {id: state["moment_1"].numpy() for id, state in optimizer.states.items()}
    model.layers.insert(0, copy.deepcopy(old[0]))  # before the one that is trained
    model.layers.append(copy.deepcopy(old[1]))
    assert [param.id for param in model.params()][2:6] == ids
    assert len({param.id for param in model.params()}) == 8
    report = optimizer.report(model)
    assert (
        report.kept == [f"layers.{n}.{name}" for n in (1, 2) for name in ("weight", "bias")] and len(report.anew) == 4
    )
    model = step(model)
    assert len(optimizer.states) == 8
    assert any(not np.array_equal(optimizer.states[id]["moment_1"].numpy(), before[id]) for id in ids)


@ON
def test_a_target_network_stays(backend: Backend) -> None:
    class Agent(px.Module):
        def __init__(self) -> None:
            self.online = made(backend)
            self.target = copy.deepcopy(self.online)

    def learn(agent: Any, optimizer: Any, x: px.Tensor) -> Any:
        loss = (agent.online(x) - agent.target(x).detach() - 1.0).square().mean()
        return optimizer.step(0.1, agent, px.GradientsParams.from_grads(loss.backward(), agent))

    agent, optimizer = Agent(), optim.AdamConfig().init()
    x = px.ones((4, 3), device=agent.online.weight.device)
    for run in (learn, px.compile(learn)) if backend == Jax() else (learn,):
        after = run(agent, optimizer, x)
        assert np.array_equal(after.target.weight.val().numpy(), agent.target.weight.val().numpy())
        assert not np.array_equal(after.online.weight.val().numpy(), agent.online.weight.val().numpy())
        assert [param.id for param in after.params()] == [param.id for param in agent.params()]
        agent = after
    # A new copy in its place is the same parameter to whoever follows it.
    ids = [param.id for param in agent.params()]
    agent.target = copy.deepcopy(agent.online)
    assert [param.id for param in agent.params()] == ids


def test_a_target_is_renewed_within_a_loop_of_compiled_steps() -> None:
    class Agent(px.Module):
        def __init__(self) -> None:
            self.online = made(Jax())
            self.target = copy.deepcopy(self.online)

    def learn(agent: Any, optimizer: Any, x: px.Tensor) -> Any:
        loss = (agent.online(x) - agent.target(x).detach() - 1.0).square().mean()
        agent = optimizer.step(0.1, agent, px.GradientsParams.from_grads(loss.backward(), agent))
        agent.target = copy.deepcopy(agent.online)
        return agent

    x = px.ones((4, 3), device=Autodiff(Jax()))
    agent = Agent()
    alone, together = agent, px.compile(learn, steps=3)(agent, optim.SgdConfig().init(), x)
    optimizer = optim.SgdConfig().init()
    for _ in range(3):
        alone = learn(alone, optimizer, x)
    for one, other in zip(alone.params(), together.params(), strict=True):
        np.testing.assert_allclose(one.val().numpy(), other.val().numpy(), rtol=1e-5)
    assert [param.id for param in together.params()] == [param.id for param in agent.params()]


def test_two_towers_of_one_checkpoint(tmp_path: Path) -> None:
    path = made(NumPy()).save(tmp_path / "tower")
    towers = Net({"left": made(NumPy()), "right": made(NumPy())})
    fresh = [param.id for param in towers.params()]
    towers.layers["left"].load(path)
    assert [param.id for param in towers.params()][2:] == fresh[2:]
    left = [param.id for param in towers.params()][:2]
    towers.layers["right"].load(path)
    assert [param.id for param in towers.params()] == [*left, *fresh[2:]]  # it has no id that was another's already
    optimizer, again = optim.AdamConfig().init(), optim.AdamConfig().init()
    x = px.ones((2, 3), device=Autodiff(NumPy()))
    grads = px.GradientsParams.from_grads(towers(x).square().sum().backward(), towers)
    assert len(grads) == 4
    after = optimizer.step(0.1, towers, grads)
    save(gather(model=after, optimizer=optimizer), tmp_path / "run")
    resumed = Net({"left": made(NumPy()), "right": copy.deepcopy(made(NumPy()))})
    restore(load(tmp_path / "run"), model=resumed, optimizer=again)
    assert [param.id for param in resumed.params()] == [param.id for param in after.params()]
    assert again.report(resumed).ok and again.states.keys() == optimizer.states.keys()


def test_a_mapper_that_gives_one_id_to_all() -> None:
    model = nn.Sequential([made(NumPy()), made(NumPy())])
    same = model.map(lambda path, param: px.Param(param.val(), id=ParamId("one")))
    ids = [param.id for param in same.params()]
    assert ids[0] == "one" and len(set(ids)) == 4


def test_stacked_and_vmapped_ensembles() -> None:
    base = nn.Linear(3, 2, device="jax").init(0)
    ensemble = px.stack_modules([base, copy.deepcopy(base)])
    assert not {param.id for param in ensemble.params()} & {param.id for param in base.params()}
    members = px.unstack_modules(ensemble)
    assert len({param.id for param in nn.Sequential(members).params()}) == 4
    out = px.vmap(lambda model, x: model(x), in_axes=(0, None))(ensemble, px.ones((1, 3), device="jax"))
    assert out.shape == (2, 1, 2)


def test_threads_that_look_at_once_see_the_same_ids() -> None:
    base = made(NumPy())
    for _ in range(20):
        net = nn.Sequential([copy.deepcopy(base) for _ in range(8)])
        found: list[Any] = []
        barrier = threading.Barrier(4)

        def look(net: Any = net, found: list[Any] = found, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            found.append(tuple(param.id for param in net.params()))

        threads = [threading.Thread(target=look) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [tuple(param.id for param in net.params())] * 4 and len(set(found[0])) == 16


def test_a_copy_in_a_differentiated_function_keeps_its_history() -> None:
    """A value that was computed is no leaf: what it was made of gets the gradient."""
    model = made(NumPy())

    def loss(scale: px.Tensor) -> px.Tensor:
        scaled = model.map(lambda path, param: param.around(param.val() * scale))
        return copy.deepcopy(scaled.map(lambda path, param: param))(px.ones((1, 3), device=scale.device)).sum()

    got = px.grad(loss)(px.tensor(2.0, device=Autodiff(NumPy())))
    assert got.item() == pytest.approx(sum(float(param.val().numpy().sum()) for param in model.params()), rel=1e-5)


def test_a_frozen_view_has_the_leaves_of_the_module() -> None:
    model = made(NumPy())
    x = px.ones((1, 3), device=model.weight.device)
    grads = px.GradientsParams.from_grads(model(x).sum().backward(), model.freeze("bias"))
    assert list(grads) == [model.weight.id]


def test_a_mapper_that_gives_back_some_parameters_keeps_their_leaves() -> None:
    """As a loss does that replaces some weights by what it computes of them."""
    model = made(NumPy())
    x = px.ones((1, 3), device=model.weight.device)

    def loss(model: Any) -> px.Tensor:
        fast = model.map(lambda path, param: param.around(param.val() * 2.0) if path == "weight" else param)
        return fast(x).square().sum()

    _, grads = px.value_and_grad(loss)(model)
    weight, bias = (param.val().numpy().astype(np.float64) for param in model.params())
    assert model.bias is not None
    np.testing.assert_allclose(grads.get(model.bias.id).numpy(), 2.0 * (2.0 * weight.sum(0) + bias), rtol=1e-5)
    np.testing.assert_allclose(grads.get(model.weight.id).numpy()[0], 4.0 * (2.0 * weight.sum(0) + bias), rtol=1e-5)


def test_views_that_were_one_leaf_are_told() -> None:
    model = made(NumPy())
    x = px.ones((1, 3), device=model.weight.device)
    net = nn.Sequential([model, model.freeze("bias")])
    grads = net(x).sum().backward()
    with pytest.raises(ModuleError, match=r"`layers\.0\.weight` and `layers\.1\.weight` were one leaf"):
        px.GradientsParams.from_grads(grads, net)
    assert len(px.GradientsParams.from_grads(net(x).sum().backward(), net)) == 3  # now they are two


class Named(px.Module):
    def __init__(self, name: str, value: Any) -> None:
        setattr(self, name, value)


@pytest.mark.parametrize(
    "name", ["_structure", "_pending", "_watchers", "_template", "_values", "paths", "id", "aux", "key"]
)
def test_fields_of_any_name(name: str) -> None:
    model = Named(name, [nn.Linear(2, 2).init(0), 3])
    expected = [f"{name}.0.weight", f"{name}.0.bias"]
    for one in (model, pickle.loads(pickle.dumps(model)), copy.deepcopy(model), model.valid(), model.to_device("jax")):  # noqa: S301
        assert [path for path, _ in one.named_params()] == expected
        assert getattr(one, name)[1] == 3
    jitted = px.compile(lambda model: model.map(lambda path, p: p.map(lambda x: x * 2.0)))(model.to_device("jax"))
    assert [path for path, _ in jitted.named_params()] == expected and getattr(jitted, name)[1] == 3


@pytest.mark.parametrize("name", ["map", "params", "structure", "init", "save", "train", "changed", "_phlox_structure"])
def test_fields_that_would_hide_a_method(name: str) -> None:
    with pytest.raises(ModuleError, match=f"Named: a field cannot be called `{name}`.*another name"):
        Named(name, 3)
    model = Named("other", nn.Linear(2, 2))
    if not name.startswith("_") and name not in ("structure", "params"):
        vars(model)[name] = 3
        with pytest.raises(ModuleError, match=f"a field cannot be called `{name}`"):
            model.params()


class Guarded(px.Module):
    def __init__(self) -> None:
        self.layer = nn.Linear(2, 3)
        self.asked = 0

    @property
    def width(self) -> int:
        self.asked += 1
        return cast("Any", self.layer).wieght.shape[1]

    @property
    def twice(self) -> int:
        return 2 * self.width


@pytest.mark.parametrize("name", ["width", "twice"])
def test_an_attribute_error_in_a_property_keeps_its_cause(name: str) -> None:
    model = Guarded()
    for one in (model, model.map(lambda path, param: param), jax.tree.map(abs, model.to_device("jax"))):
        with pytest.raises(AttributeError, match="'Linear' object has no attribute 'wieght'"):
            getattr(one, name)
        assert not hasattr(one, name)
    with pytest.raises(AttributeError, match="'Guarded' object has no attribute 'widht'"):
        _ = cast("Any", model).widht

"""Observing the calls of a model's modules."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import phlox as px
from phlox import nn
from phlox.module.calls import Call, FunctionLayer, named_modules, observed, with_function_layers

X = px.ones((2, 4))


def seen(model: px.Module, run: Any = None) -> list[str]:
    found: list[str] = []
    with observed(model, lambda call: found.append(call.path)):
        model(X) if run is None else run()
    return found


class Net(px.Module):
    """A module of each sort of container; `twice` is called twice, `never` not at all."""

    def __init__(self) -> None:
        self.first = nn.Linear(4, 4)
        self.pair = (nn.Relu(), nn.Linear(4, 4))
        self.by_name = {"a": [nn.Linear(4, 4)], "b": "no module"}
        self.twice = nn.Dropout(0.1)
        self.never = nn.Linear(4, 4)

    def __call__(self, x: px.Tensor, *, more: px.Tensor | None = None) -> dict[str, Any]:
        x = self.twice(self.first(x))
        for layer in self.pair:
            x = layer(x)
        return {"y": self.twice(self.by_name["a"][0](x)), "more": more}


def test_paths_and_order() -> None:
    model = Net()
    wanted = ["first", "twice", "pair.0", "pair.1", "by_name.a.0", "twice", ""]
    assert seen(model) == wanted
    paths = [path for path, _ in named_modules(model)]
    assert paths == ["", "first", "pair.0", "pair.1", "by_name.a.0", "twice", "never"]


def test_paths_are_those_of_parameters() -> None:
    model = nn.Sequential([nn.Linear(2, 3), nn.Sequential(body=nn.Linear(3, 3))])
    owners = {path.rpartition(".")[0] for path, _ in model.named_params()}
    assert owners <= {path for path, _ in named_modules(model)}


def test_what_goes_in_and_comes_out() -> None:
    model = Net()
    entered: list[Call] = []
    left: list[Call] = []

    def enter(call: Call) -> None:
        assert call.outputs is None
        call.notes["number"] = len(entered)
        entered.append(call)

    with observed(model, left.append, on_enter=enter):
        y = model(X, more=X)
    assert {id(call) for call in entered} == {id(call) for call in left}
    root, first = entered[0], entered[1]
    assert root.path == "" and root.module is model and root.within is None
    assert root.args == (X,) and root.kwargs == {"more": X} and root.outputs is y
    assert first.module is model.first and first.within is root and first.args[0] is X and first.notes == {"number": 1}


def test_classes_are_as_they_were_afterwards() -> None:
    before = {cls: vars(cls)["__call__"] for cls in (Net, nn.Linear, nn.Dropout)}
    with observed(Net(), lambda call: None):
        assert vars(nn.Linear)["__call__"] is not before[nn.Linear]
        with observed(nn.Linear(4, 4), lambda call: None):
            pass
        assert vars(nn.Linear)["__call__"] is not before[nn.Linear]
    assert {cls: vars(cls)["__call__"] for cls in before} == before


def test_an_exception_goes_its_way() -> None:
    model = nn.Sequential([nn.Linear(4, 4), nn.Linear(5, 4)])
    before, found = vars(nn.Linear)["__call__"], list[str]()
    with observed(model, lambda call: found.append(call.path)):
        with pytest.raises(px.errors.ShapeError, match=r"layers\.1"):
            model(X)
        assert found == ["layers.0"]
        model.layers[0](X)
        assert found == ["layers.0"] * 2
    assert vars(nn.Linear)["__call__"] is before


def test_an_error_of_the_observer_comes_out() -> None:
    def refuse(call: Call) -> None:
        raise RuntimeError("no")

    model = nn.Linear(4, 4)
    with observed(model, refuse), pytest.raises(RuntimeError, match="no"):
        model(X)


def test_strangers_are_not_observed() -> None:
    model, other = nn.Linear(4, 4), nn.Linear(4, 4)
    assert seen(model, lambda: other(X)) == []


def test_views_stand_where_the_module_does() -> None:
    model = nn.Sequential([nn.Linear(4, 4), nn.Linear(4, 4)])
    assert seen(model, lambda: model.layers[1].valid()(X)) == ["layers.1"]
    assert seen(model, lambda: model.freeze()(X)) == ["layers.0", "layers.1", ""]


def test_a_subclass_that_calls_its_base_is_one_call() -> None:
    class Loud(nn.Linear):
        def __call__(self, x: px.Tensor) -> px.Tensor:
            return super().__call__(x) * 2.0

    class Inherited(nn.Linear):
        pass

    model = nn.Sequential([Loud(4, 4), Inherited(4, 4), nn.Linear(4, 4)])
    assert seen(model) == ["layers.0", "layers.1", "layers.2", ""]


def test_a_module_that_calls_itself() -> None:
    class Again(px.Module):
        def __call__(self, n: int) -> int:
            return 0 if n == 0 else self(n - 1) + 1

    model = Again()
    depths: list[str] = []
    with observed(model, lambda call: depths.append("" if call.within is None else call.within.path + "inner")):
        assert model(2) == 2
    assert depths == ["inner", "inner", ""]


def test_two_observers() -> None:
    model = nn.Sequential([nn.Linear(4, 4)])
    outer: list[str] = []
    with observed(model, lambda call: outer.append(call.path)):
        assert seen(model.layers[0]) == [""]
        assert outer == ["layers.0"]
    with observed(model, lambda call: outer.append("outer")), observed(model, lambda call: outer.append("inner")):
        model.layers[0](X)
    assert outer[1:] == ["outer", "inner"]


def test_other_threads_are_not_observed() -> None:
    model = nn.Linear(4, 4)
    found: list[str] = []
    inside, ended = threading.Event(), threading.Event()

    def other() -> None:
        inside.wait(10)
        for _ in range(50):
            model(X)
        ended.set()

    thread = threading.Thread(target=other)
    thread.start()
    with observed(model, lambda call: found.append(call.path)):
        inside.set()
        assert ended.wait(10)
        assert found == []
        model(X)
    thread.join()
    assert found == [""]


def test_threads_that_observe_each_their_own() -> None:
    models = [nn.Sequential([nn.Linear(4, 4) for _ in range(n + 1)]) for n in range(4)]
    before = vars(nn.Linear)["__call__"]
    counts = [0] * 4

    def run(n: int) -> None:
        for _ in range(20):
            counts[n] += len(seen(models[n]))

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [20 * (n + 2) for n in range(4)]
    assert vars(nn.Linear)["__call__"] is before


def test_functions_as_layers() -> None:
    relu = px.functional.relu
    model = nn.Sequential([nn.Linear(4, 4), relu, nn.Sequential(act=relu)])
    twin = with_function_layers(model)
    assert seen(twin) == ["layers.0", "layers.1", "layers.2.layers.act", "layers.2", ""]
    layer = twin.layers[1]
    assert isinstance(layer, FunctionLayer) and layer.function is relu
    assert model.layers[1] is relu  # the model itself is as it was
    assert [p.id for p in twin.params()] == [p.id for p in model.params()]
    assert not model.layers[0].weight.is_initialized or twin.layers[0].weight.val() is model.layers[0].weight.val()


def test_what_is_no_layer_stays() -> None:
    class Other(px.Module):
        def __init__(self) -> None:
            self.function = px.functional.relu  # a field is no list of layers
            self.shapes = [(1, 2), int, "text"]

    twin = with_function_layers(Other())
    assert twin.function is px.functional.relu and twin.shapes == [(1, 2), int, "text"]

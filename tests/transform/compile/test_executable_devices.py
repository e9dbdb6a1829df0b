"""A compiled step whose model moves to another device between calls; in a process that has two."""

from __future__ import annotations

from tests.simulated_devices import check_on_devices

SCRIPT = """
import numpy as np
import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Jax

def step(model, optimizer, x):
    loss = model(x).square().mean()
    return optimizer.step(0.01, model, optim.GradientsParams.from_grads(loss.backward(), model))

def train(places, donate):
    run = px.compile(step, donate=donate) if donate is not None else step
    model, optimizer = nn.Linear(3, 2).init(0), optim.AdamWConfig().init()
    for place in places:
        device = Autodiff(Jax()).device(place)
        model = model.to_device(device)
        for _ in range(2):
            model = run(model, optimizer, px.ones((4, 3), device=device))
        assert model.weight.device == device, model.weight.device
    assert donate is None or run.programs == 1
    return model.weight.val().numpy()

places = ["cpu:0", "cpu:1", "cpu:0", "cpu:1"]
expected = train(places, None)
for donate in ((), ("optimizer",), ("model", "optimizer")):
    np.testing.assert_allclose(train(places, donate), expected, rtol=1e-5)

here, there = (px.ones((2,), device=Jax().device(place)) for place in ("cpu:0", "cpu:1"))
try:
    px.compile(lambda x, y: x + y)(here, there)
except px.errors.DeviceError as error:
    assert "x on jax:cpu:0 and y on jax:cpu:1; move one of them to the other device with .to_device(...)" in str(error)
else:
    raise AssertionError("devices must not mix")
"""


def test_states_follow_the_model_to_another_device() -> None:
    check_on_devices(2, SCRIPT)

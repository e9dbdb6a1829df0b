"""Balance a pole on a cart: deep Q-learning.

    python examples/dqn.py
    python examples/dqn.py --device jax --epochs 20

The network estimates what each action is worth, and learns from what it did before (Mnih et al. 2015, "Human-level
control through deep reinforcement learning"). It shows: data that are made while the model is trained, by a generator
that acts with `learner.model`; a replay buffer; a target network, which is a second model without an optimizer, and
which a callback brings up to date. The actions of the target are those that the network itself prefers (van Hasselt et
al. 2015, "Deep reinforcement learning with double Q-learning").
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np

import phlox as px
from phlox import nn, optim
from phlox.train import Callback, LambdaCallback, Learner

STEPS, BATCH, DISCOUNT, LONGEST = 200, 128, 0.98, 200


class Poles:
    """Several poles on carts, side by side (Barto, Sutton, Anderson 1983); each begins anew when it has fallen.

    The state [count, 4] is position and speed of the cart, angle and angular speed of the pole. Action 1 pushes the
    cart to the right, 0 to the left. `returns` has the number of steps of each episode that has ended.
    """

    def __init__(self, count: int, rng: np.random.Generator) -> None:
        self.rng, self.returns = rng, list[int]()
        self.state, self.age = self.begin(count), np.zeros(count, int)

    def begin(self, count: int) -> Any:
        return self.rng.uniform(-0.05, 0.05, (count, 4)).astype(np.float32)

    def step(self, action: Any) -> tuple[Any, Any]:
        """The states after the actions, and which poles have fallen. `state` is that of the next step."""
        x, v, angle, spin = self.state.T
        push = np.where(action == 1, 10.0, -10.0)
        sin, cos = np.sin(angle), np.cos(angle)
        thrust = (push + 0.05 * spin**2 * sin) / 1.1
        turn = (9.8 * sin - cos * thrust) / (0.5 * (4.0 / 3.0 - 0.1 * cos**2 / 1.1))
        drive = thrust - 0.05 * turn * cos / 1.1
        after = np.stack([x + 0.02 * v, v + 0.02 * drive, angle + 0.02 * spin, spin + 0.02 * turn], -1)
        fallen = (np.abs(after[:, 0]) > 2.4) | (np.abs(after[:, 2]) > 0.21)
        self.age += 1
        ended = fallen | (self.age >= LONGEST)  # a pole that has stood so long has not fallen, and is begun anew, too
        self.returns += self.age[ended].tolist()
        self.state, self.age[ended] = after.astype(np.float32), 0
        self.state[ended] = self.begin(int(ended.sum()))
        return after.astype(np.float32), fallen


class Replay:
    """The last transitions, of which any may be drawn."""

    def __init__(self, capacity: int) -> None:
        self.arrays = {
            "state": np.zeros((capacity, 4), np.float32), "after": np.zeros((capacity, 4), np.float32),
            "action": np.zeros(capacity, np.int64), "fallen": np.zeros(capacity, np.float32),
        }  # fmt: skip
        self.capacity, self.added = capacity, 0

    def add(self, **columns: Any) -> None:
        places = (self.added + np.arange(len(columns["action"]))) % self.capacity
        for name, column in columns.items():
            self.arrays[name][places] = column
        self.added += len(places)

    def draw(self, count: int, rng: np.random.Generator) -> dict[str, Any]:
        rows = rng.integers(0, min(self.added, self.capacity), count)
        return {name: array[rows] for name, array in self.arrays.items()}


def step(models: Any, batch: dict[str, px.Tensor]) -> px.Tensor:
    """The difference between what an action was said to be worth, and its reward with the worth of what came after."""
    worth = models["q"](batch["state"]).take_along_axis(batch["action"].int().expand_dims(-1), -1).squeeze(-1)
    chosen = models["q"](batch["after"]).argmax(-1).expand_dims(-1)
    later = models["target"](batch["after"]).take_along_axis(chosen, -1).squeeze(-1)
    return nn.huber_loss(worth, 1.0 + DISCOUNT * (1.0 - batch["fallen"]) * later)


@px.compile
def greedy(model: Any, state: px.Tensor) -> px.Tensor[Any, Any, px.Int]:
    """The action that the model holds to be best in each state."""
    return model(state).argmax(-1)


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Run the program; by default `arguments` are those of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="numpy", help="numpy, jax or torch; or a place, torch:gpu")
    parser.add_argument("--epochs", type=int, default=10, help=f"of {STEPS} steps each")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)

    network = nn.Sequential([nn.Linear(4, 64), nn.Relu(), nn.Linear(64, 64), nn.Relu(), nn.Linear(64, 2)])
    network = network.init(options.seed, options.device)
    learner = Learner({"q": network, "target": network}, {"q": optim.AdamConfig()}, 1e-3, step=step)

    rng = np.random.default_rng(options.seed)
    poles, replay = Poles(16, rng), Replay(20_000)

    def play() -> Iterator[dict[str, Any]]:
        """An epoch: at each step all poles are moved once, and a batch is drawn from all that has happened."""
        for _ in range(STEPS):
            state = poles.state.copy()
            model = learner.model["q"].valid()
            action = greedy(model, px.tensor(state, device=model.params()[0].device)).numpy()
            explores = rng.random(len(action)) < max(0.05, 1.0 - learner.step / 1000.0)
            action = np.where(explores, rng.integers(0, 2, len(action)), action)
            after, fallen = poles.step(action)
            replay.add(state=state, action=action, after=after, fallen=fallen)
            yield replay.draw(BATCH, rng)

    history: list[float] = []

    class FollowTarget(Callback):
        """Every hundred steps the target becomes what the network is."""

        def on_step_end(self, learner: Learner[Any]) -> None:
            if learner.step % 100 == 0:
                learner.model = {**learner.model, "target": learner.model["q"]}

    def report(learner: Learner[Any]) -> None:
        history.append(float(np.mean(poles.returns or [0])))
        print(f"epoch {learner.epoch:2}: {len(poles.returns):3} episodes of {history[-1]:5.1f} steps in the mean")
        poles.returns.clear()

    learner.fit(
        play, epochs=options.epochs, callbacks=[FollowTarget(), LambdaCallback(on_epoch_end=report)], progress=False
    )
    found = {"first": history[0], "best": max(history)}
    print(f"The pole stood for {found['first']:.0f} steps at first, and for {found['best']:.0f} at best.")
    return found


if __name__ == "__main__":
    main()

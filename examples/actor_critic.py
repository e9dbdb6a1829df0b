"""Catch what falls: an actor-critic, that is a policy with a network beside it that says what to expect.

    python examples/actor_critic.py
    python examples/actor_critic.py --device jax --epochs 30

A ball falls down a small field, and a paddle at the bottom is moved to the left, to the right, or not. Only the last
step has a reward: 1 if the ball is caught, -1 if not. (The ball drifts at random: about a fifth cannot be caught.) The
policy is made better by the gradient of the logarithm of the actions' probabilities, times by how much they went better
than expected (advantage actor-critic, Mnih et al. 2016, "Asynchronous methods for deep reinforcement learning"). It
shows: `px.random.Categorical` with `sample`, `log_prob` and `entropy`; data that are made by the model that is being
trained; a step that reports scalars of its own.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np

import phlox as px
from phlox import nn, optim
from phlox.random import Categorical
from phlox.train import Learner

WIDTH, HEIGHT, GAMES, STEPS, DISCOUNT = 7, 8, 32, 50, 0.97


class Catch:
    """Many games side by side, all at the same step: state [games, 3] is the paddle, and the ball's column and row."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.begin()

    def begin(self) -> None:
        self.ball, self.paddle = self.rng.integers(0, WIDTH, (2, GAMES))
        self.row = 0

    def state(self) -> Any:
        """The places as one-hot vectors, [games, 2 WIDTH + HEIGHT]."""
        row = np.full(GAMES, self.row)
        places = ((self.paddle, WIDTH), (self.ball, WIDTH), (row, HEIGHT))
        return np.concatenate([np.eye(size, dtype=np.float32)[place] for place, size in places], -1)

    def step(self, action: Any) -> Any:
        """The rewards of the actions 0 (left), 1 and 2 (right). The ball may drift to a side as it falls."""
        self.paddle = np.clip(self.paddle + action - 1, 0, WIDTH - 1)
        drift = self.rng.integers(-1, 2, GAMES) * (self.rng.random(GAMES) < 0.3)
        self.ball, self.row = np.clip(self.ball + drift, 0, WIDTH - 1), self.row + 1
        is_over = self.row == HEIGHT - 1
        return np.where(self.ball == self.paddle, 1.0, -1.0) if is_over else np.zeros(GAMES)


class ActorCritic(px.Module):
    """States [..., n] to a policy over three actions, and the return that is expected, [...]."""

    def __init__(self, n_state: int, width: int = 64) -> None:
        self.body = nn.Sequential([nn.Linear(n_state, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()])
        self.actor, self.critic = nn.Linear(width, 3), nn.Linear(width, 1)

    def __call__(self, state: px.Tensor) -> tuple[Categorical, px.Tensor]:
        features = self.body(state)
        return Categorical(self.actor(features)), self.critic(features).squeeze(-1)


@px.compile
def act(model: ActorCritic, state: px.Tensor) -> px.Tensor[Any, Any, px.Int]:
    """An action for each state, drawn from the policy."""
    policy, _ = model(state)
    return policy.sample()


def step(model: ActorCritic, batch: dict[str, px.Tensor]) -> Any:
    """The losses of both, and a reward for a policy that tries things; the metrics need nothing."""
    policy, expected = model(batch["state"])
    advantage = batch["return"] - expected
    of_actor = -(policy.log_prob(batch["action"].int()) * advantage.detach()).mean()
    of_critic, entropy = advantage.square().mean(), policy.entropy().mean()
    scalars = {"critic": of_critic, "entropy": entropy, "reward": batch["reward"].mean()}
    return of_actor + 0.5 * of_critic - 0.01 * entropy, None, scalars


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Run the program; by default `arguments` are those of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="numpy", help="numpy, jax or torch; or a place, torch:gpu")
    parser.add_argument("--epochs", type=int, default=15, help=f"of {STEPS} steps each, with {GAMES} games a step")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)

    px.random.seed(options.seed)
    game = Catch(np.random.default_rng(options.seed))
    model = ActorCritic(2 * WIDTH + HEIGHT).init(options.seed, options.device)
    learner = Learner(model, optim.AdamConfig(), 2e-3, step=step, clip=optim.GradientClipping.global_norm(1.0))

    def play() -> Iterator[dict[str, Any]]:
        """An epoch: for each step, games from beginning to end, by the policy as it is now."""
        for _ in range(STEPS):
            game.begin()
            states, actions, rewards = list[Any](), list[Any](), list[Any]()
            player = learner.model.valid()
            for _ in range(HEIGHT - 1):
                states.append(game.state())
                actions.append(act(player, px.tensor(states[-1], device=player.params()[0].device)).numpy())
                rewards.append(game.step(actions[-1]))
            returns = [rewards[-1] * DISCOUNT**left for left in reversed(range(HEIGHT - 1))]
            yield {
                "state": np.concatenate(states), "action": np.concatenate(actions),
                "return": np.concatenate(returns).astype(np.float32),
                "reward": np.tile(rewards[-1], HEIGHT - 1).astype(np.float32),
            }  # fmt: skip

    history = learner.fit(play, epochs=options.epochs)
    caught = [0.5 + 0.5 * report.train["reward"] for report in history]
    print(f"Balls caught: {caught[0]:.1%} in the first epoch, {caught[-1]:.1%} in the last one.")
    return {"first": caught[0], "last": caught[-1]}


if __name__ == "__main__":
    main()

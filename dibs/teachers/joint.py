"""What all algorithms of Stable-Baselines3 share: one edge's environment, the joint objective, and checks of the actor.

The library's optimization stays as it is. A hook that runs before every step of the actor's optimizer adds the
gradients of λ_x‖θ − θ_prev‖² and of λ_conf L_conf, so the step is one on the joint objective (paper, section 4.1).
The deterministic actor is the assignment's `Network` to the last weight.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from torch import Tensor, nn
from torch.nn import functional

from dibs.envs import Array
from dibs.errors import DibsError, unknown
from dibs.gym.sb3 import EpisodeRecorder, ReachAvoidVecEnv
from dibs.policies.torch import flat, parameters, split_flat
from dibs.simulation import EdgeTask, draw, rollout
from dibs.teachers.base import Assignment, Learned

COUNTERS = ("num_timesteps", "_n_updates", "_episode_num")  # of the library's algorithms …
REPLAY = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")  # … and replay buffers
MEASURED = ("success", "return")
GAIN = 0.02  # relative rise of the return minus the anchor that counts as progress
SAMPLE = 256  # states of either quality per evaluation of the confidence loss


class EdgeAssignment:
    """One edge of an assignment: its task, with the target smaller by the assignment's depth, and environment."""

    def __init__(self, assignment: Assignment, edge: int, n_envs: int, attempt: int = 0) -> None:
        self.assignment, self.edge, self.attempt = assignment, edge, attempt
        self.rows = np.array([edge])
        self.rng = np.random.default_rng([assignment.seed, edge, *[attempt] * (attempt > 0)])
        edges = assignment.edges.take([edge]).shrunk(assignment.depth)
        self.task = EdgeTask(edges)
        # Wider starts are for training; some of them may be too far away.
        self.checked = EdgeTask(replace(edges, wide_share=0.0)) if edges.wide_share else self.task
        self.recorder = EpisodeRecorder()
        self.env = ReachAvoidVecEnv(
            edges,
            n_envs,
            rng=self.rng,
            scale=(assignment.scaling.center[edge], assignment.scaling.half[edge]),
            episode_info=False,
            recorder=self.recorder,
        )
        self.previous = None if assignment.previous is None else assignment.previous[edge].astype(np.float32)
        self.warm = assignment.start is not None

    @property
    def piece(self) -> str:
        """What the journal calls the search of this edge."""
        return f"{self.assignment.piece}edge {self.edge + 1}, attempt {self.attempt + 1}"

    @property
    def seed(self) -> int:
        return (self.assignment.seed + 7919 * self.edge + 104_729 * self.attempt) % 2**31

    def start(self, head_gain: float = 1.0) -> Array:
        """Return the actor to start from: the previous teacher, or random weights with a small action head."""
        if self.previous is not None and self.warm:
            return self.previous
        theta = self.assignment.network.initial(self.rng)
        weights, biases = self.assignment.network.layers(theta)[-1]
        weights *= head_gain
        biases *= head_gain
        return theta

    def check(self, theta: Array, rollouts: int) -> tuple[float, float]:
        """Return success and return of the deterministic actor."""
        policy = self.assignment.policy(theta[None], self.rows)
        outcome = rollout(self.checked, policy, draw(self.checked, rollouts, self.rng))
        return float(outcome.success.mean()), float(outcome.returns.mean())

    def pull(self, theta: Array) -> float:
        """Return λ_x‖θ − θ_prev‖²: a teacher maximizes its return minus this."""
        return float(self.assignment.pull(theta[None], self.rows)[0])

    def keep_episodes(self) -> None:
        """Offer the episodes that have ended since the last call to the assignment's buffers."""
        episodes = self.recorder.drain()
        if episodes is None:
            return
        states = np.moveaxis(episodes.states, 0, 1)  # (time, episodes, dim)
        valid = np.arange(len(states))[:, None] < episodes.length
        self.assignment.buffers.add_episodes(self.edge, states, valid, episodes.success)

    def sample(self, kind: str) -> Tensor | None:
        """Return network inputs in states of one quality; None while there are too few."""
        buffers = self.assignment.buffers
        if len(buffers.edges[self.edge][kind]) < SAMPLE:
            return None
        states = buffers.sample(self.rows, kind, SAMPLE, self.rng)
        return torch.from_numpy(self.assignment.inputs(self.rows, states)[0])


def train_edges(
    assignment: Assignment,
    n_envs: int,
    search: Callable[[EdgeAssignment], dict[str, Any]],
    restarts: int = 1,
    good: float = 1.0,
) -> Learned:
    """Train one actor per edge, one edge after the other, and keep the best of up to `restarts` searches from scratch.

    After a search whose actor has at least `good` success, no other one begins.
    """
    torch.set_num_threads(1)
    chosen, curve, steps = [], [], 0
    for edge in range(assignment.edges.tasks):
        tried: list[dict[str, Any]] = []
        for attempt in range(1 if assignment.start is not None else restarts):
            part = EdgeAssignment(assignment, edge, n_envs, attempt)
            tried.append(assignment.journal.once(part.piece, partial(search, part)))
            curve += tried[-1]["curve"]
            steps += tried[-1]["steps"]
            if tried[-1]["best"][0] >= good:
                break
        chosen.append(max(tried, key=lambda found: tuple(found["best"])))  # the first of several
    theta, head = (np.stack([found[name] for found in chosen]) for name in ("theta", "head"))
    return Learned(theta, head, steps, len(curve), curve)


class JointObjective:
    """Adds the gradients of the anchor and of the confidence loss before each step of the actor's optimizer."""

    def __init__(self, part: EdgeAssignment, layers: list[nn.Linear], trunk: nn.Module, optimizer: Any) -> None:
        self.part, self.layers, self.trunk = part, layers, trunk
        self.head = nn.Linear(part.assignment.network.hidden[-1], 1)
        if part.assignment.confidence > 0.0:
            optimizer.add_param_group({"params": list(self.head.parameters())})
        self.anchors = None
        if part.previous is not None and part.assignment.anchor > 0.0:
            self.anchors = split_flat(layers, part.previous)
        optimizer.register_step_pre_hook(lambda *_: self.add())

    def add(self) -> None:
        """Add 2 λ_x (θ − θ_prev) and λ_conf ∇L_conf to the current gradients."""
        assignment = self.part.assignment
        if self.anchors is not None:
            for parameter, anchor in zip(parameters(self.layers), self.anchors, strict=True):
                if parameter.grad is not None:
                    parameter.grad.add_(parameter.detach() - anchor, alpha=2.0 * assignment.anchor)
        if assignment.confidence > 0.0:
            loss = self.confidence_loss()
            if loss is not None:
                (assignment.confidence * loss).backward()

    def confidence_loss(self) -> Tensor | None:
        """Return E_high[−log p] + E_low[−log(1 − p)] on a sample of the buffers; None while they have too few."""
        high, low = self.part.sample("high"), self.part.sample("low")
        if high is None or low is None:
            return None
        good, bad = self.head(self.trunk(high)), self.head(self.trunk(low))
        return functional.softplus(-good).mean() + functional.softplus(bad).mean()

    def weights(self) -> Array:
        """Return the confidence head as a vector (features + 1,)."""
        return flat([self.head])


def make_model(kind: type[BaseAlgorithm], options: Mapping[str, Any], **ours: Any) -> BaseAlgorithm:
    """Return an algorithm of the library built with our arguments and the user's options."""
    name = kind.__name__.lower()
    for key in options:
        if key not in (known := set(inspect.signature(kind).parameters) - set(ours)):
            raise unknown(f"option of {name}", key, known)
    try:
        return kind(**ours, **options)
    except (TypeError, ValueError, AssertionError) as error:
        raise DibsError(f"options of {name}, {dict(options)}: {error}") from error


class Watch(BaseCallback):
    """Measures the deterministic actor at intervals, keeps the best, and stops when it has converged."""

    at_end = True
    """Whether to measure after the last step as well."""

    def __init__(self, part: EdgeAssignment, layers: list[nn.Linear], every: int, checks: int, patience: int) -> None:
        super().__init__()
        self.part, self.layers, self.every, self.checks, self.patience = part, layers, every, checks, patience
        self.stale, self.mark = 0, -np.inf  # checks since the last rise, and the value then
        self.best = (-1.0, -np.inf)
        self.theta = flat(layers)
        self.measured, self.due, self.converged = 0, 0, False
        self.curve: list[dict[str, float]] = []
        self.on_pause: Callable[[], None] = lambda: None
        """Called before every rollout, when nothing is under way."""

    def _on_rollout_start(self) -> None:
        self.on_pause()

    def measure(self) -> None:
        """Estimate the actor's success, and find out whether it has converged.

        Without patience, success 1.0 here and on three times as many rollouts is convergence. With patience, training
        goes on until the return minus the anchor has not risen for that many checks, and the best actor is the one
        that must pass.
        """
        self.part.keep_episodes()
        theta = flat(self.layers)
        success, returns = self.part.check(theta, self.checks)
        value = returns - self.part.pull(theta)
        if success == 1.0 and not self.patience:
            success = self.part.check(theta, 3 * self.checks)[0]
            self.converged = success == 1.0
        better = (success, value) > self.best
        self.stale += 1
        if better and (success > self.best[0] or value > self.mark + GAIN * abs(self.mark)):
            self.stale, self.mark = 0, value
        if better:
            self.best, self.theta = (success, value), theta
        if self.patience and self.best[0] == 1.0 and self.stale >= self.patience:
            confirmed, best = self.part.check(self.theta, 3 * self.checks)
            self.best, self.converged = (confirmed, best - self.part.pull(self.theta)), confirmed == 1.0
        self.curve.append({"edge": self.part.edge, "steps": self.num_timesteps, "success": success, "return": returns})
        assignment = self.part.assignment
        if assignment.progress is not None:
            edge, edges = self.part.edge, assignment.edges.tasks
            name = assignment.edges.names[edge].partition("@")[
                0
            ]  # where edges train one after another, 1 of 1 says little
            attempt = f", attempt {self.part.attempt + 1}" if self.part.attempt else ""
            assignment.progress(
                f"edge {name}{attempt}: success {success:.3f} after {self.num_timesteps} steps",
                (edge + self.num_timesteps / max(self.model._total_timesteps, 1)) / edges,
                self.num_timesteps,
                {f"{assignment.edges.names[edge]}{attempt}/{n}": v for n, v in self.curve[-1].items() if n in MEASURED},
            )
        self.measured += 1

    def saved(self) -> dict[str, Any]:
        """Return what `restore` needs."""
        return {name: getattr(self, name) for name in ("best", "theta", "measured", "due", "stale", "mark", "curve")}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Put the measurements into a saved state."""
        for name, value in saved.items():
            setattr(self, name, tuple(value) if name == "best" else value)

    def _on_step(self) -> bool:
        if self.every and self.num_timesteps >= self.due and not self.converged:
            self.due += self.every
            self.measure()
        return not self.converged


class Search:
    """One search of an edge's actor by an algorithm of Stable-Baselines3, which can be interrupted and continued."""

    def __init__(self, model: BaseAlgorithm, watch: Watch, joint: JointObjective) -> None:
        self.model, self.watch, self.joint, self.part = model, watch, joint, watch.part
        # A logger that writes nowhere: the default makes a temporary directory at every `learn`.
        model.set_logger(Logger(folder=None, output_formats=[]))

    def learn(self, total: int, **options: Any) -> dict[str, Any]:
        """Train for `total` environment steps or until the actor has converged; returns what was found."""
        journal, piece = self.part.assignment.journal, self.part.piece
        saved = journal.resume(piece)
        if saved is not None:
            self._restore(saved)
        self.watch.on_pause = lambda: journal.tick(piece, self._saved)
        left = total - self.model.num_timesteps
        self.model.learn(left, callback=self.watch, reset_num_timesteps=saved is None, **options)
        watch = self.watch
        if watch.at_end and not watch.converged:
            watch.measure()
        self.part.keep_episodes()
        found = {"best": watch.best, "theta": watch.theta, "curve": watch.curve}
        return {**found, "head": self.joint.weights(), "steps": self.model.num_timesteps}

    def _saved(self) -> dict[str, Any]:
        """Return everything that the rest of the search depends on, between two rollouts."""
        model, part = self.model, self.part
        return {
            "parameters": _mapped(model.get_parameters(), _array),
            "entropy": _array(getattr(model, "log_ent_coef", None)),
            "head": _mapped(self.joint.head.state_dict(), _array),
            "counters": {name: getattr(model, name) for name in COUNTERS if hasattr(model, name)},
            "observed": model._last_obs,
            "starts": model._last_episode_starts,
            "replay": _saved_replay(model),
            "watch": self.watch.saved(),
            "env": part.env.saved(),
            "recorder": part.recorder.saved(),
            "rng": part.rng.bit_generator.state,
            "actions": model.action_space.np_random.bit_generator.state,
            "numpy": np.random.get_state(legacy=False),  # noqa: NPY002 (the library draws minibatches from it)
            "torch": torch.get_rng_state().numpy(),
        }

    def _restore(self, saved: Mapping[str, Any]) -> None:
        model, part = self.model, self.part
        model.set_parameters(_mapped(saved["parameters"], _tensor), exact_match=True, device="cpu")
        if saved["entropy"] is not None:
            model.log_ent_coef.data.copy_(torch.from_numpy(saved["entropy"]))  # type: ignore[attr-defined]
        self.joint.head.load_state_dict(_mapped(saved["head"], _tensor))
        for name, value in saved["counters"].items():
            setattr(model, name, value)
        model._last_obs, model._last_episode_starts = saved["observed"], saved["starts"]
        _restore_replay(model, saved["replay"])
        self.watch.restore(saved["watch"])
        part.env.restore(saved["env"])
        part.recorder.restore(saved["recorder"])
        part.rng.bit_generator.state = saved["rng"]
        model.action_space.np_random.bit_generator.state = saved["actions"]
        np.random.set_state(saved["numpy"])  # noqa: NPY002
        torch.set_rng_state(torch.from_numpy(saved["torch"]))


def _saved_replay(model: BaseAlgorithm) -> dict[str, Any] | None:
    """Return the filled part of an off-policy algorithm's replay buffer; None: it has none."""
    buffer = getattr(model, "replay_buffer", None)
    if buffer is None:
        return None
    rows = buffer.buffer_size if buffer.full else buffer.pos
    arrays = {name: getattr(buffer, name)[:rows] for name in REPLAY if hasattr(buffer, name)}
    return {"pos": buffer.pos, "full": buffer.full, "arrays": arrays}


def _restore_replay(model: BaseAlgorithm, saved: Mapping[str, Any] | None) -> None:
    if saved is not None:
        buffer = model.replay_buffer  # type: ignore[attr-defined]
        buffer.pos, buffer.full = saved["pos"], saved["full"]
        for name, array in saved["arrays"].items():
            getattr(buffer, name)[: len(array)] = array


def _mapped(tree: Any, function: Callable[[Any], Any]) -> Any:
    """Return nested mappings and lists with a function applied to all else."""
    if isinstance(tree, Mapping):
        return {key: _mapped(value, function) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_mapped(value, function) for value in tree]
    return function(tree)


def _array(value: Any) -> Any:
    return value.detach().cpu().numpy().copy() if isinstance(value, Tensor) else value


def _tensor(value: Any) -> Any:
    return torch.from_numpy(np.array(value)) if isinstance(value, np.ndarray) else value

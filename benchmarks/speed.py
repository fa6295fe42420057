"""The speed benchmarks of docs/performance.md: `python benchmarks/speed.py [PART …]`, one core.

Every part prints a Markdown table; ratios compare what was measured in the same run on the same machine.
"""

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"

import argparse
import time
from collections.abc import Callable

import numpy as np

from dibs.envs import Array
from dibs.families import get_family, reach_avoid
from dibs.policies.scaling import edge_scaling
from dibs.seeding import stream
from dibs.teachers.base import Lesson
from dibs.teachers.buffers import StateBuffers
from dibs.teachers.train import network_of
from dibs.templates.fit import FitSettings, Supervision, fit


def seconds(work: Callable[[], object], repeat: int = 3) -> float:
    """Best of a few runs."""
    best = np.inf
    for _ in range(repeat):
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return float(best)


def part_ars() -> None:
    """Environment steps a second: our batched ARS, and sb3-contrib's on the Gymnasium environment."""
    import gymnasium
    import torch
    from sb3_contrib import ARS
    from stable_baselines3.common.logger import Logger

    from dibs.teachers.ars import ArsSettings, train

    torch.set_num_threads(1)
    family = get_family("car2d-reach")
    network, scaling, tasks = network_of(family), edge_scaling(family), reach_avoid(family, [0])
    rng = stream("benchmark", "ars")
    lesson = Lesson(tasks, network, scaling, StateBuffers(5, 2, rng), rng, 0, depth=family.reward.depth)
    began = time.perf_counter()
    learnt = train(lesson, ArsSettings(iterations=60))
    ours = learnt.steps / (time.perf_counter() - began)

    env = gymnasium.make("dibs.envs.gym:dibs/Car2D-v0", family="car2d-reach")
    model = ARS("MlpPolicy", env, n_delta=20, n_top=8, policy_kwargs={"net_arch": [8]}, seed=0)
    model.set_logger(Logger(folder=None, output_formats=[]))
    began = time.perf_counter()
    model.learn(20_000)
    theirs = model.num_timesteps / (time.perf_counter() - began)
    print("| ARS on Car2D | environment steps per second | ratio |")
    print("|---|---|---|")
    print(
        f"| `dibs` (5 edges × 6 restarts × 40 candidates × 16 rollouts at once) | {ours:,.0f} | {ours / theirs:,.0f} |"
    )
    print(f"| sb3-contrib 1 environment | {theirs:,.0f} | 1 |\n")


def part_vecenv() -> None:
    """Environment steps a second of the natively batched VecEnv beside Stable-Baselines3's DummyVecEnv."""
    import gymnasium
    from stable_baselines3.common.vec_env import DummyVecEnv

    from dibs.envs.sb3 import ReachAvoidVecEnv

    print("| environment, 256 copies | DummyVecEnv | ours | ratio |")
    print("|---|---|---|---|")
    for name, kind in (("simpledrone-reach", "SimpleDrone"), ("droneattitude-reach", "DroneAttitude")):
        family = get_family(name)
        dim = len(family.dynamics.action_names)
        task = reach_avoid(family, [0], [family.edges[0].name])
        batched = ReachAvoidVecEnv(task, 256)
        plain = DummyVecEnv([lambda k=kind, n=name: gymnasium.make(f"dibs.envs.gym:dibs/{k}-v0", family=n)] * 256)
        actions = np.random.default_rng(0).uniform(-1, 1, (256, dim)).astype(np.float32)
        rates = []
        for env, steps in ((plain, 10), (batched, 400)):
            env.reset()
            taken = seconds(lambda e=env, s=steps, a=actions: [e.step(a) for _ in range(s)])
            rates.append(256 * steps / taken)
        print(f"| {kind} | {rates[0]:,.0f} | {rates[1]:,.0f} | {rates[1] / rates[0]:,.0f} |")
    print()


def _supervision(indices: Array, edges: int = 5, rows: int = 4096) -> tuple[Supervision, object]:
    family = get_family("car2d-reach")
    network = network_of(family)
    rng = np.random.default_rng(0)
    base = network.initial(rng, (edges,))
    states = rng.uniform(-1, 1, (edges, len(indices), rows, 2)).astype(np.float32)
    moved = base[:, None] + 0.01 * indices[None, :, None] * rng.standard_normal((edges, 1, network.size))
    actions = network.forward(moved.astype(np.float32), states)
    present = np.ones((edges, len(indices)), dtype=bool)
    return Supervision(indices, states, actions, present, base, np.zeros(edges, dtype=int)), network


def part_fit() -> None:
    """Seconds per 100 steps of the fit (five 1×8 edges) against |Train| and against L."""
    print("| L | training indices | seconds per 100 steps |")
    print("|---|---|---|")
    settings = FitSettings(max_steps=100, check_every=100)
    for last, gap in ((40, 20), (40, 10), (40, 8), (40, 5), (40, 4), (40, 2), (20, 5), (80, 10), (160, 20)):
        data, network = _supervision(np.arange(0, last + 1, gap))
        taken = seconds(lambda d=data, n=network: fit(d, n, settings, np.random.default_rng(0)))
        print(f"| {last} | {len(data.indices)} | {taken:.2f} |")
    print()


def part_evaluate() -> None:
    """Seconds to roll out and decide a five-edge benchmark at 41 indices × 1000 rollouts."""
    from dibs.evaluation.composed import Recorded, rollouts, satisfaction
    from dibs.teachers.ars import ArsSettings, train

    family = get_family("car2d-reach")
    network, scaling = network_of(family), edge_scaling(family)
    path = [edge.name for edge in family.edges]
    # One trained policy, moved with the index by the biases of its first layer: every edge of every index is run.
    rng = stream("benchmark", "evaluate")
    tasks = reach_avoid(family, [0])
    lesson = Lesson(tasks, network, scaling, StateBuffers(5, 2, rng), rng, 0, depth=family.reward.depth)
    theta = train(lesson, ArsSettings()).theta
    moved = np.stack([0.5 / scaling.half[:, 0], np.zeros(5)], axis=1).astype(np.float32)
    actors = {i: network.fold(theta, i * moved, np.ones_like(moved)) for i in range(41)}

    def roll_out() -> dict[int, Recorded]:
        return rollouts(family, network, scaling, actors, dict.fromkeys(actors, path), 1000, 0)

    recorded = roll_out()
    share = sum(satisfaction(family, family.spec, recorded).values()) / 41_000
    print(f"| evaluation of car2d-reach-k5, 41 indices × 1000 rollouts ({share:.1%} satisfied) | seconds |")
    print("|---|---|")
    print(f"| rollouts | {seconds(roll_out):.2f} |")
    print(f"| satisfaction | {seconds(lambda: satisfaction(family, family.spec, recorded)):.2f} |\n")


def part_teachers() -> None:
    """Processor seconds of a teacher of each environment, all edges: from scratch, and warm at the next index."""
    import torch

    from dibs.teachers.train import TeacherSettings, train_teacher

    torch.set_num_threads(1)
    print("| teacher, all edges, seed 0 | index 0 | the next one, warm | least success of both |")
    print("|---|---|---|---|")
    for name, gap in (
        ("car2d-reach", 5),
        ("reacher-stack-same-10", 5),
        ("simpledrone-reach", 5),
        ("droneattitude-reach", 5),
    ):
        family, previous, took, success = get_family(name), None, [], []
        for index in (0, gap):
            began = time.process_time()
            previous, _, _ = train_teacher(family, gap, index, 0, previous, TeacherSettings())
            took.append(time.process_time() - began)
            success += [edge["success"] for edge in previous.metrics["edges"].values()]
        print(f"| {name}, {len(family.edges)} edges | {took[0]:.1f} s | {took[1]:.1f} s | {min(success):.3f} |")
    print()


PARTS = {"teachers": part_teachers, "ars": part_ars, "vecenv": part_vecenv, "fit": part_fit, "evaluate": part_evaluate}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"some of {', '.join(PARTS)} (default: all)")
    for part in parser.parse_args().parts or PARTS:
        PARTS[part]()

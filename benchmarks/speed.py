"""The speed benchmarks of docs/performance.md, on one core: `python benchmarks/speed.py [PART …]`.

Every part prints a Markdown table. With `--before PATH`, the parts run in turn in this checkout and in another one,
each several times in a process of its own, and a table compares the best results. Absolute numbers depend on the
machine and its load; compare only numbers of one run.
"""

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
REPEAT = 3


def seconds(work: Callable[[], object], repeat: int = REPEAT) -> float:
    """Return the processor time of the fastest of a few runs."""
    best = np.inf
    for _ in range(repeat):
        began = time.process_time()
        work()
        best = min(best, time.process_time() - began)
    return float(best)


def _car2d_assignment(name: str):  # type: ignore[no-untyped-def]
    """Return the training tasks of car2d-reach and the assignment of the teacher of index 0."""
    from dibs.families import get_family
    from dibs.policies.network import network_of
    from dibs.policies.scaling import edge_scaling
    from dibs.seeding import stream
    from dibs.stages import teacher_tasks
    from dibs.teachers.base import Assignment
    from dibs.teachers.buffers import StateBuffers

    tasks = teacher_tasks(get_family("car2d-reach"), 0)
    edges, rng = tasks.reach_avoid([0]), stream("benchmark", name)
    buffers = StateBuffers(edges.tasks, tasks.environment.state_names, rng)
    assignment = Assignment(edges, network_of(tasks), edge_scaling(tasks), buffers, rng, 0, depth=tasks.reward.depth)
    return tasks, assignment


def part_ars() -> None:
    """Compare environment steps per second: our batched ARS, and sb3-contrib's on the Gymnasium environment."""
    import gymnasium
    import torch
    from sb3_contrib import ARS
    from stable_baselines3.common.logger import Logger

    from dibs.teachers.ars import ArsSettings, train

    torch.set_num_threads(1)
    tasks, assignment = _car2d_assignment("ars")
    began = time.process_time()
    learned = train(assignment, ArsSettings(iterations=60))
    ours = learned.steps / (time.process_time() - began)

    env = gymnasium.make("dibs.gym:dibs/Car2D-v0", family="car2d-reach", edge=tasks.edge_names[0])
    model = ARS("MlpPolicy", env, n_delta=20, n_top=8, policy_kwargs={"net_arch": [8]}, seed=0)
    model.set_logger(Logger(folder=None, output_formats=[]))
    began = time.process_time()
    model.learn(20_000)
    theirs = model.num_timesteps / (time.process_time() - began)
    print("| ARS on Car2D | environment steps per second | ratio |")
    print("|---|---|---|")
    print(
        f"| `dibs` (5 edges × 6 restarts × 40 candidates × 16 rollouts at once) | {ours:,.0f} | {ours / theirs:,.0f} |"
    )
    print(f"| sb3-contrib 1 environment | {theirs:,.0f} | 1 |\n")


def part_vecenv() -> None:
    """Compare environment steps per second: our batched VecEnv, and Stable-Baselines3's DummyVecEnv."""
    import gymnasium
    from stable_baselines3.common.vec_env import DummyVecEnv

    from dibs.families import get_family
    from dibs.gym.sb3 import ReachAvoidVecEnv

    print("| environment, 256 copies | DummyVecEnv | ours | ratio |")
    print("|---|---|---|---|")
    for name, kind in (("simpledrone-reach", "SimpleDrone"), ("droneattitude-reach", "DroneAttitude")):
        tasks = get_family(name).tasks([0])
        edge = tasks.edge_names[0]
        batched = ReachAvoidVecEnv(tasks.reach_avoid(edges=[edge]), 256)
        make = partial(gymnasium.make, f"dibs.gym:dibs/{kind}-v0", family=name, edge=edge)
        plain = DummyVecEnv([make] * 256)
        shape = (256, tasks.environment.action_dim)
        actions = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
        rates = []
        for env, steps in ((plain, 10), (batched, 400)):
            env.reset()
            taken = seconds(lambda e=env, s=steps, a=actions: [e.step(a) for _ in range(s)])
            rates.append(256 * steps / taken)
        print(f"| {kind} | {rates[0]:,.0f} | {rates[1]:,.0f} | {rates[1] / rates[0]:,.0f} |")
    print()


def part_fit() -> None:
    """Measure 100 steps of the fit (five edges of 8 units) by |Train| and by L."""
    from dibs.families import get_family
    from dibs.policies.network import network_of
    from dibs.templates.fit import FitSettings, Supervision, fit

    edges, rows = 5, 4096
    network = network_of(get_family("car2d-reach").tasks([0]))

    def supervision(indices: np.ndarray) -> Supervision:
        rng = np.random.default_rng(0)
        base = network.initial(rng, (edges,))
        states = rng.uniform(-1, 1, (edges, len(indices), rows, 2)).astype(np.float32)
        moved = base[:, None] + 0.01 * indices[None, :, None] * rng.standard_normal((edges, 1, network.size))
        actions = network.forward(moved.astype(np.float32), states)
        present = np.ones((edges, len(indices)), dtype=bool)
        return Supervision(indices, states, actions, present, base, np.zeros(edges, dtype=int))

    print("| L | training indices | seconds per 100 steps |")
    print("|---|---|---|")
    settings = FitSettings(max_steps=100, check_every=100)
    for last, gap in ((40, 20), (40, 10), (40, 8), (40, 5), (40, 4), (40, 2), (20, 5), (80, 10), (160, 20)):
        data = supervision(np.arange(0, last + 1, gap))
        taken = seconds(lambda d=data: fit(d, network, settings, np.random.default_rng(0)))
        print(f"| {last} | {len(data.indices)} | {taken:.4f} |")
    print()


def part_evaluate() -> None:
    """Measure rolling out and judging a benchmark with five edges at 41 indices × 1000 rollouts."""
    from dibs.evaluation.evaluate import recorded
    from dibs.families import get_benchmark
    from dibs.methods import get_method
    from dibs.spectrl import satisfied
    from dibs.teachers.ars import ArsSettings, train
    from dibs.templates.guards import EdgeRecord
    from dibs.templates.template import Template

    benchmark = get_benchmark("car2d-reach-k5")
    family = benchmark.family
    tasks, assignment = _car2d_assignment("evaluate")
    network, scaling = assignment.network, assignment.scaling
    # A template that moves one trained policy with the index, by the biases of its first layer: every edge is run at
    # every index.
    theta = train(assignment, ArsSettings()).theta
    moved = np.stack([0.5 / scaling.half[:, 0], np.zeros(5)], axis=1).astype(np.float32)
    shift = network.fold(theta, moved, np.ones_like(moved)) - theta
    kappa = np.stack([shift, np.ones_like(shift)])
    record = EdgeRecord((0, family.last_index), (1.0, 1.0), (0.0, 0.0))
    template = Template(
        (0, family.last_index),
        tasks.edge_names,
        network,
        scaling,
        kappa,
        theta,
        np.zeros(5, dtype=int),
        dict.fromkeys(tasks.edge_names, record),
    )
    model, method = template.to_model(dict.fromkeys(tasks.edge_names, 0), {}), get_method("dibs")

    def roll_out():  # type: ignore[no-untyped-def]
        return list(recorded(method, model, family, benchmark.specification, range(41), 1000, 0))

    rollouts = roll_out()

    def judge() -> int:
        won = 0
        for task, found in rollouts:
            grounded = task.grounded
            for i, index in enumerate(task.indices):
                won += satisfied(grounded.spec, grounded.regions_at(index), found.states[i], found.lengths[i]).sum()
        return int(won)

    print(f"| evaluation of car2d-reach-k5, 41 indices × 1000 rollouts ({judge() / 41_000:.1%} satisfied) | seconds |")
    print("|---|---|")
    print(f"| rollouts | {seconds(roll_out):.4f} |")
    print(f"| satisfaction | {seconds(judge):.4f} |\n")


def part_teachers() -> None:
    """Measure a teacher of each environment, all edges: from scratch, and at the next index, from the previous one."""
    import torch

    from dibs.families import get_family
    from dibs.stages import teacher_tasks
    from dibs.teachers.train import TeacherSettings, resolve, train_teacher

    torch.set_num_threads(1)
    print("| teacher, all edges, seed 0 | index 0 | the next one, warm | least success of both |")
    print("|---|---|---|---|")
    for name in ("car2d-reach", "reacher-stack-same-10", "simpledrone-reach", "droneattitude-reach"):
        family, previous, took, success = get_family(name), None, [], []
        settings = resolve(TeacherSettings(), family.teacher, family.teacher_options)
        for index in (0, 5):
            tasks = teacher_tasks(family, index)
            began = time.process_time()
            previous, _, _ = train_teacher(tasks, family.split("gap5"), index, 0, previous, settings)
            took.append(time.process_time() - began)
            success += [edge["success"] for edge in previous.metrics["edges"].values()]
        print(f"| {name}, {len(family.edges)} edges | {took[0]:.2f} s | {took[1]:.2f} s | {min(success):.3f} |")
    print()


def _children(*command: str, repeat: int) -> float:
    """Return the processor time of the fastest of a few runs of a command, in this checkout."""

    def used() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    best = np.inf
    for _ in range(repeat):
        began = used()
        subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True, capture_output=True)
        best = min(best, used() - began)
    return float(best)


def part_start() -> None:
    """Measure processes from start to end: what every command and every job of the workflow pays."""
    print("| start of a process | seconds |")
    print("|---|---|")
    for name, code in (
        ("`python -c pass`", "pass"),
        ("`import dibs`", "import dibs"),
        ("`dibs --help`", "import sys; sys.argv = ['dibs', '--help']; from dibs.cli import main; main()"),
        ("`import dibs.studies.plan` (the workflow's plan)", "import dibs.studies.plan"),
        ("`import dibs.pipeline, torch` (a job that trains with torch)", "import dibs.pipeline, torch"),
    ):
        print(f"| {name} | {_children(sys.executable, '-c', code, repeat=5):.3f} |", flush=True)
    print()


def part_plan() -> None:
    """Measure planning the full config, `snakemake -n --quiet`."""
    command = (sys.executable, "-m", "snakemake", "-n", "--quiet")
    print("| plan | seconds |")
    print("|---|---|")
    print(f"| `snakemake -n --quiet` of `config.yaml` | {_children(*command, repeat=2):.1f} |\n")


PARTS = {
    "teachers": part_teachers,
    "ars": part_ars,
    "vecenv": part_vecenv,
    "fit": part_fit,
    "evaluate": part_evaluate,
    "start": part_start,
    "plan": part_plan,
}

# --- comparison with another checkout --------------------------------------------------------------------

RATES = ("environment steps per second", "DummyVecEnv", "ours")
TIMES = ("seconds", "seconds per 100 steps", "index 0", "the next one, warm")


def measured(text: str) -> dict[tuple[int, str], tuple[str, float]]:
    """Return the numbers of a Markdown table: {(row, column header): (row label, number per second)}."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    header, rows, found = cells[0], cells[2:], {}
    for n, row in enumerate(rows):
        label = row[0] if header[0] != "L" else f"L = {row[0]}, |Train| = {row[1]}"
        for column, cell in zip(header, row, strict=True):
            if column in RATES + TIMES:
                value = float(cell.replace(",", "").removesuffix(" s"))
                found[n, column] = label, (value if column in RATES else 1.0 / max(value, 1e-9))
    return found


def compare(parts: list[str], before: Path, interpreter: str, rounds: int) -> None:
    """Run parts of both checkouts in turn and print how many times as fast this one is."""
    commands = {"before": ([interpreter, "benchmarks/speed.py"], before), "after": ([sys.executable, __file__], ROOT)}
    print("| part | measurement | after / before (rate) |")
    print("|---|---|---|", flush=True)
    for part in parts:
        best: dict[str, dict[tuple[int, str], tuple[str, float]]] = {"before": {}, "after": {}}
        for _ in range(rounds):
            for when, (command, folder) in commands.items():
                environment = os.environ | {"PYTHONPATH": str(folder)}
                done = subprocess.run([*command, part], cwd=folder, env=environment, capture_output=True, text=True)
                if done.returncode:
                    raise SystemExit(f"{folder}: {part} failed\n{done.stderr}")
                for key, (label, rate) in measured(done.stdout).items():
                    best[when][key] = label, max(rate, best[when].get(key, ("", 0.0))[1])
        for key, (label, rate) in best["after"].items():
            if key in best["before"]:
                name = label.replace("|", "\\|")
                print(f"| {part} | {name}: {key[1]} | {rate / best['before'][key][1]:.2f} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"some of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--before", type=Path, metavar="PATH", help="another checkout with a benchmarks/speed.py")
    parser.add_argument(
        "--python", default=sys.executable, help="interpreter of the other checkout (default: this one)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="runs of each part and checkout (default: 3)")
    args = parser.parse_args()
    chosen = args.parts or list(PARTS)
    if unknown := set(chosen) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if args.before:
        compare(chosen, args.before.resolve(), args.python, args.rounds)
    else:
        for chosen_part in chosen:
            PARTS[chosen_part]()

"""The template class and the method `motion`: the teacher of index 0, moved along with its task (docs/method.md).

Each edge has a motion (`dibs.templates.motion`), checked by rollouts on the training tasks. On an edge where there is
none, the base policy stays as it is, and the report says why. Nothing is fitted, and no other teacher is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import numpy as np

from dibs.envs import Array, Environment
from dibs.errors import DibsError
from dibs.families import Tasks
from dibs.files import damaged
from dibs.methods import Method, Model, Training, teacher_steps
from dibs.policies.network import Network
from dibs.policies.scaling import Scaling
from dibs.seeding import stream
from dibs.settings import STRICT, Count
from dibs.simulation import BasePolicy, EdgeTask, Moment, NetworkPolicy, Outcome, StateRecorder, draw, rollout
from dibs.spectrl import Edge, Graph
from dibs.teachers.store import load_teacher
from dibs.teachers.train import Teacher
from dibs.templates.alignment import power, wrapped
from dibs.templates.guards import EdgeRecord, choose_path, read_records, stored_records
from dibs.templates.motion import FARTHEST, Motion, find_motion, share
from dibs.templates.prediction import Curve, with_prediction
from dibs.templates.symmetry import Dynamics, moved_states
from dibs.templates.template import check_indices, model_metadata, template_policy

SOLVED = 0.9  # share of rollouts above which a training task counts as solved
LOST = 0.05  # success that a moved policy may lose compared with the base policy


@dataclass(frozen=True)
class MotionSettings:
    """Settings of `motion`; its thresholds are constants of the modules that apply them."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    rollouts: Count = 200
    """Rollouts of every edge at every training index, which check that the moved policy succeeds."""


# --- the policy ------------------------------------------------------------------------------------------


class MovedPolicy(BasePolicy):
    """A batch of tasks, each with its network between two maps: of states back to index 0, and of actions."""

    def __init__(
        self,
        environment: Environment,
        network: NetworkPolicy,
        back: Array,
        forth: Array,
        recover: Sequence[Array | None],
    ) -> None:
        """`back` (tasks, dim + 1, dim + 1) maps states, `forth` (tasks, m + 1, m + 1) actions, `recover` observations
        to states (see `Motion.recover`)."""
        self.environment, self.network, self.back, self.forth = environment, network, back, forth
        self.recover = recover
        self.periods = np.array(environment.action_periods)
        self.stops = not (np.isfinite(back).all() and np.isfinite(forth).all())  # a map that cannot be held
        blind = type(environment).observe is not Environment.observe
        self.still = [blind and known is None for known in recover]
        if any(still and not np.array_equal(m, np.eye(len(m))) for still, m in zip(self.still, back, strict=True)):
            raise DibsError(f"{environment.name}: states cannot be moved, because observations do not tell them")

    def act(self, now: Moment, memory: None) -> tuple[Array, None]:
        with np.errstate(over="ignore", invalid="ignore"):
            homes = np.stack([self._at_home(now.observation[..., t, :, :], t) for t in range(len(self.back))], axis=-3)
            at_home = now._replace(observation=homes.astype(np.float32))
            actions, _ = self.network.act(at_home, None)
            turned = np.matmul(actions.astype(np.float64), self.forth[:, :-1, :-1].swapaxes(-1, -2))
            turned = wrapped(turned + self.forth[:, None, :-1, -1], self.periods, -1.0)
        return turned.astype(np.float32), None

    def _at_home(self, seen: Array, task: int) -> Array:
        """Return what the base policy would see at index 0."""
        if self.still[task]:
            return seen
        states, known = seen.astype(np.float64), self.recover[task]
        if known is not None:
            states = states @ known[:, :-1].T + known[:, -1]
        return self.environment.observe(moved_states(self.environment, states, self.back[task]))


# --- the template ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Moved:
    """One base policy and one motion per edge."""

    train: tuple[int, ...]
    edges: tuple[str, ...]
    network: Network
    scaling: Scaling
    base: Array  # (edges, size)
    motions: Mapping[str, Motion]
    records: Mapping[str, EdgeRecord]

    def only(self, names: Sequence[str]) -> Moved:
        """Return the template of some of the edges."""
        rows = np.array([self.edges.index(name) for name in names])
        own: dict[str, Any] = {"scaling": self.scaling.take(rows), "base": self.base[rows]}
        known: dict[str, Any] = {
            key: {name: getattr(self, key)[name] for name in names} for key in ("motions", "records")
        }
        return replace(self, edges=tuple(names), **own, **known)

    def edge_policy(self, environment: Environment, pairs: Sequence[tuple[int, str]]) -> MovedPolicy:
        """Return the moved policies of a batch of tasks."""
        check_indices(np.array([index for index, _ in pairs]))
        rows = np.array([self.edges.index(name) for _, name in pairs])
        theta = self.network.fold(self.base[rows], self.scaling.center[rows], self.scaling.half[rows])
        back = np.stack([power(np.linalg.inv(self.motions[name].motion), index) for index, name in pairs])
        forth = np.stack([power(self.motions[name].law, index) for index, name in pairs])
        recover = [self.motions[name].recover for _, name in pairs]
        return MovedPolicy(environment, NetworkPolicy(self.network, theta), back, forth, recover)

    def holds(self, index: int, edges: Sequence[str]) -> bool:
        """Whether the maps of these edges are finite at an index."""
        maps = [power(m, index) for name in edges for m in (self.motions[name].motion, self.motions[name].law)]
        return all(np.isfinite(m).all() and np.linalg.cond(m) < 1e12 for m in maps)

    def describe(self, edge: str) -> str:
        """Say what moves on one edge and how far to trust it."""
        motion = self.motions[edge]
        return f"motion of the teacher of index 0: {motion.sentence}; {motion.trust}"

    def predicted(self) -> dict[str, Curve]:
        """Return predicted success: that of the rollouts at training indices, up to the last index to trust.

        Without a motion, it is interpolated between training indices, and falls to 0 from L to 2L.
        """
        found = {}
        for name, motion in self.motions.items():
            record = self.records[name]
            known = float(np.mean(record.success))
            if motion.holds:
                after = motion.last if motion.last >= FARTHEST else motion.last + 1
                found[name] = Curve((0, motion.last, after), (known, known, known if after == motion.last else 0.0))
            else:
                beyond = 2 * record.indices[-1]
                found[name] = Curve((*record.indices, beyond), (*record.success, 0.0))
        return found

    def path(self, graph: Graph, index: int) -> tuple[str, ...]:
        """Return the path that the guard takes at an index."""
        return choose_path(graph, self.records, index)

    def to_model(self, steps: Mapping[str, int], metrics: Mapping[str, Any]) -> Model:
        """Return what its file contains."""
        motions = [self.motions[name] for name in self.edges]
        tensors = {
            "base": self.base,
            "motion": np.stack([motion.motion for motion in motions]),
            "law": np.stack([motion.law for motion in motions]),
            **self.scaling.tensors,
            **{f"recover {m.edge}": m.recover for m in motions if m.recover is not None},
        }
        known = ("kind", "words", "reason", "misfit", "residual", "clipped", "noise", "last", "solved", "tried")
        facts = {m.edge: {key: _plain(getattr(m, key)) for key in (*known, "warnings")} for m in motions}
        metadata: dict[str, Any] = {"class": "motion", "train": list(self.train), "edges": list(self.edges)}
        metadata |= {"network": asdict(self.network), "records": stored_records(self.records), "motions": facts}
        return Model(tensors, metadata, steps, metrics)

    @classmethod
    def from_model(cls, model: Model, where: str) -> Moved:
        """Read a template; errors name `where` it is from, such as a file."""
        meta = model_metadata(model, "motion", where)
        network, names = Network(**meta["network"]), tuple(meta["edges"])
        for key in ("base", "motion", "law", "scaling_center", "scaling_half"):
            if key not in model.tensors or len(model.tensors[key]) != len(names):
                raise damaged(where, f"{key}: expected a tensor for {len(names)} edges")
        base, maps, laws = (model.tensors[key] for key in ("base", "motion", "law"))
        motions = {}
        for e, name in enumerate(names):
            known = meta["motions"][name]
            facts: dict[str, Any] = {key: float("nan") if value is None else value for key, value in known.items()}
            facts["warnings"] = tuple(facts["warnings"])
            recover = model.tensors.get(f"recover {name}")
            motions[name] = Motion(name, maps[e], laws[e], recover=recover, **facts)
        train, scaling = tuple(meta["train"]), Scaling.of(model.tensors)
        return cls(train, names, network, scaling, base, motions, read_records(meta["records"]))


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return None if isinstance(value, float) and not np.isfinite(value) else value


# --- training --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Mover:
    """Finds the motions of a teacher's edges and rolls them out on the training tasks."""

    tasks: Tasks
    teacher: Teacher
    rng: np.random.Generator
    rollouts: int

    def template(self, edges: Sequence[Edge] | None = None) -> tuple[Moved, dict[str, int]]:
        """Return the template of some edges (all by default) and the environment steps by edge."""
        chosen = self.tasks.edges if edges is None else tuple(edges)
        names = tuple(edge.name for edge in chosen)
        rows = np.array([self.teacher.edges.index(name) for name in names])
        motions, records, steps = {}, {}, {}
        for edge in chosen:
            motions[edge.name], records[edge.name], steps[edge.name] = self.edge(edge)
        base, scaling = self.teacher.actor[rows], self.teacher.scaling.take(rows)
        template = Moved(self.tasks.indices, names, self.teacher.network, scaling, base, motions, records)
        return template, steps

    def edge(self, edge: Edge) -> tuple[Motion, EdgeRecord, int]:
        """Return the motion of an edge, what became of its rollouts, and the environment steps that it took."""
        dynamics = Dynamics(self.tasks.environment)
        here = self.teacher.starts(self.tasks.at([0]))
        e = self.teacher.edges.index(edge.name)
        recorder = StateRecorder()
        base = self._roll(here, edge, self._moved(e, self._still(edge)), recorder)
        steps, success = base.steps, float(base.success.mean())
        corridor = _visited(recorder, base)
        if success <= SOLVED:
            text = f"the teacher of index 0 succeeds in {success:.0%} of its rollouts only"
            found = replace(self._still(edge), reason=text)
        else:
            actions = self.teacher.act(e, self.tasks.environment.observe(corridor))
            found = find_motion(self.tasks, edge, corridor, actions, dynamics, self.rng)
        if not found.holds:
            still = self._still(edge)
            found = replace(found, motion=still.motion, law=still.law, recover=None)
        there = self._arriving(here, edge, found, dynamics)
        outcome = self._roll(there, edge, self._moved(e, found))
        rates, returns = outcome.success.mean(axis=-1), outcome.returns.mean(axis=-1)
        found = self._judged(found, rates)
        record = EdgeRecord(self.tasks.indices, tuple(map(float, rates)), tuple(map(float, returns)))
        return found, record, steps + dynamics.steps + outcome.steps

    def _judged(self, found: Motion, rates: Array) -> Motion:
        """Return the motion with the result of its rollouts (training indices,)."""
        good = (rates > SOLVED) & (rates >= rates[0] - LOST)
        found = replace(found, solved=int(good.sum()), tried=len(rates))
        if not found.holds or good.all():
            return found
        worst = int(np.argmin(rates))
        text = f"{found.words}, but the moved policy succeeds in {rates[worst]:.0%} of rollouts only at index "
        return replace(found, reason=f"{text}{self.tasks.indices[worst]}")

    def _still(self, edge: Edge) -> Motion:
        environment = self.tasks.environment
        return Motion(edge.name, np.eye(len(environment.state_names) + 1), np.eye(environment.action_dim + 1))

    def _moved(self, e: int, motion: Motion) -> Moved:
        """Return the template of one edge, without records."""
        row, teacher = np.array([e]), self.teacher
        scaling, base = teacher.scaling.take(row), teacher.actor[row]
        return Moved(self.tasks.indices, (motion.edge,), teacher.network, scaling, base, {motion.edge: motion}, {})

    def _roll(self, tasks: Tasks, edge: Edge, template: Moved, recorder: StateRecorder | None = None) -> Outcome:
        """Roll out a template on an edge at all indices of the tasks."""
        pairs = [(index, edge.name) for index in tasks.indices]
        task = EdgeTask(tasks.ground(pairs))
        policy = template.edge_policy(tasks.environment, pairs)
        return rollout(task, policy, draw(task, self.rollouts, self.rng), recorder=recorder)

    def _arriving(self, here: Tasks, edge: Edge, found: Motion, dynamics: Dynamics) -> Tasks:
        """Return the training tasks; where edges start from arrivals, these move along."""
        known = here.arrivals.get((0, edge.name))
        if known is None or not len(known):
            return self.tasks
        images = {(i, edge.name): dynamics.move(known, power(found.motion, i)) for i in self.tasks.indices}
        return self.tasks.arriving(images)


def _visited(recorder: StateRecorder, outcome: Outcome) -> Array:
    """Return the states (n, dim) of all successful episodes of one task, before their ends; of all, if none is."""
    states = recorder.states()[:, 0]  # (time, rollouts, dim)
    lengths, good = outcome.lengths[0], outcome.success[0]
    chosen = good if good.any() else np.ones_like(good)
    within = (np.arange(len(states))[:, None] < lengths - 1) & chosen
    return np.asarray(states[within], dtype=np.float64)


def train(training: Training, settings: MotionSettings) -> Model:
    """Move the teacher of index 0."""
    teacher = load_teacher(training.teachers[0])
    if teacher.index != 0 or teacher.edges != training.tasks.edge_names:
        raise DibsError(
            f"motion needs the teacher of index 0 of {training.tasks.name}, found that of index {teacher.index} of "
            f"{teacher.family} with edges {', '.join(teacher.edges)}"
        )
    rng = stream("motion", training.tasks.name, training.split.key, training.seed)
    template, queried = Mover(training.tasks, teacher, rng, settings.rollouts).template()
    if training.progress is not None:
        for name in template.edges:
            training.progress(f"{name}: {template.motions[name].sentence}")
    steps = {name: teacher_steps(teacher.metrics, [name]) + queried[name] for name in template.edges}
    facts = {name: motion.facts() for name, motion in template.motions.items()}
    metrics = {"motion": facts, "queried": queried, "share": share(list(template.motions.values()))}
    return with_prediction(template.to_model(steps, metrics), template.predicted())


def reads(settings: MotionSettings, train: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """One teacher is enough."""
    return {"teachers": train[:1]}


LOOK: dict[str, Any] = {"color": "#006400", "marker": "D", "hatch": "++", "dashes": (3.0, 1.0, 1.0, 1.0), "order": 12}
MOTION = Method(
    "motion", "Motion", MotionSettings, train, template_policy, ("teachers",), reads, per_family=True, version=2, **LOOK
)

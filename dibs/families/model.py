"""An inductive task family as data (paper, section 3.1): one specification whose regions move with the index.

A family is described by a mapping (in Python or YAML) with the keys of `Family`; nothing in it is executed.
Index i grounds every region by stated operators: the centre is translated by `shift` per index and by
`drift` times the square of the index, the half-width is multiplied by `scale` per index.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from dibs.envs import ENVIRONMENTS, Dynamics
from dibs.errors import DibsError, unknown
from dibs.spectrl import Box, Edge, Graph, cnf, conjuncts, graph, parse, regions_of
from dibs.spectrl.syntax import Spec

Numbers = list[float]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Moving(_Strict):
    """A point that moves with the index: centre + index · shift + index² · drift."""

    center: list[float | None]
    """One number per state variable; null leaves the variable free."""
    shift: Numbers = []
    """Translation per index; empty means it stands still."""
    drift: Numbers = []
    """Second-order drift: added index² times; empty means none."""

    def at(self, indices: np.ndarray) -> np.ndarray:
        """Centres (*indices.shape, dim) at the given indices; free variables are NaN."""
        center = np.array([np.nan if c is None else c for c in self.center])
        i = np.asarray(indices, dtype=float)[..., None]
        return center + i * _vector(self.shift, center) + i**2 * _vector(self.drift, center)


class RegionModel(Moving):
    """An axis-aligned box whose size may change with the index, too."""

    half_width: Positive | list[Positive]
    """One number for all constrained variables or one per state variable."""
    scale: Positive = 1.0
    """Factor applied to the half-width per index."""

    def box(self, index: int | np.ndarray) -> Box:
        """Ground the region at one index or at an array of them."""
        indices = np.asarray(index)
        center = self.at(indices)
        # Python's power of each: numpy's differs in the last bit between one index and an array of them.
        growth = np.reshape([self.scale ** int(i) for i in indices.flat], indices.shape)
        width = _vector(self.half_width, center[..., :]) * growth[..., None]
        free = np.isnan(center)
        return Box(np.where(free, 0.0, center), np.where(free, np.inf, width))


class StartModel(Moving):
    """Initial states: centre plus noise truncated at one standard deviation."""

    noise: float | Numbers = 0.0
    """Standard deviation, one number or one per state variable."""

    @field_validator("center")
    @classmethod
    def _no_free_variable(cls, center: list[float | None]) -> list[float | None]:
        if any(c is None for c in center):
            raise ValueError("a start must fix every state variable; null is for regions")
        return center


class NetworkModel(_Strict):
    """The actor: a multilayer perceptron with a tanh output."""

    hidden: Annotated[list[Annotated[int, Field(gt=0)]], Field(min_length=1)]
    activation: Annotated[str, Field(pattern="^(tanh|relu)$")] = "tanh"


class RewardModel(_Strict):
    """Reward per step: signed distance to the target, over `unit`, minus a penalty while unsafe."""

    unit: Positive = 1.0
    """Distance that counts as one unit of reward."""
    unsafe_penalty: Annotated[float, Field(ge=0)] = 10.0
    """Subtracted for every step spent in an unsafe state, in units of reward."""
    margin: Annotated[float, Field(ge=0)] = 0.0
    """While training, states closer than this to an unsafe one are penalised, too."""
    depth: Annotated[float, Field(ge=0)] = 0.0
    """While training, the target counts as reached only this deep inside: teachers aim at the middle."""


class EnvironmentModel(BaseModel):
    """The environment's name and any of its constants that differ from the default."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str

    @model_validator(mode="after")
    def _known(self) -> Self:
        if self.name not in ENVIRONMENTS:
            raise ValueError(str(unknown("environment", self.name, ENVIRONMENTS)))
        fields = {f.name for f in dataclasses.fields(ENVIRONMENTS[self.name])}  # type: ignore[arg-type]
        for key, value in (self.model_extra or {}).items():
            if key not in fields:
                raise ValueError(str(unknown(f"constant of {self.name}", key, fields)))
            least = 0.0 if "noise" in key else np.nextafter(0.0, 1.0)
            if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < np.inf:
                expected = "a finite number ≥ 0" if least == 0.0 else "a finite number above 0"
                raise ValueError(f"{key}: expected {expected}, found {value!r}")
        return self


class Family(_Strict):
    """One inductive task family: what is trained. Its benchmarks are what is evaluated."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
    environment: EnvironmentModel
    specification: str
    """SPECTRL text; its reach-avoid edges are trained."""
    benchmarks: dict[str, str] = {}
    """Evaluated specifications by id, over edges of `specification`; empty: one, of the family's name."""
    start: StartModel
    regions: dict[str, RegionModel]
    last_index: Annotated[int, Field(ge=1)]
    """L: the family's indices are 0 … L."""
    gaps: list[Annotated[int, Field(ge=1)]] = []
    """Spacings of the training indices; each must divide L."""
    horizon: Annotated[int, Field(ge=1)]
    """Steps per edge."""
    teacher: str = "ars"
    """RL algorithm of the teachers: ars, ppo, or another Stable-Baselines3 algorithm."""
    teacher_options: dict[str, Any] = {}
    """Settings of that algorithm that suit this family; a config's options go before them."""
    network: NetworkModel
    reward: RewardModel = RewardModel()
    description: str = ""

    # --- grounding -----------------------------------------------------------------------------------

    @cached_property
    def dynamics(self) -> Dynamics:
        return ENVIRONMENTS[self.environment.name](**(self.environment.model_extra or {}))

    @cached_property
    def spec(self) -> Spec:
        return parse(self.specification)

    @cached_property
    def graph(self) -> Graph:
        return graph(self.spec)

    @property
    def edges(self) -> tuple[Edge, ...]:
        return self.graph.edges

    @property
    def benchmark_ids(self) -> tuple[str, ...]:
        return tuple(self.benchmarks) or (self.name,)

    def boxes(self, index: int) -> dict[str, Box]:
        """All regions, grounded at `index` (any index ≥ 0, also beyond L)."""
        self.check_index(index, beyond=True)
        return {name: region.box(index) for name, region in self.regions.items()}

    def train_indices(self, gap: int) -> tuple[int, ...]:
        """Train = {0, gap, 2·gap, …, L}."""
        if not isinstance(gap, int | np.integer) or gap < 1 or self.last_index % gap:
            raise DibsError(
                f"gap {gap!r} does not divide the last index {self.last_index} of {self.name}; "
                f"choose one of {[g for g in range(1, self.last_index + 1) if self.last_index % g == 0]}"
            )
        return tuple(range(0, self.last_index + 1, gap))

    def check_index(self, index: int, beyond: bool = False) -> None:
        """Refuse an index outside 0 … L (`beyond`: any index ≥ 0 will do)."""
        whole = isinstance(index, int | np.integer) and not isinstance(index, bool)
        if not whole or index < 0 or (index > self.last_index and not beyond):
            end = "…" if beyond else f"… {self.last_index}"
            raise DibsError(f"index {index!r} of {self.name}: expected a whole number in 0 {end}")

    # --- validation ----------------------------------------------------------------------------------

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems = list(self._shape_problems())
        if not problems:
            problems = list(self._specification_problems()) or list(self._geometry_problems())
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _shape_problems(self) -> Any:
        names = self.dynamics.state_names
        moving: dict[str, Moving] = {"start": self.start}
        moving |= {f"regions.{name}": region for name, region in self.regions.items()}
        for key, item in moving.items():
            for field in ("center", "shift", "drift", "noise", "half_width"):
                value = getattr(item, field, [])
                optional = field in ("shift", "drift") and value == []
                wrong = isinstance(value, list) and len(value) != len(names)
                if wrong and not optional and field in type(item).model_fields:
                    yield f"{key}.{field}: expected {len(names)} numbers ({', '.join(names)}), found {len(value)}"
        for name, region in self.regions.items():
            if all(c is None for c in region.center):
                yield f"regions.{name}.center: at least one state variable must be fixed"
        noise = self.start.noise
        if any(n < 0 for n in (noise if isinstance(noise, list) else [noise])):
            yield f"start.noise: expected numbers ≥ 0, found {noise}"
        for gap in self.gaps:
            if self.last_index % gap:
                yield f"gaps: {gap} does not divide last_index {self.last_index}"

    def _specification_problems(self) -> Any:
        texts = {"specification": self.specification}
        texts |= {f"benchmarks.{name}": text for name, text in self.benchmarks.items()}
        specs = {}
        for key, text in texts.items():
            try:
                specs[key] = parse(text)
            except DibsError as error:
                yield f"{key}: {error}"
                continue
            for region in sorted(regions_of(specs[key]) - set(self.regions)):
                yield f"{key}: {unknown('region', region, self.regions)}"
        if len(specs) < len(texts) or any(regions_of(spec) - set(self.regions) for spec in specs.values()):
            return
        edges = {edge.name: edge for edge in self.edges}
        for key, spec in specs.items():
            for edge in graph(spec).edges:
                if edges.get(edge.name) != edge:
                    yield f"{key}: its edge {edge.name} is not an edge of the family's specification"
        for edge in self.edges:
            if not any(inside for _, inside in conjuncts(edge.target)):
                yield f"specification: edge {edge.name} has no region to reach"

    def _geometry_problems(self) -> Any:
        reachable = getattr(self.dynamics, "reachable", None)
        for index in range(self.last_index + 1):
            boxes = self.boxes(index)
            low, high = start_box(self, index)
            middle = (low + high) / 2
            if reachable and np.abs(reachable(middle) - middle).max() > 1e-3 * np.abs(middle).max():
                yield f"start: its centre {middle.tolist()} is out of the arm's reach at index {index}"
                return
            for edge in self.edges:
                avoided = [
                    name for clause in cnf(edge.safe) if len(clause) == 1 for name, inside in clause if not inside
                ]
                targets = [name for name, inside in conjuncts(edge.target) if inside]
                for target in targets:
                    center = boxes[target].center
                    narrowest = boxes[target].half_width.min()
                    if narrowest <= self.reward.depth:
                        where = f"leaves nothing of {target} at index {index}, half-width {narrowest:g}"
                        yield f"reward.depth: {self.reward.depth:g} {where}"
                        return
                    for name in avoided:
                        if boxes[name].contains(center[None])[0]:
                            yield f"regions.{target}: its centre lies inside {name}, to be avoided, at index {index}"
                            return
                    if reachable and np.abs(reachable(center) - center).max() > 1e-3 * np.abs(center).max():
                        where = f"its centre {center.tolist()} is out of the arm's reach at index {index}"
                        yield f"regions.{target}: {where}"
                        return
                for name in avoided if edge.source is None else ():
                    box = boxes[name]
                    if np.all((low <= box.center + box.half_width) & (high >= box.center - box.half_width)):
                        yield f"start: overlaps {name}, which must be avoided, at index {index}"
                        return


def start_box(family: Family, index: int) -> tuple[np.ndarray, np.ndarray]:
    """Lowest and highest initial state at `index`."""
    center = family.start.at(np.asarray(index))
    noise = _vector(family.start.noise, center)
    return center - noise, center + noise


def load_family(source: str | Path | Mapping[str, Any]) -> Family:
    """Build a family from a YAML file or a mapping; every problem is named by its key."""
    if isinstance(source, Mapping):
        where, data = "family", dict(source)
    else:
        where, data = str(source), _read_yaml(Path(source))
    try:
        return Family.model_validate(data)
    except ValidationError as error:
        lines = [f"  {_explain(e)}" for e in error.errors()]
        raise DibsError(f"{where}: not a valid family description\n" + "\n".join(lines)) from None


def _explain(problem: Any) -> str:
    """One problem in one line: the key, the reason, and for an unknown key the nearest known one."""
    # Alternatives of a union ("one number or a list") have inner names that mean nothing to a reader.
    where = [str(part) for part in problem["loc"] if not str(part).startswith(("list[", "constrained-", "float"))]
    key = ".".join(where) or "family"
    if problem["type"] != "extra_forbidden":
        return f"{key}: {problem['msg'].removeprefix('Value error, ')}"
    kinds: dict[str, type[BaseModel]] = {
        "start": StartModel,
        "regions": RegionModel,
        "network": NetworkModel,
        "reward": RewardModel,
    }
    kind = kinds.get(where[0], Family) if len(where) > 1 else Family
    return f"{key}: {unknown('key', where[-1], kind.model_fields)}"


def _read_yaml(path: Path) -> dict[str, Any]:
    import yaml

    try:
        data = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        raise DibsError(f"{path}: no such family file") from None
    except yaml.YAMLError as error:
        raise DibsError(f"{path}: not valid YAML: {error}") from None
    if not isinstance(data, dict):
        raise DibsError(f"{path}: expected a mapping of family keys, found {type(data).__name__}")
    return data


def _vector(value: float | Numbers, like: np.ndarray) -> np.ndarray:
    """A per-variable vector from one number, a list, or nothing (zeros)."""
    return np.zeros(like.shape[-1]) if value == [] else np.broadcast_to(np.asarray(value, float), like.shape[-1:])

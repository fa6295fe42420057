"""An inductive task family as data (paper, section 3.1): one specification whose regions move with the index.

A family is described by a mapping (in Python or YAML) with the keys of `Family`; nothing in it is executed. At index i
the center of a region is center + i·shift + i²·drift and its half-width is multiplied by scale^i. A table of values per
index replaces all of this.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from dibs import registry
from dibs.envs import Environment
from dibs.errors import DibsError, unknown
from dibs.families.tasks import NetworkModel, RewardModel, Tasks
from dibs.paths import BASE
from dibs.spectrl import Box, Edge, Graph, cnf, conjuncts, graph, parse, regions_of
from dibs.spectrl.syntax import Spec

Numbers = list[float]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
GAP = re.compile(r"gap([1-9]\d*)")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class StartEntry(_Strict):
    """Center of the initial states at one index."""

    center: Numbers


class RegionEntry(_Strict):
    """A box at one index."""

    center: list[float | None]
    """One number per state variable; null leaves the variable free."""
    half_width: Positive | list[Positive]


class Moving(_Strict):
    """A point that moves with the index: center + index · shift + index² · drift, or a table of points."""

    center: list[float | None] = []
    """One number per state variable; null leaves the variable free."""
    shift: Numbers = []
    """Translation per index; empty: none."""
    drift: Numbers = []
    """Second-order drift, multiplied by index²; empty: none."""

    def entries(self) -> Sequence[StartEntry | RegionEntry]:
        """The table of values per index; empty if the operators apply."""
        return ()

    def at(self, indices: np.ndarray) -> np.ndarray:
        """Return the centers (*indices.shape, dim) at the given indices; free variables are NaN."""
        table = self.entries()
        if table:
            rows = [[np.nan if c is None else c for c in entry.center] for entry in table]
            return np.array(rows)[self._rows(indices)]
        center = np.array([np.nan if c is None else c for c in self.center])
        i = np.asarray(indices, dtype=float)[..., None]
        return center + i * _vector(self.shift, center) + i**2 * _vector(self.drift, center)

    def _rows(self, indices: np.ndarray) -> np.ndarray:
        last = len(self.entries()) - 1
        if np.any(np.asarray(indices) > last):
            raise DibsError(f"index {np.max(indices)}: the table of values ends at index {last}")
        return np.asarray(indices)


class RegionModel(Moving):
    """An axis-aligned box whose size may change with the index, too."""

    half_width: Positive | list[Positive] = []
    """One number for all constrained variables, or one per state variable."""
    scale: Positive = 1.0
    """Factor applied to the half-width per index."""
    table: list[RegionEntry] = []
    """Center and half-width at index 0, 1, …, L, instead of all of the above."""

    def entries(self) -> Sequence[RegionEntry]:
        return self.table

    def box(self, index: int | np.ndarray) -> Box:
        """Ground the region at one index or at an array of them."""
        indices = np.asarray(index)
        center = self.at(indices)
        if self.table:
            widths = [np.broadcast_to(np.asarray(e.half_width, float), center.shape[-1:]) for e in self.table]
            width = np.array(widths)[self._rows(indices)]
        else:
            # Python's power of each: numpy's differs in the last bit between one index and an array of them.
            growth = np.reshape([self.scale ** int(i) for i in indices.flat], indices.shape)
            width = _vector(self.half_width, center) * growth[..., None]
        free = np.isnan(center)
        return Box(np.where(free, 0.0, center), np.where(free, np.inf, width))


class StartModel(Moving):
    """Initial states: center plus noise truncated at one standard deviation."""

    noise: float | Numbers = 0.0
    """Standard deviation, one number or one per state variable."""
    table: list[StartEntry] = []
    """Center at index 0, 1, …, L, instead of center, shift and drift."""

    def entries(self) -> Sequence[StartEntry]:
        return self.table

    @field_validator("center")
    @classmethod
    def _no_free_variable(cls, center: list[float | None]) -> list[float | None]:
        if any(c is None for c in center):
            raise ValueError("a start must fix every state variable; null is for regions")
        return center


class EnvironmentModel(BaseModel):
    """The environment's name and any of its constants that differ from the default."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str

    @model_validator(mode="after")
    def _known(self) -> Self:
        try:
            kind = registry.load("environments", self.name)
        except DibsError as error:
            raise ValueError(str(error)) from None
        fields = {f.name for f in dataclasses.fields(kind)}
        for key, value in (self.model_extra or {}).items():
            if key not in fields:
                raise ValueError(str(unknown(f"constant of {self.name}", key, fields)))
            least = 0.0 if "noise" in key else np.nextafter(0.0, 1.0)
            if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < np.inf:
                expected = "a finite number ≥ 0" if least == 0.0 else "a finite number above 0"
                raise ValueError(f"{key}: expected {expected}, found {value!r}")
        return self

    def build(self) -> Environment:
        """Return the environment."""
        environment: Environment = registry.load("environments", self.name)(**(self.model_extra or {}))
        return environment


@dataclass(frozen=True)
class Split:
    """A training set: increasing indices that contain 0 and L (paper, section 3.1: Train)."""

    name: str
    """`gap5` for {0, 5, 10, …} ∪ {L}, or a name from a config."""
    indices: tuple[int, ...]

    @property
    def key(self) -> str:
        """What random streams are keyed by: `5` for `gap5`, as in version 0.1, otherwise the name."""
        return self.name.removeprefix("gap") if GAP.fullmatch(self.name) else self.name

    @property
    def derived(self) -> bool:
        """Whether its indices follow from its name."""
        return GAP.fullmatch(self.name) is not None or self.name == BASE

    def before(self, index: int) -> int | None:
        """Return the training index before `index`; None at 0."""
        if index not in self.indices:
            raise DibsError(f"index {index} is not a training index of split {self.name}: {list(self.indices)}")
        return None if index == 0 else self.indices[self.indices.index(index) - 1]


class Family(_Strict):
    """One inductive task family: what is trained. Its benchmarks are what is evaluated."""

    name: Annotated[str, Field(pattern=f"^{NAME.pattern}$")]
    environment_model: EnvironmentModel = Field(alias="environment")
    specification: str
    """SPECTRL text; its reach-avoid edges are trained."""
    benchmarks: dict[str, str] = {}
    """Evaluated specifications by id, over edges of `specification`; empty: one, of the family's name."""
    start: StartModel
    regions: dict[str, RegionModel]
    last_index: Annotated[int, Field(ge=1)]
    """L: the family's indices are 0 … L."""
    gaps: list[Annotated[int, Field(ge=1)]] = []
    """Spacings of the training indices that a study uses by default."""
    horizon: Annotated[int, Field(ge=1)]
    """Steps per edge."""
    teacher: str = "ars"
    """RL algorithm of the teachers: ars, ppo, or another registered one."""
    teacher_options: dict[str, Any] = {}
    """Settings of that algorithm that suit this family; a config's options override them."""
    teacher_minutes: Annotated[int, Field(ge=1)] | None = None
    """Run time of one teacher on a cluster; null: the algorithm's."""
    teacher_memory_mb: Annotated[int, Field(ge=1)] | None = None
    """Memory of one teacher on a cluster; null: the algorithm's."""
    network: NetworkModel
    reward: RewardModel = RewardModel()
    description: str = ""

    # --- grounding -----------------------------------------------------------------------------------

    # Cached properties are not part of what makes two families equal; private attributes would be.

    @cached_property
    def source(self) -> str:
        """How a command line names it: its name, or the file that `load_family` read."""
        return self.name

    @cached_property
    def known_digests(self) -> dict[tuple[tuple[int, ...], str], str]:
        """Digests of tasks computed so far."""
        return {}

    @cached_property
    def environment(self) -> Environment:
        return self.environment_model.build()

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

    @property
    def extends(self) -> bool:
        """Whether there are tasks beyond index L; a table of values ends there."""
        return not (self.start.table or any(region.table for region in self.regions.values()))

    def tasks(self, indices: Sequence[int], specification: str = "") -> Tasks:
        """Ground the tasks of the given indices (any ≥ 0); by default under the family's own specification."""
        for index in indices:
            self.check_index(index, beyond=True)
        at = np.array(indices, dtype=int)
        start = self.start.at(at)
        return Tasks(
            name=self.name,
            environment=self.environment,
            specification=specification or self.specification,
            indices=tuple(int(i) for i in indices),
            start_center=start,
            start_half=np.broadcast_to(_vector(self.start.noise, start), start.shape),
            regions={name: region.box(at) for name, region in self.regions.items()},
            horizon=self.horizon,
            reward=self.reward,
            network=self.network,
        )

    def tasks_digest(self, indices: Sequence[int], specification: str = "") -> str:
        """Return the digest of the tasks of the given indices; it is computed once."""
        key = (tuple(indices), specification)
        if key not in self.known_digests:
            self.known_digests[key] = self.tasks(indices, specification).digest
        return self.known_digests[key]

    def boxes(self, index: int) -> dict[str, Box]:
        """Return all regions, grounded at `index` (any index ≥ 0, also beyond L)."""
        self.check_index(index, beyond=True)
        return {name: region.box(index) for name, region in self.regions.items()}

    def split(self, name: str, indices: Sequence[int] | None = None) -> Split:
        """Return a training set: `gapN`, or any name with its indices."""
        if indices is None:
            match = GAP.fullmatch(name)
            if match is None:
                raise DibsError(f"split '{name}' of {self.name}: expected gapN, or a name with its training indices")
            gap = int(match[1])
            if gap > self.last_index:
                raise DibsError(f"split {name} of {self.name}: the gap is larger than the last index {self.last_index}")
            return Split(name, tuple(sorted({*range(0, self.last_index, gap), self.last_index})))
        chosen = tuple(int(i) for i in indices)
        ends = (0, self.last_index)
        known = self.split(name).indices if GAP.fullmatch(name) else ends if name == BASE else chosen
        if chosen != known:
            raise DibsError(f"split {name} of {self.name}: this name means {list(known)}; choose another")
        if not NAME.fullmatch(name):
            raise DibsError(f"split '{name}' of {self.name}: expected lowercase letters, digits and single hyphens")
        rising = all(a < b for a, b in pairwise(chosen))
        if not rising or not chosen or chosen[0] != 0 or chosen[-1] != self.last_index:
            raise DibsError(
                f"split '{name}' of {self.name}: expected increasing indices from 0 to L = {self.last_index}, "
                f"found {list(chosen)}"
            )
        return Split(name, chosen)

    def check_index(self, index: int, beyond: bool = False) -> None:
        """Refuse an index outside 0 … L; with `beyond`, any index ≥ 0 is accepted."""
        whole = isinstance(index, int | np.integer) and not isinstance(index, bool)
        if not whole or index < 0 or (index > self.last_index and not beyond):
            end = "…" if beyond else f"… {self.last_index}"
            raise DibsError(f"index {index!r} of {self.name}: expected a whole number in 0 {end}")

    def description_data(self) -> dict[str, Any]:
        """Return the mapping that describes this family: `load_family` gives the family back."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True)

    def to_yaml(self) -> str:
        """Return the family as YAML that `load_family` reads back as the same family."""

        class Dumper(yaml.SafeDumper):
            """Lists on one line, mappings one key per line."""

        Dumper.add_representer(
            list, lambda dumper, value: dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=True)
        )
        brief = self.description_data()
        # Show every key that a user may want to change, but not what regions leave at its default.
        data = self.model_dump(mode="json", by_alias=True) | {key: brief[key] for key in ("start", "regions")}
        data = {key: value for key, value in data.items() if value not in ("", [], {}, None)}
        constants = ", ".join(f"{f.name} {f.default}" for f in dataclasses.fields(self.environment))  # type: ignore[arg-type]
        return (
            f"# Lists hold one number per state variable: {', '.join(self.environment.state_names)}.\n"
            f"# Constants of {self.environment.name} that may be set next to its name: {constants}.\n"
        ) + yaml.dump(data, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=1000)

    @classmethod
    def load(cls, source: str | Path | Mapping[str, Any]) -> Family:
        """Read a family from a YAML file or a mapping."""
        return load_family(source)

    def save(self, path: str | Path) -> None:
        """Write the family as YAML."""
        Path(path).write_text(self.to_yaml())

    # --- validation ----------------------------------------------------------------------------------

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems = list(self._shape_problems())
        if not problems:
            problems = list(self._specification_problems()) or list(self._geometry_problems())
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _shape_problems(self) -> Iterator[str]:
        names = self.environment.state_names
        moving: dict[str, Moving] = {"start": self.start}
        moving |= {f"regions.{name}": region for name, region in self.regions.items()}
        for key, item in moving.items():
            if item.entries():
                yield from self._table_problems(key, item, names)
            for field in ("noise",) if item.entries() else ("center", "shift", "drift", "noise", "half_width"):
                value = getattr(item, field, [])
                optional = field in ("shift", "drift") and value == []
                wrong = isinstance(value, list) and len(value) != len(names)
                if wrong and not optional and field in type(item).model_fields:
                    yield f"{key}.{field}: expected {len(names)} numbers ({', '.join(names)}), found {len(value)}"
        for name, region in self.regions.items():
            centers = {"": region.center} | {f"table.{i}.": entry.center for i, entry in enumerate(region.table)}
            for place, center in centers.items():
                if center and all(c is None for c in center):
                    yield f"regions.{name}.{place}center: at least one state variable must be fixed"
        noise = self.start.noise
        if any(n < 0 for n in (noise if isinstance(noise, list) else [noise])):
            yield f"start.noise: expected numbers ≥ 0, found {noise}"
        for gap in self.gaps:
            if gap > self.last_index:
                yield f"gaps: {gap} is larger than last_index {self.last_index}"

    def _table_problems(self, key: str, item: Moving, names: Sequence[str]) -> Iterator[str]:
        table = item.entries()
        for field in sorted(item.model_fields_set & {"center", "shift", "drift", "half_width", "scale"}):
            yield f"{key}.table: replaces {field}; leave that out"
        if len(table) != self.last_index + 1:
            expected = f"{self.last_index + 1} entries (index 0 … {self.last_index})"
            yield f"{key}.table: expected {expected}, found {len(table)}"
        for index, entry in enumerate(table):
            sizes = {"center": entry.center, "half_width": getattr(entry, "half_width", 0.0)}
            for field, value in sizes.items():
                if isinstance(value, list) and len(value) != len(names):
                    yield f"{key}.table.{index}.{field}: expected {len(names)} numbers, found {len(value)}"
            if [c is None for c in entry.center] != [c is None for c in table[0].center]:
                yield f"{key}.table.{index}.center: leaves other variables free than the first entry"

    def _specification_problems(self) -> Iterator[str]:
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

    def _geometry_problems(self) -> Iterator[str]:
        """Return the first index whose regions cannot be right."""
        for index in range(self.last_index + 1):
            problem = next(self._problems_at(index), None)
            if problem:
                yield problem
                return

    def _problems_at(self, index: int) -> Iterator[str]:
        boxes = self.boxes(index)
        center = self.start.at(np.asarray(index))
        noise = _vector(self.start.noise, center)
        if self._impossible(center):
            yield f"start: its center {center.tolist()} is not a state of {self.environment.name} at index {index}"
        for edge in self.edges:
            avoided = [name for clause in cnf(edge.safe) if len(clause) == 1 for name, inside in clause if not inside]
            for target in (name for name, inside in conjuncts(edge.target) if inside):
                middle, narrowest = boxes[target].center, boxes[target].half_width.min()
                if narrowest <= self.reward.depth:
                    yield (
                        f"reward.depth: {self.reward.depth:g} leaves nothing of {target} at index {index}, "
                        f"half-width {narrowest:g}"
                    )
                for name in avoided:
                    if boxes[name].contains(middle[None])[0]:
                        yield f"regions.{target}: its center lies inside {name}, to be avoided, at index {index}"
                if self._impossible(middle):
                    yield (
                        f"regions.{target}: its center {middle.tolist()} is not a state of {self.environment.name} "
                        f"at index {index}"
                    )
            for name in avoided if edge.source is None else ():
                box = boxes[name]
                low, high = center - noise, center + noise
                if np.all((low <= box.center + box.half_width) & (high >= box.center - box.half_width)):
                    yield f"start: overlaps {name}, which must be avoided, at index {index}"

    def _impossible(self, state: np.ndarray) -> bool:
        moved = np.abs(self.environment.project(state) - state).max()
        return bool(moved > 1e-3 * max(float(np.abs(state).max()), 1e-9))


def load_family(source: str | Path | Mapping[str, Any]) -> Family:
    """Build a family from a YAML file or a mapping; errors name every offending key."""
    if isinstance(source, Mapping):
        where, data = "family", dict(source)
    else:
        where, data = str(source), _read_yaml(Path(source))
    try:
        family = Family.model_validate(data)
    except ValidationError as error:
        lines = [f"  {_explain(e)}" for e in error.errors()]
        raise DibsError(f"{where}: not a valid family description\n" + "\n".join(lines)) from None
    if not isinstance(source, Mapping):
        family.__dict__["source"] = where
    return family


def _explain(problem: Any) -> str:
    """Return one problem in one line: the key, the reason, and for an unknown key the nearest known one."""
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
    if "table" in where[:-1]:
        kind = StartEntry if kind is StartModel else RegionEntry
    known = [field.alias or name for name, field in kind.model_fields.items()]
    return f"{key}: {unknown('key', where[-1], known)}"


def _read_yaml(path: Path) -> dict[str, Any]:
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
    """Return a vector with one entry per variable from one number, a list, or nothing (zeros)."""
    return np.zeros(like.shape[-1]) if value == [] else np.broadcast_to(np.asarray(value, float), like.shape[-1:])

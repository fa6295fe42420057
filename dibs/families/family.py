"""An inductive task family as data (paper, section 3.1): one specification whose regions move with the index.

A family is described by a mapping (in Python or YAML) with the keys of `Family`; nothing in it is executed. At index i
the center of a region is Dⁱ Rⁱ (center + i·shift + i²·drift), where R rotates and D dilates, each about its own point.
Sizes are multiplied by scaleⁱ and by the dilation's factorⁱ. Boxes stay parallel to the axes. A table of values per
index replaces all of this.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from dibs.files import atomic
from dibs.paths import BASE
from dibs.provenance import digest
from dibs.seeding import stream
from dibs.spectrl import Edge, Graph, Region, cnf, conjuncts, graph, parse, regions_of
from dibs.spectrl.syntax import Spec

Numbers = list[float]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
GAP = re.compile(r"gap([1-9]\d*)")
MOST_INDICES = 10_000  # every index of a family is checked when it is loaded
ADAPTERS = {"gymnasium": "dibs.gym.simulators:GymnasiumEnvironment"}
"""Environments that a layer above this one provides."""
LISTED = ("center", "shift", "drift", "noise", "wide", "half_width", "normal")
"""Keys with one number per state variable, which may also be given as mappings from names."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class StartEntry(_Strict):
    """Center of the initial states at one index."""

    center: Numbers


class Extent(_Strict):
    """What makes a region of a center: exactly one of these."""

    half_width: Positive | list[Positive] = []
    """Of a box: one number for all constrained variables, or one per state variable."""
    radius: Positive | None = None
    """Of a ball in the constrained variables."""
    normal: Numbers = []
    """Of a half-space whose plane contains the center: the direction that points inside."""

    @property
    def kinds(self) -> list[str]:
        """Which of the three are given."""
        return [name for name in Extent.model_fields if getattr(self, name) not in ([], None)]


class RegionEntry(Extent):
    """A region at one index."""

    center: list[float | None]
    """One number per state variable; null leaves the variable free."""


class Rotation(_Strict):
    """A rotation per index, in the plane of two state variables."""

    degrees: float
    """Angle per index; positive turns the first variable of the plane towards the second."""
    about: Numbers = []
    """Fixed point, one number per state variable; empty: the origin."""
    plane: list[str] = []
    """Names of two state variables; empty: the first two."""

    def columns(self, names: Sequence[str]) -> list[int]:
        """Return the positions of the two variables of the plane."""
        return [list(names).index(name) for name in self.plane] or [0, 1]

    def turn(self, vectors: np.ndarray, indices: np.ndarray, names: Sequence[str]) -> np.ndarray:
        """Turn vectors (*indices.shape, dim) about the origin, each by the angle of its index."""
        a, b = self.columns(names)
        angle = np.deg2rad(self.degrees * np.asarray(indices, dtype=float))
        turned = vectors.copy()
        turned[..., a] = np.cos(angle) * vectors[..., a] - np.sin(angle) * vectors[..., b]
        turned[..., b] = np.sin(angle) * vectors[..., a] + np.cos(angle) * vectors[..., b]
        return turned


class Dilation(_Strict):
    """A stretch per index, the same in all variables; sizes are stretched, too."""

    factor: Positive
    """Factor per index: below 1 shrinks."""
    about: Numbers = []
    """Fixed point, one number per state variable; empty: the origin."""


class Moving(_Strict):
    """A point that moves with the index: Dⁱ Rⁱ (center + i·shift + i²·drift), or a table of points."""

    center: list[float | None] = []
    """One number per state variable; null leaves the variable free."""
    shift: Numbers = []
    """Translation per index; empty: none."""
    drift: Numbers = []
    """Second-order drift, multiplied by index²; empty: none."""
    rotate: Rotation | None = None
    """Rotation R; a number stands for degrees per index in the plane of the first two variables about the origin."""
    dilate: Dilation | None = None
    """Dilation D."""

    @field_validator("rotate", mode="before")
    @classmethod
    def _degrees(cls, rotate: Any) -> Any:
        number = isinstance(rotate, int | float) and not isinstance(rotate, bool)
        return {"degrees": rotate} if number else rotate

    def entries(self) -> Sequence[StartEntry | RegionEntry]:
        """The table of values per index; empty if the operators apply."""
        return ()

    def at(self, indices: np.ndarray, names: Sequence[str] = ()) -> np.ndarray:
        """Return the centers (*indices.shape, dim) at the given indices; free variables are NaN."""
        table = self.entries()
        if table:
            rows = [[np.nan if c is None else c for c in entry.center] for entry in table]
            return np.array(rows)[self._rows(indices)]
        center = np.array([np.nan if c is None else c for c in self.center])
        i = np.asarray(indices, dtype=float)[..., None]
        moved = center + i * _vector(self.shift, center) + i**2 * _vector(self.drift, center)
        if self.rotate is not None:
            about = _vector(self.rotate.about, center)
            moved = about + self.rotate.turn(moved - about, indices, names)
        if self.dilate is not None:
            about = _vector(self.dilate.about, center)
            moved = about + self.stretch(indices)[..., None] * (moved - about)
        return moved

    def stretch(self, indices: np.ndarray, scale: float = 1.0) -> np.ndarray:
        """Return the factor of all sizes at the given indices."""
        factor = scale * (1.0 if self.dilate is None else self.dilate.factor)
        # Python's power of each: numpy's differs in the last bit between one index and an array of them.
        return np.reshape([factor ** int(i) for i in np.asarray(indices).flat], np.shape(indices))

    def _rows(self, indices: np.ndarray) -> np.ndarray:
        last = len(self.entries()) - 1
        if np.any(np.asarray(indices) > last):
            raise DibsError(f"index {np.max(indices)}: the table of values ends at index {last}")
        return np.asarray(indices)


class RegionModel(Moving, Extent):
    """A box, ball or half-space whose size may change with the index, too."""

    scale: Positive = 1.0
    """Factor applied to the half-width or radius per index."""
    table: list[RegionEntry] = []
    """Center and extent at index 0, 1, …, L, instead of all of the above."""

    def entries(self) -> Sequence[RegionEntry]:
        return self.table

    @property
    def is_half_space(self) -> bool:
        """Whether it is a half-space at any index."""
        return bool(self.normal) or any(entry.normal for entry in self.table)

    def ground(self, index: int | np.ndarray, names: Sequence[str] = ()) -> Region:
        """Ground the region at one index or at an array of them; `names` are those of the state variables."""
        indices = np.asarray(index)
        center = self.at(indices, names)
        given: Sequence[Extent] = self.table or [self]
        rows = self._rows(indices) if self.table else np.zeros(indices.shape, dtype=int)
        growth = self.stretch(indices, self.scale)
        width = np.array([_vector(extent.half_width, center) for extent in given])[rows] * growth[..., None]
        radius = np.array([extent.radius or 0.0 for extent in given])[rows] * growth
        normal = np.array([_vector(extent.normal, center) for extent in given])[rows]
        if self.rotate is not None:
            normal = self.rotate.turn(normal, indices, names)
        free = np.isnan(center) | np.array([extent.kinds == ["normal"] for extent in given])[rows][..., None]
        center = np.where(np.isnan(center), 0.0, center)
        return Region(center, np.where(free, np.inf, width), radius, normal)


class StartModel(Moving):
    """Initial states: center plus noise truncated at one standard deviation."""

    noise: float | Numbers = 0.0
    """Standard deviation, one number or one per state variable; a dilation stretches it, too."""
    wide: Numbers = []
    """Half-widths of wider starts per state variable, for environments whose later edges start where the one before
    arrived; empty: what random actions reach within the horizon."""
    table: list[StartEntry] = []
    """Center at index 0, 1, …, L, instead of center, shift and drift."""

    def entries(self) -> Sequence[StartEntry]:
        return self.table


class EnvironmentModel(BaseModel):
    """The environment's name and any of its constants that differ from the default."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str

    @model_validator(mode="before")
    @classmethod
    def _adapter(cls, data: Any) -> Any:
        """A mapping with the key `gymnasium` describes a Gymnasium environment (`dibs.gym.simulators`)."""
        return {"name": "gymnasium", **data} if isinstance(data, Mapping) and "gymnasium" in data else data

    @model_validator(mode="after")
    def _known(self) -> Self:
        try:
            kind = self._kind()
        except DibsError as error:
            raise ValueError(str(error)) from None
        fields = {f.name for f in dataclasses.fields(kind)}
        if self.name in ADAPTERS:
            for key in self.model_extra or {}:
                if key not in fields:
                    raise ValueError(str(unknown("key of a Gymnasium environment", key, fields)))
            try:
                self.build()
            except DibsError as error:
                raise ValueError(str(error)) from None
            return self
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
        environment: Environment = self._kind()(**(self.model_extra or {}))
        return environment

    def _kind(self) -> Any:
        path = ADAPTERS.get(self.name)
        return registry.load("environments", self.name) if path is None else registry.resolve(path)


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
    last_index: Annotated[int, Field(ge=1, le=MOST_INDICES)]
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
    dataset_minutes: Annotated[int, Field(ge=1)] | None = None
    """Run time of one dataset on a cluster; null: from its size and the horizon."""
    dataset_memory_mb: Annotated[int, Field(ge=1)] | None = None
    """Memory of one dataset on a cluster; null: 1000."""
    model_minutes: Annotated[int, Field(ge=1)] | None = None
    """Run time of training one model on a cluster, whatever the method; null: the method's."""
    model_memory_mb: Annotated[int, Field(ge=1)] | None = None
    """Memory of training one model on a cluster; null: the method's."""
    evaluation_minutes: Annotated[int, Field(ge=1)] | None = None
    """Run time of one evaluation on a cluster; null: from its number of environment steps and the method."""
    evaluation_memory_mb: Annotated[int, Field(ge=1)] | None = None
    """Memory of one evaluation on a cluster; null: from its number of rollouts and the method."""
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
        at, names = np.array(indices, dtype=int), self.environment.state_names
        start, free = self._start(at)
        return Tasks(
            name=self.name,
            environment=self.environment,
            specification=specification or self.specification,
            indices=tuple(int(i) for i in indices),
            start_center=start,
            start_half=_vector(self.start.noise, start) * self.start.stretch(at)[:, None],
            regions={name: region.ground(at, names) for name, region in self.regions.items()},
            horizon=self.horizon,
            reward=self.reward,
            network=self.network,
            start_wide=np.broadcast_to(self._wide, start.shape) if self.environment.derived else None,
            start_reset=free,
        )

    def _start(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Return centers of the start (*indices.shape, dim), and which variables the environment's reset draws."""
        environment = self.environment
        start = self.start.at(indices, environment.state_names)
        if not environment.derived:
            return start, None
        free = np.isnan(start) & [name not in environment.derived for name in environment.state_names]
        usual = environment.reset(np.full(start.shape, 0.5)) if free.any() else None
        known = np.where(np.isnan(start), 0.0 if usual is None else usual, start)
        return environment.project(known), free if free.any() else None

    @cached_property
    def _wide(self) -> np.ndarray:
        """Half-widths of wider starts: given, or the range of random actions from the start."""
        if self.start.wide:
            return np.array(self.start.wide)
        environment, rng = self.environment, stream("wide starts")
        center = self._start(np.asarray(0))[0]
        states, half = np.tile(center, (32, 1)), np.zeros(center.shape)
        for _ in range(self.horizon):
            states = environment.step(states, rng.uniform(-1.0, 1.0, (32, environment.action_dim)), states * 0.0)
            half = np.maximum(half, np.abs(states - center).max(axis=0))
        return half

    def tasks_digest(self, indices: Sequence[int], specification: str = "") -> str:
        """Return the digest of the tasks of the given indices; it is computed once."""
        key = (tuple(indices), specification)
        if key not in self.known_digests:
            self.known_digests[key] = self.tasks(indices, specification).digest
        return self.known_digests[key]

    def regions_at(self, index: int) -> dict[str, Region]:
        """Return all regions, grounded at `index` (any index ≥ 0, also beyond L)."""
        self.check_index(index, beyond=True)
        return {name: region.ground(index, self.environment.state_names) for name, region in self.regions.items()}

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

    def split_of(self, indices: Sequence[int]) -> Split:
        """Return a training set without a name; it is called after its indices, so that no two share files."""
        chosen = [int(i) for i in indices]
        text = "-".join(map(str, chosen))
        return self.split(f"train-{text if len(text) <= 40 else digest(chosen)}", chosen)

    def check_index(self, index: int, beyond: bool = False) -> None:
        """Refuse an index outside 0 … L; with `beyond`, any index ≥ 0 is accepted."""
        whole = isinstance(index, int | np.integer) and not isinstance(index, bool)
        if not whole or index < 0 or (index > self.last_index and not beyond):
            end = "…" if beyond else f"… {self.last_index}"
            raise DibsError(f"index {index!r} of {self.name}: expected a whole number in 0 {end}")

    @classmethod
    def load(cls, path: str | Path) -> Family:
        """Read a family from a YAML file."""
        return load_family(Path(path))

    def save(self, path: str | Path) -> None:
        """Write the family as YAML that `load` reads back as the same family."""
        with atomic(path) as file:
            file.write_text(self.to_yaml())

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

    # --- validation ----------------------------------------------------------------------------------

    @model_validator(mode="before")
    @classmethod
    def _named_values(cls, data: Any) -> Any:
        """Accept mappings from state variables to numbers wherever a list has one number per variable."""
        return with_lists(data) if isinstance(data, Mapping) else data

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
            for field in (
                ("noise",) if item.entries() else ("center", "shift", "drift", "noise", "half_width", "normal")
            ):
                value = getattr(item, field, [])
                optional = field in ("shift", "drift", "half_width", "normal") and value == []
                wrong = isinstance(value, list) and len(value) != len(names)
                if wrong and not optional and field in type(item).model_fields:
                    yield f"{key}.{field}: expected {len(names)} numbers ({', '.join(names)}), found {len(value)}"
            yield from _motion_problems(key, item, names)
        for name, region in self.regions.items():
            extents: dict[str, RegionModel | RegionEntry] = {f"table.{i}.": e for i, e in enumerate(region.table)}
            for place, extent in (extents or {"": region}).items():
                if extent.center and all(c is None for c in extent.center):
                    yield f"regions.{name}.{place}center: at least one state variable must be fixed"
                if len(extent.kinds) != 1:
                    found = " and ".join(extent.kinds) or "none of them"
                    yield (
                        f"regions.{name}{'.' * bool(place)}{place.rstrip('.')}: expected one of half_width (a box), "
                        f"radius (a ball) and normal (a half-space), found {found}"
                    )
                elif extent.normal and len(extent.normal) == len(extent.center) == len(names):
                    if not any(extent.normal):
                        yield f"regions.{name}.{place}normal: expected a direction, found zeros"
                    for variable, c, n in zip(names, extent.center, extent.normal, strict=True):
                        if c is None and n != 0.0:
                            yield f"regions.{name}.{place}normal: expected 0 for {variable}, which center leaves free"
        if not self.environment.derived and None in self.start.center:  # tables of starts have no null
            yield "start.center: a start must fix every state variable; null is for regions"
        wide = self.start.wide
        if wide and (len(wide) != len(names) or min(wide) < 0):
            yield f"start.wide: expected {len(names)} numbers ≥ 0 ({', '.join(names)}), found {wide}"
        noise = self.start.noise
        if any(n < 0 for n in (noise if isinstance(noise, list) else [noise])):
            yield f"start.noise: expected numbers ≥ 0, found {noise}"
        for gap in self.gaps:
            if gap > self.last_index:
                yield f"gaps: {gap} is larger than last_index {self.last_index}"

    def _table_problems(self, key: str, item: Moving, names: Sequence[str]) -> Iterator[str]:
        table = item.entries()
        replaced = {"center", "shift", "drift", "rotate", "dilate", "scale", *Extent.model_fields}
        for field in sorted(item.model_fields_set & replaced):
            yield f"{key}.table: replaces {field}; leave that out"
        if len(table) != self.last_index + 1:
            expected = f"{self.last_index + 1} entries (index 0 … {self.last_index})"
            yield f"{key}.table: expected {expected}, found {len(table)}"
        for index, entry in enumerate(table):
            for field in ("center", "half_width", "normal"):
                value = getattr(entry, field, [])
                if isinstance(value, list) and len(value) != len(names) and (value or field == "center"):
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
            for name, inside in conjuncts(edge.source) if edge.source is not None else ():
                if inside and self.regions[name].is_half_space:
                    yield (
                        f"specification: edge {edge.name} starts in the half-space {name}, which has no uniform "
                        "distribution; end the edge before it in a box or a ball"
                    )

    def _geometry_problems(self) -> Iterator[str]:
        """Return the first problem of the first index whose regions cannot be right."""
        names = self.environment.state_names
        everywhere = np.arange(self.last_index + 1)
        try:
            tasks = self.tasks(everywhere.tolist())
        except DibsError as error:
            yield str(error)  # a region that has shrunk to nothing, or overflows
            return
        found = [(int(np.argmax(wrong)), n, say) for n, (wrong, say) in enumerate(self._doubts(tasks)) if wrong.any()]
        if found:
            index, _, say = min(found, key=lambda problem: problem[:2])
            yield say(index)
        for name, region in self.regions.items():
            size = region.ground(everywhere, names).reach.min(axis=-1)
            if (size < 1e-9).any():
                index = int(np.argmax(size < 1e-9))
                yield f"regions.{name}: vanishes at index {index}, where its half-width is {size[index]:g}"

    def _doubts(self, tasks: Tasks) -> Iterator[tuple[np.ndarray, Callable[[int], str]]]:
        """Yield what may be wrong: at which indices it is, and a sentence about one of them."""
        environment, start, noise = self.environment.name, tasks.start_center, tasks.start_half
        yield (
            self._impossible(start),
            lambda i: f"start: its center {start[i].tolist()} is not a state of {environment} at index {i}",
        )
        for edge in self.edges:
            avoided = [name for clause in cnf(edge.safe) if len(clause) == 1 for name, inside in clause if not inside]
            for target in (name for name, inside in conjuncts(edge.target) if inside):
                yield from self._target_doubts(tasks, target, avoided)
            for name in avoided if edge.source is None else ():
                box = tasks.regions[name]
                normal = box.arrays()["normal"]
                low, high = start - noise, start + noise
                # The state of the start that is deepest inside: nearest to the center, or farthest along the normal.
                deepest = np.where(normal.any(axis=-1, keepdims=True), np.where(normal > 0, high, low), box.center)
                yield (
                    box.contains(np.clip(deepest, low, high)),
                    lambda i, name=name: f"start: overlaps {name}, which must be avoided, at index {i}",  # type: ignore[misc]
                )

    def _target_doubts(
        self, tasks: Tasks, target: str, avoided: Sequence[str]
    ) -> Iterator[tuple[np.ndarray, Callable[[int], str]]]:
        region, depth = tasks.regions[target], self.reward.depth
        middle, narrowest = region.center, region.reach.min(axis=-1)
        yield (
            np.asarray(narrowest <= depth),
            lambda i: f"reward.depth: {depth:g} leaves nothing of {target} at index {i}, half-width {narrowest[i]:g}",
        )
        for name in avoided:
            yield (
                tasks.regions[name].contains(middle),
                lambda i, name=name: (  # type: ignore[misc]
                    f"regions.{target}: its center lies inside {name}, to be avoided, at index {i}"
                ),
            )
        yield (
            self._impossible(middle),
            lambda i: (
                f"regions.{target}: its center {middle[i].tolist()} is not a state of {self.environment.name} "
                f"at index {i}"
            ),
        )

    def _impossible(self, states: np.ndarray) -> np.ndarray:
        """Which of the states (n, dim) the environment does not have; derived variables follow from the others."""
        derived = [name in self.environment.derived for name in self.environment.state_names]
        moved = np.where(derived, 0.0, np.abs(self.environment.project(states) - states)).max(axis=-1)
        return np.asarray(moved > 1e-3 * np.maximum(np.abs(states).max(axis=-1), 1e-9))


def with_lists(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a description with lists instead of mappings such as `center: {tip_x: 0.1, tip_y: 0.2}`.

    What a mapping leaves out is free in a region, as the environment's reset draws it in a start, and 0 in a shift.
    """
    missing = {"center": None, "half_width": 1.0}
    moving = {"start": data.get("start"), **(data["regions"] if isinstance(data.get("regions"), Mapping) else {})}
    items = [item for item in moving.values() if isinstance(item, Mapping)]
    entries = [e for item in items for e in (item, *(item.get("table") or ())) if isinstance(e, Mapping)]
    if not any(isinstance(entry.get(key), Mapping) for entry in entries for key in LISTED):
        return data
    try:
        names = EnvironmentModel.model_validate(data.get("environment")).build().state_names
    except (ValidationError, DibsError):
        return data  # the environment's own problem is reported first

    def listed(key: str, value: Any) -> Any:
        if key == "table":
            return [{k: listed(k, v) for k, v in entry.items()} for entry in value]
        if not isinstance(value, Mapping) or key not in LISTED:
            return value
        for name in value:
            if name not in names:
                raise ValueError(f"{key}: {unknown('state variable', name, names)}")
        return [value.get(name, missing.get(key, 0.0)) for name in names]

    def converted(item: Any) -> Any:
        return {k: listed(k, v) for k, v in item.items()} if isinstance(item, Mapping) else item

    regions = {name: converted(region) for name, region in data.get("regions", {}).items()}
    return {**data, "start": converted(data.get("start")), "regions": regions}


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
    motions: dict[str, type[BaseModel]] = {"rotate": Rotation, "dilate": Dilation}
    kind = motions.get(where[-2] if len(where) > 1 else "", kind)
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


def _motion_problems(key: str, item: Moving, names: Sequence[str]) -> Iterator[str]:
    """Say what is wrong with a rotation or a dilation."""
    rotate, dilate = item.rotate, item.dilate
    for field, about in (("rotate", rotate and rotate.about), ("dilate", dilate and dilate.about)):
        if about and len(about) != len(names):
            yield f"{key}.{field}.about: expected {len(names)} numbers ({', '.join(names)}), found {len(about)}"
    if rotate is None:
        return
    unknown_names = [name for name in rotate.plane if name not in names]
    if unknown_names:
        yield f"{key}.rotate.plane: {unknown('state variable', unknown_names[0], names)}"
    elif len(names) < 2 or (rotate.plane and (len(rotate.plane) != 2 or len(set(rotate.plane)) != 2)):
        yield f"{key}.rotate.plane: expected two different state variables, found {list(rotate.plane or names)}"
    elif len(item.center) == len(names):
        free = [names[d] for d in rotate.columns(names) if item.center[d] is None]
        if free:
            yield f"{key}.rotate: cannot turn {free[0]}, which center leaves free"


def _vector(value: float | Numbers, like: np.ndarray) -> np.ndarray:
    """Return a vector with one entry per variable from one number, a list, or nothing (zeros)."""
    return np.zeros(like.shape[-1]) if value == [] else np.broadcast_to(np.asarray(value, float), like.shape[-1:])

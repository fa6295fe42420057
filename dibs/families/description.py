"""What a family file may contain: models of regions and starts that move with the index, and of the environment.

At index i the center of a region is Dⁱ Rⁱ (center + i·shift + i²·drift), where R rotates and D dilates, each about its
own point. Sizes are multiplied by scaleⁱ and by the dilation's factorⁱ. Boxes stay parallel to the axes. A table of
values per index replaces all of this. Nothing in a description is executed.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from dibs import registry
from dibs.envs import Environment
from dibs.errors import DibsError, unknown
from dibs.families.tasks import NetworkModel, RewardModel, Specified
from dibs.settings import Positive
from dibs.spectrl import Region

Numbers = list[float]
LISTED = ("center", "shift", "drift", "noise", "wide", "half_width", "normal", "about")
"""Keys with one number per state variable, which may also be given as mappings from names."""


NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
MOST_INDICES = 10_000  # every index of a family is checked when it is loaded


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class StartEntry(Strict):
    """Center of the initial states at one index."""

    center: Numbers


class Extent(Strict):
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


class Rotation(Strict):
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


class Dilation(Strict):
    """A stretch per index, the same in all variables; sizes are stretched, too."""

    factor: Positive
    """Factor per index: below 1 shrinks."""
    about: Numbers = []
    """Fixed point, one number per state variable; empty: the origin."""


class Moving(Strict):
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
    """Dilation D; a number stands for the factor of one about the origin."""

    @field_validator("rotate", "dilate", mode="before")
    @classmethod
    def _number(cls, value: Any, info: ValidationInfo) -> Any:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return {"degrees" if info.field_name == "rotate" else "factor": value} if number else value

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
        moved = center + i * vector(self.shift, center) + i**2 * vector(self.drift, center)
        if self.rotate is not None:
            about = vector(self.rotate.about, center)
            moved = about + self.rotate.turn(moved - about, indices, names)
        if self.dilate is not None:
            about = vector(self.dilate.about, center)
            moved = about + self.stretch(indices)[..., None] * (moved - about)
        return moved

    def stretch(self, indices: np.ndarray, scale: float = 1.0) -> np.ndarray:
        """Return the factor of all sizes at the given indices."""
        factor = scale * (1.0 if self.dilate is None else self.dilate.factor)
        # Python's power of each: numpy's differs in the last bit between one index and an array of them.
        found = []
        for i in np.asarray(indices).flat:
            try:
                found.append(factor ** int(i))
            except OverflowError:
                raise DibsError(f"a size grows by {factor:g} per index, which is no number at index {i}") from None
        return np.reshape(found, np.shape(indices))

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
        width = np.array([vector(extent.half_width, center) for extent in given])[rows] * growth[..., None]
        radius = np.array([extent.radius or 0.0 for extent in given])[rows] * growth
        normal = np.array([vector(extent.normal, center) for extent in given])[rows]
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
        """A mapping with the name of an adapter as a key, such as `gymnasium`, needs no other name."""
        found = [key for key in data if key in registry.names("adapters")] if isinstance(data, Mapping) else []
        return {"name": found[0], **data} if found else data

    @model_validator(mode="after")
    def _known(self) -> Self:
        try:
            kind = self._kind()
        except DibsError as error:
            raise ValueError(str(error)) from None
        fields = {f.name for f in dataclasses.fields(kind)}
        if self.name in registry.names("adapters"):
            for key in self.model_extra or {}:
                if key not in fields:
                    raise ValueError(str(unknown(f"key of a {self.name} environment", key, fields)))
            if self.name not in (self.model_extra or {}):
                raise ValueError(f"{self.name}: which environment is missing")
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
        return registry.load("adapters" if self.name in registry.names("adapters") else "environments", self.name)


class FamilyModel(Strict, Specified):
    """The keys of a family file."""

    name: Annotated[str, Field(pattern=f"^{NAME.pattern}$")]
    environment_model: EnvironmentModel = Field(alias="environment")
    specification: str
    """SPECTRL text; its reach-avoid edges are trained."""
    benchmarks: dict[str, str] = Field(default_factory=dict)
    """Evaluated specifications by id, over edges of `specification`; empty: one, of the family's name."""
    start: StartModel
    regions: dict[str, RegionModel]
    last_index: Annotated[int, Field(ge=1, le=MOST_INDICES)]
    """L: the family's indices are 0 … L."""
    gaps: list[Annotated[int, Field(ge=1)]] = Field(default_factory=list)
    """Spacings of the training indices that a study uses by default."""
    horizon: Annotated[int, Field(ge=1)]
    """Steps per edge."""
    teacher: str = "ars"
    """RL algorithm of the teachers: ars, ppo, or another registered one."""
    teacher_options: dict[str, Any] = Field(default_factory=dict)
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

    @cached_property
    def environment(self) -> Environment:
        return self.environment_model.build()


def with_lists(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a description with lists instead of NumPy arrays and of mappings such as `center: {x: 0.1, y: 0.2}`.

    What a mapping leaves out is free in a region, as the environment's reset draws it in a start, and 0 in a shift.
    """
    data = _without_arrays(data)
    regions = data["regions"] if isinstance(data.get("regions"), Mapping) else {}
    if not any(_named(item) for item in (data.get("start"), *regions.values())):
        return data
    try:
        names = EnvironmentModel.model_validate(data.get("environment")).build().state_names
    except (ValidationError, DibsError):
        return data  # the environment's own problem is reported first
    listed = {name: _listed(region, names) for name, region in regions.items()}
    return {**data, "start": _listed(data.get("start"), names), "regions": listed}


def _without_arrays(value: Any) -> Any:
    """Replace NumPy arrays and numbers by lists and numbers, at any depth."""
    if isinstance(value, Mapping):
        return {key: _without_arrays(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_without_arrays(part) for part in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _named(item: Any) -> bool:
    """Whether a start, a region or a part of one has mappings from names."""
    if isinstance(item, list):
        return any(map(_named, item))
    return isinstance(item, Mapping) and any(
        isinstance(value, Mapping) if key in LISTED else _named(value) for key, value in item.items()
    )


def _listed(item: Any, names: Sequence[str]) -> Any:
    """Return a start, a region or a part of one with lists; a half-width must name what the center fixes."""
    if isinstance(item, list):
        return [_listed(part, names) for part in item]
    if not isinstance(item, Mapping):
        return item
    found = {}
    for key, value in item.items():
        if key not in LISTED or not isinstance(value, Mapping):
            found[key] = _listed(value, names)
            continue
        for name in value:
            if name not in names:
                raise ValueError(f"{key}: {unknown('state variable', name, names)}")
        missing = {"center": None, "half_width": 1.0}.get(key, 0.0)
        found[key] = [value.get(name, missing) for name in names]
    center, width = found.get("center"), item.get("half_width")
    if isinstance(width, Mapping) and isinstance(center, list):
        for name, fixed in zip(names, center, strict=False):
            if fixed is not None and name not in width:
                raise ValueError(f"half_width: no number for {name}, which center fixes")
    return found


def vector(value: float | Numbers, like: np.ndarray) -> np.ndarray:
    """Return a vector with one entry per variable from one number, a list, or nothing (zeros)."""
    return np.zeros(like.shape[-1]) if value == [] else np.broadcast_to(np.asarray(value, float), like.shape[-1:])

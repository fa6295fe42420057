"""An inductive task family (paper, section 3.1): one specification whose regions move with the index.

A family is described by a mapping, in Python or YAML, with the keys of `FamilyModel` in `description.py`. Checks before
training are in `validation.py` and `geometry.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
import yaml
from pydantic import ValidationError, model_validator

from dibs.errors import DibsError
from dibs.families import geometry, loading, validation
from dibs.families.description import NAME, FamilyModel, vector, with_lists
from dibs.families.splits import GAP, Split
from dibs.families.tasks import Tasks
from dibs.files import atomic
from dibs.paths import BASE
from dibs.provenance import digest
from dibs.seeding import stream
from dibs.spectrl import Region


class Family(FamilyModel):
    """One inductive task family: what is trained. Its benchmarks are what is evaluated."""

    def __init__(self, **description: Any) -> None:
        """Describe a family by its keys; an error names every offending one."""
        try:
            super().__init__(**description)
        except ValidationError as error:
            raise DibsError(loading.explain(error, type(self))) from None

    def __repr__(self) -> str:
        edges = ", ".join(edge.name for edge in self.edges)
        return f"Family({self.name}: {self.environment.name}, indices 0 … {self.last_index}, edges {edges})"

    __str__ = __repr__

    @model_validator(mode="before")
    @classmethod
    def _named_values(cls, data: Any) -> Any:
        """Accept mappings from state variables to numbers wherever a list has one number per variable."""
        return with_lists(data) if isinstance(data, Mapping) else data

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems = list(validation.problems(self))
        if not problems:
            try:
                problems = list(geometry.problems(self._every_task()))
            except DibsError as error:
                problems = [str(error)]  # a region that has shrunk to nothing, or overflows
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def warnings(self) -> tuple[str, ...]:
        """Return what is possible but doubtful, such as a target that some starts cannot reach in time."""
        return self._warnings

    @cached_property
    def out_of_reach(self) -> dict[int, str]:
        """Indices at which no policy reaches a target within the horizon, each with a sentence about it."""
        return geometry.out_of_reach(self._every_task())

    @cached_property
    def _warnings(self) -> tuple[str, ...]:
        return tuple(geometry.doubts(self, self._every_task(), self.out_of_reach))

    def _every_task(self) -> Tasks:
        return self.tasks(range(self.last_index + 1))

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
        tasks = self._grounded(indices, specification or self.specification)
        if not self._starts_wide:
            return tasks
        return dataclasses.replace(tasks, start_wide=np.broadcast_to(self._wide, tasks.start_center.shape))

    def _grounded(self, indices: Sequence[int], specification: str) -> Tasks:
        at, names = np.array(indices, dtype=int), self.environment.state_names
        start, free = self._start(at)
        return Tasks(
            name=self.name,
            environment=self.environment,
            specification=specification,
            indices=tuple(int(i) for i in indices),
            start_center=start,
            start_half=vector(self.start.noise, start) * self.start.stretch(at)[:, None],
            regions={name: region.ground(at, names) for name, region in self.regions.items()},
            horizon=self.horizon,
            reward=self.reward,
            network=self.network,
            start_reset=free,
        )

    @cached_property
    def _starts_wide(self) -> bool:
        """Whether edges start from wider states, too: where later ones start from arrivals."""
        tasks = self._grounded([0], self.specification)
        return bool(self.environment.derived) or any(map(tasks.from_arrivals, tasks.edges))

    def _start(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Return centers of the start (*indices.shape, dim), and which variables the environment's reset draws."""
        environment = self.environment
        start = self.start.at(indices, environment.state_names)
        if not environment.derived:
            return start, None
        free = np.isnan(start) & ~environment.is_derived
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
            return self._possible(Split(name, tuple(sorted({*range(0, self.last_index, gap), self.last_index}))))
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
        return self._possible(Split(name, chosen))

    def _possible(self, split: Split) -> Split:
        """Refuse a training index whose task cannot be solved."""
        for index in split.indices:
            if index in self.out_of_reach:
                raise DibsError(f"split {split.name} of {self.name}: {self.out_of_reach[index]}")
        return split

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

    def check_exists(self, indices: Sequence[int], where: str) -> None:
        """Refuse indices that have no task; a table of values ends at L."""
        for index in indices:
            self.check_index(index, beyond=True)
            if index > self.last_index and not self.extends:
                raise DibsError(
                    f"{where}: {self.name} has no task at index {index}: its tables of values end at "
                    f"L = {self.last_index}; leave out indices after it"
                )

    # --- files ---------------------------------------------------------------------------------------

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
        environment = self.environment
        fields = dataclasses.fields(environment)  # type: ignore[arg-type]
        constants = ", ".join(f"{f.name} {f.default}" for f in fields if isinstance(f.default, int | float))
        return (
            f"# Lists hold one number per state variable: {', '.join(environment.state_names)}.\n"
            + f"# Constants of {environment.name} that may be set next to its name: {constants}.\n" * bool(constants)
        ) + yaml.dump(data, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=1000)


def load_family(source: str | Path | Mapping[str, Any]) -> Family:
    """Build a family from a YAML file or a mapping; errors name every offending key."""
    where = "family" if isinstance(source, Mapping) else str(source)
    try:
        data = source if isinstance(source, Mapping) else loading.read_yaml(Path(source))
        family = Family(**loading.checked_keys(data))
    except DibsError as error:
        raise DibsError(f"{where}: {error}") from None
    if not isinstance(source, Mapping):
        family.__dict__["source"] = where
    return family

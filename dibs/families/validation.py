"""Checks of a description: numbers per variable, tables, motions, and what specifications name.

`dibs.families.geometry` checks the regions at every index once the description is sound.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from dibs import registry
from dibs.errors import DibsError, unknown
from dibs.families.description import Extent, FamilyModel, Moving, RegionEntry, RegionModel
from dibs.settings import parse_settings
from dibs.spectrl import conjuncts, graph, parse, regions_of


def problems(family: FamilyModel) -> Iterator[str]:
    """Yield what is wrong with a description; specifications are read only if the numbers are right."""
    found = list(_shape_problems(family))
    yield from found or _specification_problems(family)


def _shape_problems(family: FamilyModel) -> Iterator[str]:
    names = family.environment.state_names
    moving: dict[str, Moving] = {"start": family.start}
    moving |= {f"regions.{name}": region for name, region in family.regions.items()}
    for key, item in moving.items():
        if item.entries():
            yield from _table_problems(family, key, item, names)
        for field in ("noise",) if item.entries() else ("center", "shift", "drift", "noise", "half_width", "normal"):
            value = getattr(item, field, [])
            optional = field in ("shift", "drift", "half_width", "normal") and value == []
            wrong = isinstance(value, list) and len(value) != len(names)
            if wrong and not optional and field in type(item).model_fields:
                yield f"{key}.{field}: expected {len(names)} numbers ({', '.join(names)}), found {len(value)}"
        yield from _motion_problems(key, item, names)
    for name, region in family.regions.items():
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
    if not family.environment.derived and None in family.start.center:  # tables of starts have no null
        yield "start.center: a start must fix every state variable; null is for regions"
    wide = family.start.wide
    if wide and (len(wide) != len(names) or min(wide) < 0):
        yield f"start.wide: expected {len(names)} numbers ≥ 0 ({', '.join(names)}), found {wide}"
    noise = family.start.noise
    if any(n < 0 for n in (noise if isinstance(noise, list) else [noise])):
        yield f"start.noise: expected numbers ≥ 0, found {noise}"
    if family.teacher not in registry.names("teachers"):
        yield f"teacher: {registry.unregistered('teacher algorithm', family.teacher, registry.names('teachers'))}"
    elif family.teacher_options:
        kind = registry.load("teachers", family.teacher).settings
        known = [field.name for field in dataclasses.fields(kind)]
        strange = [key for key in family.teacher_options if key not in known]
        if strange:
            yield f"teacher_options: {unknown(f'setting of {family.teacher}', strange[0], known)}"
        else:
            try:
                parse_settings(kind, family.teacher_options, "teacher_options")
            except DibsError as error:
                yield str(error)
    for gap in family.gaps:
        if gap > family.last_index:
            yield f"gaps: {gap} is larger than last_index {family.last_index}"


def _table_problems(family: FamilyModel, key: str, item: Moving, names: Sequence[str]) -> Iterator[str]:
    table = item.entries()
    replaced = {"center", "shift", "drift", "rotate", "dilate", "scale", *Extent.model_fields}
    for field in sorted(item.model_fields_set & replaced):
        yield f"{key}.table: replaces {field}; leave that out"
    if len(table) != family.last_index + 1:
        expected = f"{family.last_index + 1} entries (index 0 … {family.last_index})"
        yield f"{key}.table: expected {expected}, found {len(table)}"
    for index, entry in enumerate(table):
        for field in ("center", "half_width", "normal"):
            value = getattr(entry, field, [])
            if isinstance(value, list) and len(value) != len(names) and (value or field == "center"):
                yield f"{key}.table.{index}.{field}: expected {len(names)} numbers, found {len(value)}"
        if [c is None for c in entry.center] != [c is None for c in table[0].center]:
            yield f"{key}.table.{index}.center: leaves other variables free than the first entry"


def _specification_problems(family: FamilyModel) -> Iterator[str]:
    texts = {"specification": family.specification}
    texts |= {f"benchmarks.{name}": text for name, text in family.benchmarks.items()}
    specs = {}
    for key, text in texts.items():
        try:
            specs[key] = parse(text)
        except DibsError as error:
            yield f"{key}: {error}"
            continue
        for region in sorted(regions_of(specs[key]) - set(family.regions)):
            yield f"{key}: {unknown('region', region, family.regions)}"
    if len(specs) < len(texts) or any(regions_of(spec) - set(family.regions) for spec in specs.values()):
        return
    edges = {edge.name: edge for edge in family.edges}
    for key, spec in specs.items():
        for edge in graph(spec).edges:
            if edges.get(edge.name) != edge:
                yield f"{key}: its edge {edge.name} is not an edge of the family's specification"
    for edge in family.edges:
        if not any(inside for _, inside in conjuncts(edge.target)):
            yield f"specification: edge {edge.name} has no region to reach"
        for name, inside in conjuncts(edge.source) if edge.source is not None else ():
            if inside and family.regions[name].is_half_space:
                yield (
                    f"specification: edge {edge.name} starts in the half-space {name}, which has no uniform "
                    "distribution; end the edge before it in a box or a ball"
                )


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

"""Training sets (paper, section 3.1: Train)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dibs.errors import DibsError
from dibs.paths import BASE

GAP = re.compile(r"gap([1-9]\d*)")


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

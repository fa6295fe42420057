"""When training stops: at the first full success, or once the return has stopped rising."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from dibs.teachers.joint import Watch

CHECKS = [(0.5, -9.0), (1.0, -8.0), (1.0, -5.0), (1.0, -4.99), (0.9, -2.0), (1.0, -4.95), (1.0, -4.9), (1.0, -4.8)]


class Scripted:
    """Stands for an edge whose actor is as good as a script says; its weight is the number of the check."""

    edge, attempt = 0, 0
    assignment = SimpleNamespace(progress=None)

    def __init__(self, layer: nn.Linear, last: float, pulls: Mapping[int, float]) -> None:
        self.layer, self.last, self.pulls, self.verified = layer, last, pulls, []  # type: ignore[var-annotated]

    def pull(self, theta: Any) -> float:
        return self.pulls.get(int(theta[0]), 0.0)

    def keep_episodes(self) -> None: ...

    def check(self, theta: Any, rollouts: int) -> tuple[float, float]:
        number = int(theta[0])
        if rollouts == 30:  # three times as many
            self.verified.append(number)
            return self.last, CHECKS[number][1]
        return CHECKS[number]


@pytest.mark.parametrize(
    ("patience", "last", "pulls", "measured", "kept", "converged"),
    [
        (0, 1.0, {}, 2, 1, True),  # the first full success
        (2, 1.0, {}, 5, 3, True),  # check 3 is better, but not by enough; nor are 4 and 5
        (3, 1.0, {}, 6, 5, True),  # 2 was the last to rise by enough; 5 has the best return so far
        (9, 1.0, {}, 8, 7, False),
        (2, 0.9, {}, 8, 7, False),  # the larger check fails
        (2, 1.0, {2: 4.0, 3: 4.0}, 4, 1, True),  # 2 and 3 have better returns, but are too far from the predecessor
        (9, 1.0, {n: 5.0 for n in range(2, 7)}, 8, 7, False),  # 1 stays the best until 7
        (2, 1.0, {3: 0.1}, 5, 2, True),
    ],
)
def test_training_stops_when_the_return_minus_the_anchor_does_not_rise(
    patience: int, last: float, pulls: Mapping[int, float], measured: int, kept: int, converged: bool
) -> None:
    layer = nn.Linear(1, 1)
    part = Scripted(layer, last, pulls)
    watch = Watch(part, [layer], 0, 10, patience)  # type: ignore[arg-type]
    for number in range(len(CHECKS)):
        with torch.no_grad():
            layer.weight.fill_(number)
        watch.num_timesteps = number
        watch.measure()
        if watch.converged:
            break
    assert (watch.measured, watch.converged) == (measured, converged)
    assert int(watch.theta[0]) == kept
    if converged:
        assert part.verified[-1] == kept

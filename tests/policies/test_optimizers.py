"""Adam without torch's compiler: the same steps, and the compiler is never imported."""

from __future__ import annotations

import subprocess
import sys

import torch

from dibs.policies.optimizers import Adam


def descend(kind: type[torch.optim.Optimizer]) -> torch.Tensor:
    torch.manual_seed(0)
    layer = torch.nn.Linear(5, 3)
    optimizer = kind(layer.parameters(), lr=0.1, fused=True)
    hooked = []
    optimizer.register_step_pre_hook(lambda *_: hooked.append(1))
    for _ in range(10):
        optimizer.zero_grad()
        layer(torch.ones(2, 5)).pow(2).sum().backward()
        optimizer.step()
    assert len(hooked) == 10
    return layer.weight.detach()


def test_the_same_steps_as_torch():
    assert torch.equal(descend(Adam), descend(torch.optim.Adam))


def test_the_compiler_is_not_imported():
    program = "import sys; from tests.policies.test_optimizers import descend, Adam; descend(Adam); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "torch" in loaded and "torch._dynamo" not in loaded

"""Adam without torch's compiler, which every optimizer of torch imports at its first use.

That import takes seconds, as long as the training of a small teacher, and nothing here is compiled.
"""

from __future__ import annotations

from inspect import unwrap

import torch


class Adam(torch.optim.Adam):
    """torch's Adam; methods that torch wraps for its compiler are taken without the wrapper."""

    add_param_group = unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = unwrap(torch.optim.Optimizer.zero_grad)
    step = torch.no_grad()(unwrap(torch.optim.Adam.step))

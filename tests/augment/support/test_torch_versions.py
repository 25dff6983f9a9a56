"""What is used of PyTorch without a public name, as found in 2.11 (on a GPU) and 2.14.

Where a test fails with another version, `augment/support/torch_versions.py` is the place to change.
"""

import subprocess
import sys

import torch

STEP = """
import sys, torch
from augment.support.torch_versions import keep_eager, step_eagerly

keep_eager()
weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([weight], 0.5, momentum=0.9)
step_eagerly(optimizer)
hooked = []
optimizer.register_step_post_hook(lambda *_: hooked.append(1))
weight.square().sum().backward()
optimizer.step()
optimizer.zero_grad()
optimizer.load_state_dict(optimizer.state_dict())
print(weight.tolist(), hooked, "torch._dynamo" in sys.modules)
"""


def test_the_names_are_there() -> None:
    assert callable(torch._C._cuda_endAllocateToPool)
    assert callable(torch._C._cuda_clearCublasWorkspaces)


def test_an_optimizer_steps_without_importing_the_compiler() -> None:
    done = subprocess.run([sys.executable, "-c", STEP], capture_output=True, text=True, check=True)
    assert done.stdout == "[0.0, 0.0] [1] False\n"

"""What is small arrives on a busy GPU as it was."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

PROGRAM = Path(__file__).parents[2] / "support" / "busy_gpu_program.py"


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("processes", [16, pytest.param(500, marks=pytest.mark.long)])
def test_pixels_indices_and_parameters_arrive_whole(processes: int):
    done = subprocess.run([sys.executable, PROGRAM, str(processes)], capture_output=True, text=True, check=False)
    assert done.stdout == f"{processes} processes, 0 with something wrong\n", done.stderr


def test_dali_pins_no_buffer_that_it_frees_too_early():
    own = {name: value for name, value in os.environ.items() if name != "DALI_RESTRICT_PINNED_MEM"}
    code = "import augment; from nvidia.dali import backend; print(backend.RestrictPinnedMemUsage())"
    done = subprocess.run([sys.executable, "-c", code], env=own, capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_the_decoder_has_queues_of_its_own_on_the_gpu_unless_a_number_is_set():
    own = {name: value for name, value in os.environ.items() if name != "CUDA_DEVICE_MAX_CONNECTIONS"}
    code = "import augment, os; print(os.environ['CUDA_DEVICE_MAX_CONNECTIONS'])"
    for given, wanted in (({}, "32"), ({"CUDA_DEVICE_MAX_CONNECTIONS": "1"}, "1")):
        done = subprocess.run([sys.executable, "-c", code], env=own | given, capture_output=True, text=True, check=True)
        assert done.stdout == f"{wanted}\n"

"""Averaging over views: against sums by hand, and in validation."""

import math

import pytest
import torch
from fakes import make_learner, needs_gpu, noise_loader, reject_waiting, tiny_model
from torch import nn

from trainer.callbacks.recorder import Recorder
from trainer.loop.batch_runner import average as average_of
from trainer.tasks.registry import task_named


def average(model, images, tta, task="classify"):
    return average_of(model, images, tta, task_named(task))


class LeftHalf(nn.Module):
    """Two logits: 0, and the red of the left half."""

    def forward(self, images):
        red = images[:, 0, :, : images.shape[3] // 2].mean(dim=(1, 2))
        return torch.stack([torch.zeros_like(red), red], dim=1)


def test_flip_is_the_mean_of_two_probabilities_by_hand():
    images = torch.zeros(1, 3, 4, 4)
    images[:, 0, :, :2] = math.log(3)  # the left half says 3 : 1, the mirror's 1 : 1
    mean = average(LeftHalf(), images, "flip").exp()
    torch.testing.assert_close(mean, torch.tensor([[0.375, 0.625]]))
    # Cross-entropy is that of the mean.
    loss = nn.functional.cross_entropy(average(LeftHalf(), images, "flip"), torch.tensor([1]))
    assert loss.item() == pytest.approx(-math.log(0.625))


def test_labels_and_numbers_are_averaged_one_by_one():
    images = torch.zeros(1, 3, 4, 4)
    images[:, 0, :, :2] = math.log(3)  # of the second label the left half says 3/4, the mirror's 1/2
    logits = average(LeftHalf(), images, "flip", "multilabel")
    torch.testing.assert_close(logits.sigmoid(), torch.tensor([[0.5, 0.625]]))
    sure = average(LeftHalf(), torch.full((1, 3, 4, 4), 60.0), "flip", "multilabel")
    assert sure.tolist() == [[pytest.approx(0, abs=1e-6), 60.0]]  # and no infinity
    numbers = average(LeftHalf(), images, "flip", "regress")
    torch.testing.assert_close(numbers, torch.tensor([[0.0, math.log(3) / 2]]))


def test_validation_averages_and_training_does_not():
    outputs = {True: [], False: []}
    model, loader = tiny_model(), noise_loader(4)
    model.register_forward_hook(lambda module, *_: outputs[module.training].append(1))
    learner = make_learner(Recorder(), model=model, train=loader, val=noise_loader(3), epochs=1, tta="flip")
    learner.fit()
    assert (len(outputs[True]), len(outputs[False])) == (2, 4)


@needs_gpu
def test_nothing_waits_for_the_gpu():
    images = torch.randn(2, 3, 8, 8, device="cuda").half().to(memory_format=torch.channels_last)
    model = tiny_model().eval().cuda()
    with reject_waiting(), torch.inference_mode(), torch.autocast("cuda", torch.bfloat16):
        result = average(model, images, "flip")
    on_cpu = average(model.cpu(), images.float().cpu(), "flip")
    torch.testing.assert_close(result.cpu(), on_cpu, rtol=0.05, atol=0.05)

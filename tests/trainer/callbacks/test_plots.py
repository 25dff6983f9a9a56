"""Which figures of a run are drawn, and when."""

import shutil
from pathlib import Path

import pytest
import torch
from fakes import CLASSES, MemoryLoader, make_learner, on, raises

from trainer.callbacks.plots import Plots
from trainer.callbacks.recorder import Recorder
from trainer.figures import batches
from trainer.loop.callback import CancelFit


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The title of each batch that is drawn."""
    titles: list[str] = []
    monkeypatch.setattr(batches, "plot_batch", lambda images, labels, path, title: titles.append(title))
    return titles


def test_one_batch_of_a_run_is_drawn(drawn: list[str], tmp_path: Path) -> None:
    first = make_learner(Recorder(), Plots(), on("after_batch", raises(CancelFit, 1)), folder=tmp_path)
    first.fit()
    assert drawn == ["training batch 1, after augmentation"]
    second = make_learner(Recorder(), Plots(), folder=tmp_path)
    second.fit(second.restore(first.state()))
    assert drawn[1:] == ["training batch 3, after augmentation"]


def test_the_batch_has_its_pixels_and_the_names_of_its_classes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[tuple[object, list[str]]] = []
    monkeypatch.setattr(batches, "plot_batch", lambda images, labels, path, title: seen.append((images, labels)))
    images = torch.rand(5, 3, 4, 4)
    loader = MemoryLoader(images, torch.tensor([2, 0, 1, 1, 0]), 3, shuffle=False)
    make_learner(Recorder(), Plots(images=2), train=loader, folder=tmp_path, epochs=1).fit()
    ((shown, labels),) = seen
    assert torch.equal(torch.as_tensor(shown), (images[:2] * 255).round().byte().permute(0, 2, 3, 1))
    assert labels == [CLASSES[2], CLASSES[0]]


def test_a_folder_that_is_deleted_before_its_first_drawing_is_not_made_again(tmp_path: Path) -> None:
    delete = on("after_batch", lambda learner: shutil.rmtree(tmp_path, ignore_errors=True), order=100)
    with pytest.raises(FileNotFoundError):
        make_learner(Recorder(), Plots(), delete, folder=tmp_path).fit()
    assert not tmp_path.exists()
